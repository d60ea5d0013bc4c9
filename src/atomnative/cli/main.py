"""The `atomnative` command: which subcommand, and the one place that turns an error into a line and an exit code."""

import importlib
import io
import os
import sys
from collections.abc import Sequence

from atomnative.errors import UserError

COMMANDS = {
    "train": ("atomnative.cli.train", "train a model on raw bytes, in many parallel streams; resumes by itself"),
    "train-single": ("atomnative.cli.train_single", "train with the single-stream reference form"),
    "chat": ("atomnative.cli.chat", "let a trained model go on with a text, or talk to it"),
}

HELP = "\n".join(
    [
        "atomnative: train and run tokenizer-free language models on raw bytes.",
        "",
        "usage: atomnative COMMAND [options]      (atomnative COMMAND --help lists the options)",
        "",
        *(f"  {name:<14}{summary}" for name, (_, summary) in COMMANDS.items()),
        "",
        "To begin:",
        "  atomnative train --data my.txt --output-dir runs/mine",
        "  atomnative chat --checkpoint runs/mine --raw --prompt 'Once upon'",
    ]
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 for a user's error (one line on stderr), 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace"), (sys.stderr, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(HELP)
        raise SystemExit(0 if arguments else 2)
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"atomnative {version('atomnative')}")
        raise SystemExit(0)
    try:
        if arguments[0] not in COMMANDS:
            raise UserError(f"unknown command {arguments[0]!r}: use one of {', '.join(COMMANDS)}")
        importlib.import_module(COMMANDS[arguments[0]][0]).main(arguments[1:])
    except UserError as error:
        print(f"atomnative: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would fail again
        raise SystemExit(141) from None
    except OSError as error:
        print(f"atomnative: cannot go on: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("atomnative: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
