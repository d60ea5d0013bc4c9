"""What every test gets: one thread, deterministic operations, fresh memory full of NaN, global state restored."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

# What a shell starts in the background ignores Ctrl-C, and so would every command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def strict_torch() -> Iterator[None]:
    """Deterministic algorithms also fill fresh memory with NaN, so that reading it shows."""
    threads, dtype, random = torch.get_num_threads(), torch.get_default_dtype(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_rng_state(random)


@pytest.fixture
def make_shards(tmp_path: Path) -> Callable[..., list[Path]]:
    """Writes each of the given byte strings as a shard and returns the paths in order."""

    def make(*contents: bytes) -> list[Path]:
        paths = [tmp_path / f"shard_{index}.bin" for index in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return paths

    return make
