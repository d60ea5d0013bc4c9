"""`atomnative train-single`."""

from collections.abc import Sequence
from functools import partial

from atomnative.cli.parse import parse_run
from atomnative.training.config import SingleConfig
from atomnative.training.run import run_single


def main(argv: Sequence[str]) -> None:
    config, start = parse_run(SingleConfig, argv, "atomnative train-single")
    run_single(config, start, say=partial(print, flush=True))
