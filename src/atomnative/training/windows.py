"""The two ways of advancing a model by a window: `B` streams at once, or one packet after another.

Both give the loop the same thing, so there is one loop.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from atomnative.data.source import StreamingPacketSource
from atomnative.data.stream import BatchedByteStream
from atomnative.errors import CheckpointError, UserError
from atomnative.model.protocol import ByteModel, StreamBatch
from atomnative.training.clock import is_due


class WindowLoss(NamedTuple):
    """What a window cost.

    Attributes:
        ticks: ticks advanced; fewer than asked for only where the data ended.
        loss: mean over ticks and streams, in nats, with its graph; None where no tick was left.
        byte_loss: mean cross-entropy of the bytes alone, in nats.
    """

    ticks: int
    loss: torch.Tensor | None
    byte_loss: float


class Windows(Protocol):
    """A model on its data, advanced by windows; its state is part of a checkpoint."""

    batch_size: int

    @property
    def ticks(self) -> int:
        """Ticks of the run that the state has gone through, also in the middle of a window that failed."""
        ...

    def advance(self, ticks: int) -> WindowLoss: ...

    def detach(self) -> None: ...

    def end_episode(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], tick: int) -> bool:
        """Go on from a checkpoint's `training` section at `tick`; False where it holds no such state: begin afresh."""
        ...

    def recent_bytes(self, count: int) -> bytes:
        """The last bytes seen by the first stream."""
        ...

    def close(self) -> None: ...


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    """A saved state with parts missing or of another kind is a CheckpointError; one that says what is wrong stays."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's {what} state is unreadable ({error})") from error


class BatchedWindows:
    """`B` parallel streams through the batched form."""

    def __init__(self, stream: BatchedByteStream, streams: StreamBatch) -> None:
        self.batch_size = stream.batch_size
        self._stream = stream
        self._streams = streams

    @property
    def ticks(self) -> int:
        return self._streams.ticks

    def advance(self, ticks: int) -> WindowLoss:
        out = self._streams.run_window(*self._stream.next_compact_window(ticks))
        return WindowLoss(ticks, out["loss"].mean(), float(out["byte_loss"].detach().mean()))

    def detach(self) -> None:
        self._streams.detach_field_graph()

    def end_episode(self) -> None:
        self._streams.reset_state()

    def state_dict(self) -> dict[str, Any]:
        return {"batched": {"runtime": self._streams.state_dict(), "stream": self._stream.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any], tick: int) -> bool:
        saved = state.get("batched")
        if saved is None:
            self._streams.ticks = tick
            return False
        with _readable("stream"):
            self._stream.load_state_dict(saved["stream"])
            self._streams.load_state_dict(saved["runtime"])
        return True

    def recent_bytes(self, count: int) -> bytes:
        end = int(self._stream.pos[0]) + 1
        return self._stream.corpus.read(max(0, end - count), min(count, end)).tobytes()

    def close(self) -> None:
        self._stream.corpus.close()


class SingleWindows:
    """One packet after another through the single-stream form."""

    batch_size = 1

    def __init__(self, source: StreamingPacketSource, model: ByteModel, atom_flush_every: int) -> None:
        self._source = source
        self._model = model
        self._atom_flush_every = atom_flush_every
        self._ticks = 0

    @property
    def ticks(self) -> int:
        return self._ticks

    def advance(self, ticks: int) -> WindowLoss:
        losses: list[torch.Tensor] = []
        byte_losses: list[float] = []
        for current, target in self._source:
            loss, info = self._model.transition_loss(current, target)
            losses.append(loss)
            byte_losses.append(float(info["byte_loss"].detach()))
            self._ticks += 1
            if is_due(self._ticks, self._atom_flush_every):
                self._model.flush_atoms()
            if len(losses) == ticks:
                break
        if not losses:
            return WindowLoss(0, None, 0.0)
        return WindowLoss(len(losses), torch.stack(losses).mean(), sum(byte_losses) / len(byte_losses))

    def detach(self) -> None:
        self._model.detach_field_graph()

    def end_episode(self) -> None:
        self._model.reset_state(reset_atomizer=False)

    def state_dict(self) -> dict[str, Any]:
        return {"source": self._source.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], tick: int) -> bool:
        self._ticks = tick
        saved = state.get("source")
        if saved is None:
            return False
        with _readable("source"):
            self._source.load_state_dict(saved)
        return True

    def recent_bytes(self, count: int) -> bytes:
        return b"".join(packet.payload for packet in self._source.recent)[-count:]

    def close(self) -> None:
        self._source.close()
