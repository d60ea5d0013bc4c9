"""What trainers, checkpoints, evaluation and chat may know of a model; every architecture offers it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from atomnative.checkpoint.file import FORMAT, read_checkpoint, write_checkpoint
from atomnative.data.atomizer import Atomizer, AtomPacket
from atomnative.errors import CheckpointError

# Legend: K ticks, B streams.


class StreamBatch(Protocol):
    """The running state of `B` streams on shared weights, advanced by windows.

    Attributes:
        ticks: ticks of the run so far; it decides when atoms are flushed, and a reset leaves it alone.
    """

    batch_size: int
    ticks: int

    def run_window(
        self, current: torch.Tensor, features: torch.Tensor, target: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Advance by `K` ticks: `byte_logits` [K, B, 256], `loss` and `byte_loss` [K, B]."""
        ...

    def reset_state(self, mask: torch.Tensor | None = None) -> None:
        """Start an episode in all streams, or in those where the mask, bool[B], is true."""
        ...

    def detach_field_graph(self) -> None:
        """Cut the gradients' way back: later windows do not train earlier ones."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict()` was taken; CheckpointError where it does not fit."""
        ...


class ByteModel(nn.Module, ABC):
    """The weights of an architecture, with its single stream: one packet after another.

    Attributes:
        arch: the architecture's name in checkpoints.
        shape: the options that decide the shapes of the weights.
        atomizer: how the single stream cuts bytes into packets.
        field_bptt: ticks of a training window; 0: a tick trains only itself.
    """

    arch: ClassVar[str]
    shape: ClassVar[tuple[str, ...]]
    atomizer: Atomizer
    field_bptt: int

    @classmethod
    @abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> "ByteModel":
        """A fresh model from what `options()` gave."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Everything that decides shape and computation, as plain values."""

    @abstractmethod
    def sections(self) -> dict[str, Any]:
        """Weights and single-stream state, as the sections of a checkpoint."""

    @abstractmethod
    def load_sections(self, content: Mapping[str, Any]) -> None:
        """Take `sections()` and `options()` over; CheckpointError, and nothing changed, where they do not fit."""

    @abstractmethod
    def streams(self, batch_size: int, atom_flush_every: int) -> StreamBatch:
        """`B` fresh streams on these weights."""

    @abstractmethod
    def check_available(self) -> None:
        """NotAvailableYet, ConfigError: the settings ask the single stream for what it cannot compute."""

    @abstractmethod
    def transition_loss(self, current: AtomPacket, target: AtomPacket) -> tuple[torch.Tensor, dict[str, Any]]:
        """One tick of the single stream and its loss; the info has `byte_loss` and `surface.byte_logits`."""

    @abstractmethod
    def next_byte_logits(self, packet: AtomPacket) -> torch.Tensor:
        """One tick of the single stream without a target: logits of the next packet's bytes, [L, 256]."""

    @abstractmethod
    def reset_state(self, reset_atomizer: bool = True) -> None:
        """Start an episode of the single stream."""

    @abstractmethod
    def flush_atoms(self) -> None:
        """Forget the single stream's living atoms, not its field."""

    @abstractmethod
    def detach_field_graph(self) -> None:
        """Cut the single stream's gradients' way back."""

    @abstractmethod
    def stabilize_dynamics_parameters(self) -> None:
        """Bring the trained scalars back into their bounds, after an optimizer step."""

    @abstractmethod
    def is_readout(self, parameter_name: str) -> bool:
        """Whether a parameter belongs to the readout, which may have a learning rate of its own."""

    def checkpoint(self, training: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The content of a checkpoint file; without `training`, bare weights."""
        config = {"arch": self.arch, **self.options()}
        return {"format": FORMAT, **self.sections(), "config": config, "training": training}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, settings and the single stream's state; the file appears whole or not at all."""
        write_checkpoint(path, self.checkpoint())

    def load(self, path: str | os.PathLike[str]) -> "ByteModel":
        """Take weights, settings and single-stream state from any checkpoint of this shape.

        Raises:
            CheckpointError: an unreadable file, another architecture or shape; the model is then as before.
        """
        content = read_checkpoint(path)
        if content["config"].get("arch") != self.arch:
            raise CheckpointError(f"{path} holds architecture {content['config'].get('arch')!r}, not {self.arch!r}")
        self.load_sections(content)
        return self
