"""`atomnative chat`."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from atomnative.cli.parse import parse
from atomnative.errors import ConfigError
from atomnative.inference.chat import ASSISTANT_TAG, USER_TAG, Conversation
from atomnative.inference.text import printable
from atomnative.model.registry import load_model


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """Let a trained model go on with a text, or talk to it."""

    checkpoint: Path
    """A checkpoint file, or a run folder whose newest is taken."""
    prompt: str | None = None
    """What to answer."""
    interactive: bool = False
    """Talk: one line, one reply. Ctrl-C ends a reply, Ctrl-D the talk."""
    raw: bool = False
    """Go on with the prompt as it is, without the tags."""
    user_tag: str = USER_TAG
    """Written before what you say."""
    assistant_tag: str = ASSISTANT_TAG
    """Written before the reply."""
    max_packets: int = 400
    """Bytes of a reply at most."""
    temperature: float = 0.8
    """0 takes the likeliest byte each time; higher is wilder."""
    top_k: int = 40
    """Draw among the k likeliest bytes; 0: all."""
    top_p: float = 1.0
    """Draw among the fewest likeliest bytes that together have this probability."""
    seed: int | None = None
    """The same seed gives the same reply, or the same talk; each reply of a talk draws anew."""
    threads: int = 1
    """CPU threads; a byte at a time is too little work to share."""
    device: str = "cpu"
    """Where to run: cpu, cuda, ..."""


def main(argv: Sequence[str]) -> None:
    import torch

    config = parse(ChatConfig, argv, "atomnative chat")
    if (config.prompt is None) == (not config.interactive):
        raise ConfigError("say what to answer with --prompt TEXT, or talk with --interactive: one of the two")
    if config.threads < 1:
        raise ConfigError(f"--threads must be at least 1, not {config.threads}")
    torch.set_num_threads(config.threads)
    talk = Conversation(load_model(config.checkpoint, config.device), config.user_tag, config.assistant_tag, config.raw)
    if config.prompt is not None:
        _show(_reply(talk, config, config.prompt, config.seed))
    else:
        _talk(talk, config)


def _talk(talk: Conversation, config: ChatConfig) -> None:
    for turn in count():
        # With one seed for all, the same words would be drawn after the same tag each time.
        seed = None if config.seed is None else (config.seed + turn) % 2**63
        try:
            line = input("> " if config.raw else f"{config.user_tag} ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not config.raw:
            print(config.assistant_tag, end="", flush=True)
        try:
            _show(_reply(talk, config, line, seed))
        except KeyboardInterrupt:
            continue


def _reply(talk: Conversation, config: ChatConfig, said: str, seed: int | None) -> Iterator[str]:
    return talk.reply(
        said,
        max_packets=config.max_packets,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        seed=seed,
    )


def _show(pieces: Iterator[str]) -> None:
    try:
        for piece in pieces:
            sys.stdout.write(printable(piece))
            sys.stdout.flush()
    finally:
        print(flush=True)
