"""`B` byte streams at once, with their features (design 1.4)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from atomnative.data.atomizer import Atomizer, byte_tick_feature_table
from atomnative.data.corpus import ByteCorpus, check_same_corpus
from atomnative.data.features import (
    LIVE_COLUMNS,
    N_LIVE,
    N_SKETCH,
    cosine_column,
    next_sketch,
    phase_columns,
    sketch_norm,
)
from atomnative.errors import ConfigError

# Legend: K ticks, B streams.


class BatchedByteStream:
    """`B` cursors on a circular corpus at absolute, ever-growing positions; each tick moves every one by a byte.

    Args:
        corpus: the bytes.
        batch_size: `B`, at least 1.
        offsets: first position of each stream; by default `b * total // B`.
        chunk: bytes read from the corpus at a time for each stream.
        pack_mode, phase_period: of the `Atomizer` whose byte-tick features these are.
        warmup: bytes before each non-zero offset (around the corpus's end where needed) that are run through the
            feature context only.
        device: where the tensors are put.

    From a fresh context the features equal `Atomizer(max_span_bytes=1, ...)`'s bit for bit.

    Raises:
        ConfigError: a size below 1, negative offsets, or not one offset a stream.
    """

    def __init__(
        self,
        corpus: ByteCorpus,
        batch_size: int,
        *,
        offsets: Sequence[int] | None = None,
        chunk: int = 4096,
        pack_mode: str = "linguistic",
        phase_period: float = 256.0,
        warmup: int = 64,
        device: str | torch.device = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        if chunk < 1:
            raise ConfigError(f"chunk must be at least 1, not {chunk}")
        if warmup < 0:
            raise ConfigError(f"warmup must not be negative, not {warmup}")
        if offsets is None:
            offsets = [b * corpus.total // batch_size for b in range(batch_size)]
        if len(offsets) != batch_size:
            raise ConfigError(f"{len(offsets)} offsets for {batch_size} streams: give one for each")
        if min(offsets) < 0:
            raise ConfigError(f"offset {min(offsets)} is negative: positions start at 0")
        Atomizer(1, phase_period, pack_mode)  # refuses what it would refuse
        self.corpus = corpus
        self.batch_size = batch_size
        self.pos = np.array(offsets, dtype=np.int64)  # [B]
        self._chunk = chunk
        self._phase_period = float(phase_period)
        self._device = torch.device(device)
        self._table = byte_tick_feature_table()  # [256, 320]
        self._start = np.zeros(batch_size, dtype=np.int64)  # [B], bytes since the context began
        self._sketch = np.zeros((batch_size, N_SKETCH), dtype=np.float32)  # [B, 16]
        self._drop_buffer()
        for b, offset in enumerate(offsets):
            if offset and warmup:
                self._warm_up(b, corpus.read((offset - warmup) % corpus.total, warmup))

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One tick: `(current int64[B], features float32[B, 320], target int64[B])`."""
        current, features, target = self.next_window(1)
        return current[0], features[0], target[0]

    def next_window(self, ticks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`K` ticks: `(current int64[K, B], features float32[K, B, 320], target int64[K, B])`."""
        current, live, target = self.next_compact_window(ticks)
        return current, expand_features(self._table.to(self._device), current, live), target

    def next_compact_window(self, ticks: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`next_window` with the features as their live columns alone, float32[K, B, 20].

        A feature row is the byte's row of `byte_tick_feature_table()` with these written over `LIVE_COLUMNS`.
        """
        if ticks < 1:
            raise ConfigError(f"a window needs at least 1 tick, not {ticks}")
        window = self._take(ticks)  # [K+1, B]
        live = self._live(window[:-1])
        values = torch.from_numpy(window.astype(np.int64))
        return values[:-1].to(self._device), torch.from_numpy(live).to(self._device), values[1:].to(self._device)

    def state_dict(self) -> dict[str, Any]:
        """Corpus signature, positions and feature contexts: everything the next tick depends on."""
        return {
            "corpus": self.corpus.signature(),
            "pos": torch.from_numpy(self.pos.copy()),
            "start": torch.from_numpy(self._start.copy()),
            "sketch": torch.from_numpy(self._sketch.copy()),
        }

    def load_state_dict(self, state: Mapping[str, Any], strict_corpus: bool = True) -> None:
        """Go on exactly where `state_dict()` was taken.

        Raises:
            ConfigError: another number of streams.
            ValueError: a damaged state.
            CorpusError: the corpus changed, and `strict_corpus`.
        """
        saved = len(state["pos"])
        if not saved == len(state["start"]) == len(state["sketch"]) or state["sketch"].shape[1:] != (N_SKETCH,):
            raise ValueError("the stream state's parts do not fit one another")
        if saved != self.batch_size:
            raise ConfigError(f"the state has {saved} streams, this run {self.batch_size}: use batch size {saved}")
        if strict_corpus:
            check_same_corpus(state["corpus"], self.corpus)
        self.pos = state["pos"].to(torch.int64).numpy().copy()
        self._start = state["start"].to(torch.int64).numpy().copy()
        self._sketch = state["sketch"].to(torch.float32).numpy().copy()
        self._drop_buffer()

    def _drop_buffer(self) -> None:
        self._buffer = np.empty((0, self.batch_size), dtype=np.uint8)  # [read ahead, B]
        self._cursor = 0

    def _take(self, ticks: int) -> np.ndarray:
        """The next `K + 1` bytes of each stream, and move by `K`. uint8[K+1, B]."""
        if self._cursor + ticks + 1 > len(self._buffer):
            count = max(self._chunk, ticks) + 1
            self._buffer = np.stack([self.corpus.read(int(pos), count) for pos in self.pos], axis=1)
            self._cursor = 0
        window = self._buffer[self._cursor : self._cursor + ticks + 1]
        self._cursor += ticks
        self.pos = self.pos + ticks
        return window

    def _live(self, current: np.ndarray) -> np.ndarray:
        """The live columns of `K` ticks, and move the contexts past them. uint8[K, B] -> float32[K, B, 20]."""
        ticks = len(current)
        nibbles = current & 15  # [K, B]
        one_hot = np.eye(N_SKETCH, dtype=np.float32)[nibbles]  # [K, B, 16], each byte's g
        sketches = np.empty_like(one_hot)
        sketch = self._sketch
        for t in range(ticks):
            sketches[t] = sketch
            sketch = next_sketch(sketch, one_hot[t])
        starts = self._start + np.arange(ticks)[:, None]  # [K, B]

        live = np.empty((*current.shape, N_LIVE), dtype=np.float32)
        live[..., 0:2] = phase_columns(starts, self._phase_period)
        live[..., 2] = starts > 0  # the packet before was one byte of a bound of one
        dot = np.take_along_axis(sketches, nibbles[..., None].astype(np.int64), axis=-1)[..., 0]
        live[..., 3] = cosine_column(dot, np.ones_like(dot), sketch_norm(sketches))
        live[..., 4:] = sketches
        self._sketch = sketch
        self._start = self._start + ticks
        return live

    def _warm_up(self, b: int, before: np.ndarray) -> None:
        one_hot = np.eye(N_SKETCH, dtype=np.float32)[before & 15]
        for g in one_hot:
            self._sketch[b] = next_sketch(self._sketch[b], g)
        self._start[b] = len(before)


def expand_features(table: torch.Tensor, current: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Whole feature rows. Table [256, 320], current int64[...], live [..., 20] -> [..., 320]."""
    features = table[current]
    features[..., list(LIVE_COLUMNS)] = live
    return features
