"""Shard files as one circular byte string (design 1.1)."""

import glob
import io
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from atomnative.errors import CorpusError, ShardNotFound

MAX_OPEN_SHARDS = 64
REMEDY = "; restore it, or begin another run"


def resolve_shard_paths(
    data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None = None, data_glob: str | None = None
) -> list[Path]:
    """The shards of a corpus: explicit files in their order, then the glob's matches sorted, none twice.

    Raises:
        ShardNotFound: a path that does not exist, a pattern that matches no file, or neither given.
    """
    if data is None:
        explicit: list[Path] = []
    elif isinstance(data, (str, os.PathLike)):
        explicit = [Path(data)]
    else:
        explicit = [Path(path) for path in data]
    for path in explicit:
        if not path.exists():
            raise ShardNotFound(f"data file {path} does not exist: check the path given to --data")

    matches: list[Path] = []
    if data_glob is not None:
        matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(data_glob), recursive=True))]
        matches = [match for match in matches if match.is_file()]
        if not matches:
            raise ShardNotFound(f"no file matches {data_glob!r}: check the pattern given to --data-glob")
    if not explicit and not matches:
        raise ShardNotFound("no data given: name files with --data or a pattern with --data-glob")

    unique: dict[str, Path] = {}
    for path in [*explicit, *matches]:
        unique.setdefault(os.path.realpath(path), path)
    return list(unique.values())


class ByteCorpus:
    """Ordered shards as one byte string of `total` bytes that begins again after its last byte.

    Shards are read by plain file reads and never mapped: a corpus of many GB costs no memory, not even in the
    process's resident size, and a shard that is cut short under a run is an error and not a SIGBUS.

    Args:
        paths: shard files, in order, or a single one.

    Attributes:
        paths: the shards, `list[str]`.
        sizes: bytes of each shard, `list[int]`.
        starts: absolute position of each shard's first byte, `list[int]`.
        total: bytes of all shards together.

    Raises:
        CorpusError: no file, a folder or unreadable file, an empty shard, or fewer than 2 bytes in all.
    """

    def __init__(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        alone = isinstance(paths, (str, os.PathLike))
        self.paths = [os.fspath(path) for path in ([paths] if alone else paths)]
        if not self.paths:
            raise CorpusError("a corpus needs at least one file")
        self.sizes = [_shard_size(path) for path in self.paths]
        ends = np.cumsum(self.sizes, dtype=np.int64).tolist()
        self.starts: list[int] = [0, *ends[:-1]]
        self.total: int = ends[-1]
        if self.total < 2:
            raise CorpusError(
                f"corpus of {self.total} byte ({self.paths[0]}): at least 2 bytes are needed, add more text"
            )
        self._open: OrderedDict[int, io.FileIO] = OrderedDict()

    def signature(self) -> dict[str, list[str] | list[int] | int]:
        """What tells this corpus from another: paths, sizes, total."""
        return {"paths": list(self.paths), "sizes": list(self.sizes), "total": self.total}

    def read(self, pos: int, n: int) -> np.ndarray:
        """`n` bytes from absolute position `pos >= 0`, around the end as often as needed.

        Returns: uint8[n].
        """
        if pos < 0 or n < 0:
            raise CorpusError(f"read({pos}, {n}): position and count must not be negative")
        if n > self.total:
            return np.resize(self.read(pos, self.total), n)
        out = np.empty(n, dtype=np.uint8)
        at = pos % self.total
        shard = bisect_right(self.starts, at) - 1
        filled = 0
        while filled < n:
            inside = at - self.starts[shard]
            count = min(n - filled, self.sizes[shard] - inside)
            self._read_into(shard, inside, out[filled : filled + count])
            filled += count
            shard = (shard + 1) % len(self.paths)
            at = self.starts[shard]
        return out

    def _read_into(self, shard: int, inside: int, out: np.ndarray) -> None:
        path = self.paths[shard]
        try:
            file = self._file(shard)
            file.seek(inside)
            filled = 0
            while filled < len(out):  # one call may give less, and above 2 GiB always does
                got = file.readinto(out[filled:].data)
                if not got:
                    break
                filled += got
        except OSError as error:
            raise CorpusError(f"shard {path} cannot be read ({error.strerror}): restore the file") from error
        if filled < len(out):
            raise CorpusError(
                f"shard {path} is shorter than the {self.sizes[shard]} bytes it had when opened: restore the file"
            )

    def _file(self, shard: int) -> io.FileIO:
        file = self._open.pop(shard, None)
        if file is None:
            file = io.FileIO(self.paths[shard])
            if len(self._open) >= MAX_OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open[shard] = file
        return file

    def close(self) -> None:
        """Close the shard files; a later read opens them again."""
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": OrderedDict()}


def check_same_corpus(saved: object, corpus: ByteCorpus) -> None:
    """Raise CorpusError, naming the first difference, unless `saved` is the signature of `corpus`."""
    now = corpus.signature()
    if saved == now:
        return
    if not isinstance(saved, dict) or set(saved) != set(now):
        raise CorpusError("the saved corpus signature is unreadable")
    if saved["paths"] != now["paths"]:
        old, new = _first_difference(saved["paths"], corpus.paths)
        raise CorpusError(f"the corpus changed since the state was saved: shard {old} then, {new} now{REMEDY}")
    for path, old, new in zip(corpus.paths, saved["sizes"], corpus.sizes, strict=True):
        if old != new:
            raise CorpusError(
                f"the corpus changed since the state was saved: {path} had {old} bytes, now {new}{REMEDY}"
            )


def _first_difference(old: Sequence[str], new: Sequence[str]) -> tuple[str, str]:
    for a, b in zip(old, new, strict=False):
        if a != b:
            return a, b
    return (f"{len(old)} files", f"{len(new)} files")


def _shard_size(path: str) -> int:
    if os.path.isdir(path):
        raise CorpusError(f"{path} is a folder, not a file: name its files, for example --data-glob '{path}/*.txt'")
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise CorpusError(
            f"shard {path} cannot be read ({error.strerror}): check the path and its permissions"
        ) from error
    if size == 0:
        raise CorpusError(f"shard {path} is empty: leave it out")
    return size
