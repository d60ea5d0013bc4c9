"""`atomnative train`."""

from collections.abc import Sequence
from functools import partial

from atomnative.cli.parse import parse_run
from atomnative.training.config import TrainConfig
from atomnative.training.run import run_batched


def main(argv: Sequence[str]) -> None:
    config, start = parse_run(TrainConfig, argv, "atomnative train")
    run_batched(config, start, say=partial(print, flush=True))
