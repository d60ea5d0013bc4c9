"""Corpora to try: any cut of any bytes into shards, on disk for as long as a block lasts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import strategies as st

MakeShards = Callable[..., list[Path]]

SHARDS = st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=5).filter(lambda s: sum(map(len, s)) >= 2)


@contextmanager
def on_disk(contents: Sequence[bytes]) -> Iterator[list[Path]]:
    """A folder of its own for each example, which `tmp_path` would not give."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"shard_{index}.bin") for index in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        yield paths


def around(contents: Sequence[bytes], pos: int, n: int) -> bytes:
    """`n` bytes from `pos` of the shards as one circle, one by one."""
    circle = b"".join(contents)
    return bytes(circle[(pos + i) % len(circle)] for i in range(n))
