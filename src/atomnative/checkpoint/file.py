"""One checkpoint file: written whole or not at all, read as tensors and plain values or refused."""

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from atomnative.checkpoint.seal import is_broken, seal
from atomnative.errors import CheckpointError, RunFolderError

FORMAT = 1
"""Version of the layout below; a reader refuses a newer one."""

COMMON: dict[str, type | tuple[type, ...]] = {"format": int, "config": Mapping, "training": (Mapping, type(None))}
"""What every checkpoint has beside the sections of its architecture; `training` is None for bare weights."""


_ABSENT = object()


def write_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write `content` beside `path`, force it to the disk, and rename it into place.

    Raises:
        RunFolderError: the folder cannot be written; what stood at `path` before still stands.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            with open(beside, "w+b") as file:
                torch.save(dict(content), file)
                seal(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise
        _sync_folder(target.parent)
    except (OSError, RuntimeError) as error:  # torch raises the latter where a write comes up short
        reason = error.strerror if isinstance(error, OSError) else "the disk took only a part of it"
        raise RunFolderError(
            f"checkpoint {target} cannot be written ({reason}): make room or choose another folder"
        ) from error


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU. Nothing in the file is ever run.

    Raises:
        CheckpointError: no such file, not a checkpoint, damaged, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise CheckpointError(f"checkpoint {path} {what}: check the path")
    try:
        # torch checks no checksums itself. The records' own are all that a file without a seal has.
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            if is_broken(file, archive.comment) or archive.testzip() is not None:
                raise CheckpointError(f"checkpoint {path} is damaged (its checksum differs): use an older one")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except PermissionError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read ({error.strerror}): check its permissions") from error
    except Exception as error:  # any byte may be wrong, so anything may be raised
        raise CheckpointError(f"checkpoint {path} is cut short, damaged or no checkpoint: use another one") from error
    _check_common(path, content)
    return content


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Whatever is found wrong inside the checkpoint is said with its path."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path} does not fit: {error}; use another one") from error


def _check_common(path: Path, content: object) -> None:
    problem = None
    if not isinstance(content, dict):
        problem = f"it holds a {type(content).__name__}"
    else:
        for name, kind in COMMON.items():
            if not isinstance(content.get(name, _ABSENT), kind):
                problem = f"its {name!r} is missing or of another kind"
                break
        training = content.get("training")
        if problem is None and training is not None:
            step, settings = training.get("step"), training.get("settings", {})
            if not isinstance(step, int) or step < 0:
                problem = f"its training.step is {step!r}"
            elif not isinstance(settings, Mapping):
                problem = "its training.settings is no table"
    if problem is not None:
        raise CheckpointError(f"{path} is not an atomnative checkpoint ({problem}): use another file")
    saved = content["format"]  # type: ignore[index]  # a dict, by now
    if saved > FORMAT:
        raise CheckpointError(f"{path} has format {saved}, this program reads up to {FORMAT}: update atomnative")


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
