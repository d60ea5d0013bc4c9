"""Generation and chat with the single-stream form."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import torch

from atomnative.data.atomizer import AtomPacket
from atomnative.errors import ConfigError, UserError
from atomnative.inference.sampling import check_sampling, sample_byte
from atomnative.inference.text import printable, text_pieces, until
from atomnative.model.protocol import ByteModel

USER_TAG = "Utilisateur:"
ASSISTANT_TAG = "Assistant:"


class ReplyDiverged(UserError):
    """The model gives no numbers to draw a byte from any more."""


def generate_bytes(
    model: ByteModel,
    prompt: bytes,
    *,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int | None = None,
    reset: bool = True,
) -> Iterator[int]:
    """Read the prompt, then write bytes without end, each read back by the model.

    Args:
        prompt: read first; where it is empty, a newline is.
        temperature, top_k, top_p: see `sample_byte`.
        seed: the same seed writes the same bytes; None: others each time. Torch's global generator is left alone.
        reset: start an episode first; otherwise go on after what was read and written before.

    Raises:
        ConfigError: a setting out of its domain.
        ReplyDiverged: logits that are not finite, when the byte is drawn.
    """
    check_sampling(temperature, top_k, top_p, seed)
    return _generate(model, prompt or b"\n", temperature, top_k, top_p, seed, reset)


def _generate(
    model: ByteModel, prompt: bytes, temperature: float, top_k: int, top_p: float, seed: int | None, reset: bool
) -> Iterator[int]:
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    if reset:
        model.reset_state()
    *read, last = model.atomizer.encode_bytes(prompt, reset=reset)
    for packet in read:
        _read(model, packet)
    logits = _read(model, last)
    while True:
        byte = sample_byte(logits[0], temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
        # Read back before it is given out: whoever stops listening leaves a model that knows all it has said.
        logits = _read(model, model.atomizer.packet_from_payload(bytes((byte,))))
        yield byte


@torch.no_grad()
def _read(model: ByteModel, packet: AtomPacket) -> torch.Tensor:
    """One tick as in evaluation: a model in training would drop terms by draws from the global generator."""
    training = model.training
    model.train(False)
    try:
        logits = model.next_byte_logits(packet)  # [1, 256]
    finally:
        model.train(training)
    if not logits.isfinite().all():
        raise ReplyDiverged(
            "the model's logits are not finite any more: its weights are not, or its field has grown too large; "
            "start a new talk, and train with a leak (--field-leak) or a bound (--field-max-rms)"
        )
    return logits


@dataclass
class Conversation:
    """Turns of a talk, each read and written by one model whose state goes on from turn to turn.

    Attributes:
        user_tag, assistant_tag: what is said is wrapped as `USER_TAG text`, newline, `ASSISTANT_TAG`.
        raw: what is said is read as it is, and replies end at their bounds only.
    """

    model: ByteModel
    user_tag: str = USER_TAG
    assistant_tag: str = ASSISTANT_TAG
    raw: bool = False
    _turns: int = field(default=0, init=False)
    _tag_was_read: bool = field(default=False, init=False)

    def reply(
        self,
        said: str,
        *,
        max_packets: int = 400,
        max_length: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> Iterator[str]:
        """The reply in pieces, as it is written. Arguments and errors as `generate_reply`."""
        if max_packets < 0:
            raise ConfigError(f"max_packets must not be negative, not {max_packets}")
        if max_length is not None and max_length < 0:
            raise ConfigError(f"max_length must not be negative, not {max_length}")
        values = generate_bytes(
            self.model,
            self._wrap(said).encode("utf-8", "surrogateescape"),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            reset=self._turns == 0,
        )
        self._turns += 1
        self._tag_was_read = False
        return self._pieces(islice(values, max_packets if max_length is None else min(max_packets, max_length)))

    def _wrap(self, said: str) -> str:
        if self.raw:
            return said
        if self._tag_was_read:  # the model wrote it itself, and that ended its reply
            return f" {said}\n{self.assistant_tag}"
        newline = "\n" if self._turns else ""
        return f"{newline}{self.user_tag} {said}\n{self.assistant_tag}"

    def _pieces(self, values: Iterator[int]) -> Iterator[str]:
        pieces = text_pieces(values)
        if self.raw or not self.user_tag:
            yield from pieces
        else:
            self._tag_was_read = yield from until(pieces, f"\n{self.user_tag}")


def generate_reply(
    model: ByteModel,
    prompt: str,
    max_packets: int = 400,
    max_length: int | None = None,
    temperature: float = 0.8,
    top_k: int = 40,
    top_p: float = 1.0,
    seed: int | None = None,
    raw: bool = False,
    user_tag: str = USER_TAG,
    assistant_tag: str = ASSISTANT_TAG,
) -> str:
    """What the model writes after a prompt.

    Args:
        prompt: wrapped as `USER_TAG prompt`, newline, `ASSISTANT_TAG`; the reply ends where the model begins a new
            turn.
        max_packets: packets written at most; in byte tick, bytes.
        max_length: bytes written at most.
        temperature: 0 takes the likeliest byte each time.
        top_k: draw among the k likeliest bytes; 0: all.
        top_p: draw among the fewest likeliest bytes that together have this probability.
        seed: the same seed gives the same reply.
        raw: take the prompt as it is, and stop only at the bounds.

    Returns: text; bytes that can belong to no character are U+FFFD, and half a character at the end is dropped.

    Raises:
        ConfigError: a setting out of its domain.
        ReplyDiverged: logits that are not finite.
    """
    talk = Conversation(model, user_tag, assistant_tag, raw)
    return "".join(
        talk.reply(
            prompt,
            max_packets=max_packets,
            max_length=max_length,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
        )
    )


def sample_text(model: ByteModel, prompt: bytes, count: int, *, seed: int) -> str:
    """`count` bytes written after a prompt by a copy of the model, as printable text; the model stays as it is."""
    twin = copy.deepcopy(model).eval()
    return printable("".join(text_pieces(islice(generate_bytes(twin, prompt, seed=seed), count))))
