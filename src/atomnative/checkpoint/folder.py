"""The checkpoints of a run folder: which is the newest that can be read."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atomnative.checkpoint.file import read_checkpoint
from atomnative.errors import CheckpointError

_NAME = re.compile(r"atom_native_step_(\d+)(_batched)?\.pt")


def checkpoint_name(ticks: int, *, batched: bool) -> str:
    return f"atom_native_step_{ticks}{'_batched' if batched else ''}.pt"


def ticks_of(content: dict[str, Any]) -> int:
    """The run's ticks when the checkpoint was written; 0 for bare weights."""
    training = content["training"]
    return 0 if training is None else int(training["step"])


def newest_checkpoint(folder: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The good checkpoint of most ticks in `folder`, and its content; each damaged one passed over is a `warn`.

    None where the folder does not exist or holds no checkpoint file.

    Raises:
        CheckpointError: there are checkpoint files, and none is good.
    """
    named: list[tuple[int, Path]] = []
    others: list[tuple[int, Path, dict[str, Any]]] = []
    problems: list[CheckpointError] = []
    for path in sorted(folder.glob("*.pt")):
        match = _NAME.fullmatch(path.name)
        if match:
            named.append((int(match[1]), path))
            continue
        try:
            content = read_checkpoint(path)
        except CheckpointError as error:
            problems.append(error)
            continue
        others.append((ticks_of(content), path, content))

    best_other = max(others, key=lambda found: found[0], default=None)
    for ticks, path in sorted(named, reverse=True):
        if best_other is not None and best_other[0] >= ticks:
            break
        try:
            content = read_checkpoint(path)
        except CheckpointError as error:
            problems.append(error)
            continue
        _warn_all(problems, warn)
        return path, content
    if best_other is not None:
        _warn_all(problems, warn)
        return best_other[1], best_other[2]
    if problems:
        raise CheckpointError(f"no good checkpoint in {folder}: {problems[0]}")
    return None


def _warn_all(problems: list[CheckpointError], warn: Callable[[str], None]) -> None:
    for problem in problems:
        warn(f"skipped: {problem}")


def find_checkpoint(path: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]]:
    """A checkpoint named as a file, or as a run folder whose newest good one is meant.

    Raises:
        CheckpointError: no such file or folder, or no good checkpoint there.
    """
    if not path.is_dir():
        return path, read_checkpoint(path)
    found = newest_checkpoint(path, warn)
    if found is None:
        raise CheckpointError(f"no checkpoint in {path}: name a run folder or a .pt file")
    return found
