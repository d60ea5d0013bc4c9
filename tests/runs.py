"""Small training runs inside the test's own process, and their checkpoints compared bit for bit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atomnative.checkpoint.file import read_checkpoint
from atomnative.training.config import SingleConfig, TrainConfig
from atomnative.training.run import find_start, run_batched, run_single

TINY = TrainConfig(
    arch="atom",
    d_model=6,
    n_modes=5,
    n_atoms_max=32,
    atom_flush_every=16,
    field_bptt=7,
    batch_size=3,
    total_ticks=160,
    ckpt_every=60,
    episode_length=50,
    last_atom_dropout=0.5,
    field_loss_weight=0.1,
    field_max_rms=0.3,
    warmup_ticks=20,
    lr_schedule="cosine",
    log_every=1000,
    samples=False,
)
"""A run in which all happens: windows cut by episodes and checkpoints, flushes in windows, dropout, a limiter."""

TINY_STACK = TrainConfig(
    arch="stack",
    depth=2,
    width=10,
    d_model=6,
    n_modes=5,
    field_bptt=7,
    batch_size=3,
    total_ticks=160,
    ckpt_every=60,
    episode_length=50,
    field_max_rms=0.3,
    warmup_ticks=20,
    lr_schedule="cosine",
    log_every=1000,
    samples=False,
)

TINY_SINGLE = SingleConfig(
    arch="atom",
    field_leak_learnable=True,
    d_model=6,
    n_modes=5,
    n_atoms_max=32,
    atom_flush_every=16,
    field_bptt=7,
    last_atom_dropout=0.5,
    field_loss_weight=0.1,
    episode_length=50,
    warmup_ticks=20,
    chunk_bytes=64,
    log_every=1000,
)


TINY_SINGLE_STACK = SingleConfig(
    arch="stack",
    depth=2,
    width=10,
    d_model=6,
    n_modes=5,
    field_bptt=7,
    field_max_rms=0.3,
    episode_length=50,
    warmup_ticks=20,
    chunk_bytes=64,
    log_every=1000,
)


def train(folder: Path, shards: Sequence[Path], config: TrainConfig = TINY, **changes: Any) -> list[str]:
    """One start of a batched run; gives what it said."""
    said: list[str] = []
    config = replace(config, data=tuple(map(str, shards)), output_dir=folder, **changes)
    run_batched(config, find_start(config), said.append)
    return said


def train_single(folder: Path, shards: Sequence[Path], config: SingleConfig = TINY_SINGLE, **changes: Any) -> list[str]:
    """One start of a single-stream run; gives what it said."""
    said: list[str] = []
    config = replace(config, data=tuple(map(str, shards)), output_dir=folder, **changes)
    run_single(config, find_start(config), said.append)
    return said


def checkpoint(folder: Path, ticks: int, batched: bool = True) -> dict[str, Any]:
    return read_checkpoint(folder / f"atom_native_step_{ticks}{'_batched' if batched else ''}.pt")


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """The entries in which two checkpoints differ in a single bit."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return [f"{where}: {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [found for key in a for found in differences(a[key], b[key], f"{where}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{where}: {len(a)} and {len(b)} entries"]
        pairs = enumerate(zip(a, b, strict=True))
        return [found for i, (x, y) in pairs for found in differences(x, y, f"{where}[{i}]")]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [where]
    return [] if type(a) is type(b) and a == b else [f"{where}: {a!r} and {b!r}"]
