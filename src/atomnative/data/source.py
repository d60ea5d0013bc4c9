"""One stream of `(current, target)` packets over the shards, for the single-stream trainer (design 1.3)."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from atomnative.data.atomizer import Atomizer, AtomPacket, code_point_length
from atomnative.data.corpus import ByteCorpus, check_same_corpus
from atomnative.errors import ConfigError

LONGEST_CODE_POINT = 4
PIECE_BYTES = 1024


class StreamingPacketSource:
    """An iterator of `(current, target)` packets, each target the current packet of the next pair.

    Shards are read in chunks that end at a UTF-8 code point; the atomizer is flushed at each shard's end.

    Args:
        atomizer: cuts the bytes; the source owns its context from here on.
        paths: the shards, in order.
        chunk_bytes: bytes read at a time, at least 4.
        loop: begin again after the last shard, for ever; otherwise stop there.
        buffer_size: how many of the last packets `recent` keeps, for validation.
        prefetch: read the next chunk on a thread.

    Attributes:
        recent: the last `buffer_size` packets given out, oldest first.

    Raises:
        CorpusError: as `ByteCorpus`.
        ConfigError: `chunk_bytes` below 4 or a negative `buffer_size`.
    """

    def __init__(
        self,
        atomizer: Atomizer,
        paths: Iterable[str | os.PathLike[str]],
        *,
        chunk_bytes: int = 1 << 20,
        loop: bool = True,
        buffer_size: int = 2048,
        prefetch: bool = True,
    ) -> None:
        if chunk_bytes < LONGEST_CODE_POINT:
            raise ConfigError(f"chunk_bytes must be at least {LONGEST_CODE_POINT}, not {chunk_bytes}")
        if buffer_size < 0:
            raise ConfigError(f"buffer_size must not be negative, not {buffer_size}")
        self.atomizer = atomizer
        self.corpus = ByteCorpus(paths)
        self.recent: deque[AtomPacket] = deque(maxlen=buffer_size)
        self._chunk_bytes = chunk_bytes
        self._loop = loop
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="atomnative-read") if prefetch else None
        self._ahead: Future[bytes] | None = None
        atomizer.reset()
        self._held: AtomPacket | None = None
        self._chunk = (0, 0, b"")  # shard, offset and bytes of the chunk in hand
        self._begin_piece(0, 0)

    def __iter__(self) -> Iterator[tuple[AtomPacket, AtomPacket]]:
        return self

    def __next__(self) -> tuple[AtomPacket, AtomPacket]:
        if self._held is None:
            self._held = self._next_packet()
        current, target = self._held, self._next_packet()
        self._held = target
        self.recent.append(current)
        return current, target

    def state_dict(self) -> dict[str, Any]:
        """Where the next pair comes from: a piece of a shard, the atomizer before it, packets used, the one held."""
        held = self._held
        return {
            "corpus": self.corpus.signature(),
            "chunk_bytes": self._chunk_bytes,
            "shard": self._shard,
            "offset": self._offset,
            "atomizer": self._atomizer_at_piece,
            "used": self._used,
            "held": None if held is None else dict(vars(held)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict()` was taken; `recent` begins empty.

        Raises:
            CorpusError: the corpus changed.
            ConfigError: another `chunk_bytes`.
        """
        check_same_corpus(state["corpus"], self.corpus)
        if state["chunk_bytes"] != self._chunk_bytes:
            raise ConfigError(
                f"chunk_bytes was {state['chunk_bytes']} when saved, {self._chunk_bytes} now: use the same"
            )
        self.recent.clear()
        self._held = None if state["held"] is None else AtomPacket(**state["held"])
        self.atomizer.load_state_dict(state["atomizer"])
        self._chunk = (0, 0, b"")
        self._begin_piece(int(state["shard"]), int(state["offset"]))
        if state["used"]:
            self._encode_piece()
            self._used = int(state["used"])

    def close(self) -> None:
        """Stop the reading thread and close the files."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
        self.corpus.close()

    def _next_packet(self) -> AtomPacket:
        while self._used >= len(self._packets):
            if self._length:
                if self._at_shard_end() and self._shard + 1 == len(self.corpus.paths) and not self._loop:
                    raise StopIteration
                self._begin_piece(*self._after(self._shard, self._offset + self._length))
            self._encode_piece()
        packet = self._packets[self._used]
        self._used += 1
        return packet

    def _begin_piece(self, shard: int, offset: int) -> None:
        self._shard, self._offset = shard, offset
        self._atomizer_at_piece = self.atomizer.state_dict()
        self._packets: list[AtomPacket] = []
        self._used = 0
        self._length = 0  # bytes encoded of the shard from the offset on; 0 before the piece is

    def _encode_piece(self) -> None:
        """Encode a little of the chunk: packets take far more time and memory than their bytes."""
        piece = self._chunk_at(self._shard, self._offset)[:PIECE_BYTES]
        self._length = len(piece)
        self._packets = self.atomizer.encode_bytes(piece, reset=False, flush=self._at_shard_end())

    def _chunk_at(self, shard: int, offset: int) -> bytes:
        """What is left from that position of the chunk in hand, or the next chunk where nothing is."""
        in_hand, begins, chunk = self._chunk
        if in_hand != shard or not begins <= offset < begins + len(chunk):
            begins, chunk = offset, self._read(shard, offset)
            self._chunk = (shard, begins, chunk)
            if self._reader is not None:
                self._ahead_at = self._after(shard, offset + len(chunk))
                self._ahead = self._reader.submit(self._read_chunk, *self._ahead_at)
        return chunk[offset - begins :]

    def _at_shard_end(self) -> bool:
        return self._offset + self._length >= self.corpus.sizes[self._shard]

    def _after(self, shard: int, end: int) -> tuple[int, int]:
        """Shard and offset of what follows the first `end` bytes of a shard, around the corpus's end."""
        return (shard, end) if end < self.corpus.sizes[shard] else ((shard + 1) % len(self.corpus.paths), 0)

    def _read(self, shard: int, offset: int) -> bytes:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            raw = ahead.result()
            if self._ahead_at == (shard, offset):
                return raw
        return self._read_chunk(shard, offset)

    def _read_chunk(self, shard: int, offset: int) -> bytes:
        left = self.corpus.sizes[shard] - offset
        raw = self.corpus.read(self.corpus.starts[shard] + offset, min(self._chunk_bytes, left)).tobytes()
        return raw if len(raw) == left else raw[: _whole_code_points(raw)]


def _whole_code_points(raw: bytes) -> int:
    """Bytes of `raw` without an unfinished UTF-8 code point at its end."""
    for at in range(max(0, len(raw) - LONGEST_CODE_POINT + 1), len(raw)):
        if at + code_point_length(raw, at) > len(raw):
            return at
    return len(raw)
