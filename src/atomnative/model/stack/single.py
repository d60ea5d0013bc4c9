"""The single-stream form of the stack: the readable reference, one byte after another, RK4 as written (design 5)."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from atomnative.checkpoint.tensors import check_like
from atomnative.data.atomizer import Atomizer, AtomPacket
from atomnative.errors import CheckpointError, ConfigError
from atomnative.model.field import FieldState
from atomnative.model.protocol import ByteModel
from atomnative.model.stack.batched import StackStreams
from atomnative.model.stack.config import StackConfig
from atomnative.model.stack.layer import StackLayer
from atomnative.model.stack.text import CONTEXT, NO_BYTE, TextInput

# Legend: D layers, w width, n modes, d channels.


class StackModel(ByteModel):
    """The `stack` architecture: its weights, and its single-stream form. It works byte by byte.

    Every option and its default is described in `StackConfig`; each is also an attribute.

    Attributes:
        state: the fields, `alpha` [D, n, d].
        last_byte: the byte of the last tick, or `NO_BYTE` at an episode's start.

    Raises:
        ConfigError: a setting out of its domain, or an atomizer whose packets may be longer than a byte.
    """

    arch = "stack"
    shape = ("depth", "width", "d_model", "n_modes")

    def __init__(
        self,
        depth: int = StackConfig.depth,
        width: int = StackConfig.width,
        d_model: int = StackConfig.d_model,
        n_modes: int = StackConfig.n_modes,
        *,
        atomizer: Atomizer | None = None,
        field_max_rms: float | None = StackConfig.field_max_rms,
        field_bptt: int = StackConfig.field_bptt,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name in StackConfig.__dataclass_fields__}
        config = StackConfig(**given).check()
        self.atomizer = Atomizer(max_span_bytes=1) if atomizer is None else atomizer
        if self.atomizer.max_span_bytes > 1:
            raise ConfigError(
                f"the stack works byte by byte: use Atomizer(max_span_bytes=1), not {self.atomizer.max_span_bytes}"
            )
        self.depth = config.depth
        self.width = config.width
        self.d_model = config.d_model
        self.n_modes = config.n_modes
        self.field_bptt = config.field_bptt
        self.text = TextInput(width)
        self.layers = nn.ModuleList(StackLayer(width, d_model, n_modes, field_max_rms) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.state = FieldState(depth, n_modes, d_model)
        self.last_byte = NO_BYTE

    # -- one tick ---------------------------------------------------------------------------------------------------

    def transition_loss(self, current: AtomPacket, target: AtomPacket) -> tuple[torch.Tensor, dict[str, Any]]:
        """One tick on `current`, and the loss of predicting `target`.

        Returns: the loss, a scalar in nats, and an info of tensors: `surface.byte_logits` [1, 256] and `byte_loss`.
        """
        logits = self.next_byte_logits(current)  # [1, 256]
        loss = F.cross_entropy(logits, torch.tensor([_only_byte(target)], device=logits.device))
        return loss, {"surface": {"byte_logits": logits}, "byte_loss": loss}

    def next_byte_logits(self, packet: AtomPacket) -> torch.Tensor:
        """One tick without a target: logits of the next byte, [1, 256]."""
        byte = _only_byte(packet)
        pair = torch.tensor([byte, self.last_byte], device=self.state.alpha.device)  # [2]
        h = self.text(pair[0], pair[1], packet.features[CONTEXT].to(self.state.alpha))  # [w]
        after = []
        for layer, alpha in zip(self.stack_layers(), self.state.alpha.unbind(0), strict=True):
            told = layer.signals(h)
            entered = layer.encoder(alpha, told.leak, told.g, told.r)  # [n, d]
            moved = layer.dynamics(entered, told.r, told.beta)  # [n, d]
            h = layer.answer(h, layer.W_read(moved.flatten()), told.gate)  # [w]
            after.append(moved)
        self.state.alpha = torch.stack(after)  # [D, n, d]
        self.last_byte = byte
        return self.head(self.norm(h))[None]

    def check_available(self) -> None:
        """The single stream computes all that the stack has."""

    def stabilize_dynamics_parameters(self) -> None:
        """Clamp `eta` to [0.3, 0.95], `c` to [0, 2], `sigma` to [-1, 1] in every layer (design 2.3)."""
        for layer in self.stack_layers():
            layer.dynamics.stabilize()

    def is_readout(self, parameter_name: str) -> bool:
        return parameter_name.startswith(("head.", "norm."))

    def stack_layers(self) -> list[StackLayer]:
        """The layers, first to last."""
        return [layer for layer in self.layers if isinstance(layer, StackLayer)]

    # -- state ------------------------------------------------------------------------------------------------------

    def reset_state(self, reset_atomizer: bool = True) -> None:
        """Start an episode: fields to zero, and no byte before."""
        self.state.alpha = torch.zeros_like(self.state.alpha)
        self.last_byte = NO_BYTE
        if reset_atomizer:
            self.atomizer.reset()

    def flush_atoms(self) -> None:
        """The stack keeps no living atoms: nothing to forget."""

    def detach_field_graph(self) -> None:
        self.state.alpha = self.state.alpha.detach()

    def streams(self, batch_size: int, atom_flush_every: int = 1) -> StackStreams:
        """`B` fresh streams; without living atoms there is nothing that `atom_flush_every` could change."""
        return StackStreams(self, batch_size)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "StackModel":
        known = {field.name for field in fields(StackConfig)}
        try:
            atomizer = Atomizer(**options["atomizer"]) if "atomizer" in options else None
            return cls(atomizer=atomizer, **{name: value for name, value in options.items() if name in known})
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint's config is not one of this program ({error})") from error

    def config(self) -> StackConfig:
        """The settings as they are now: attributes may have been changed since the model was built."""
        return StackConfig(
            depth=self.depth,
            width=self.width,
            d_model=self.d_model,
            n_modes=self.n_modes,
            field_max_rms=self.stack_layers()[0].dynamics.max_rms,
            field_bptt=self.field_bptt,
        )

    def options(self) -> dict[str, Any]:
        cut = self.atomizer
        atomizer = {
            "max_span_bytes": cut.max_span_bytes,
            "phase_period": cut.phase_period,
            "pack_mode": cut.pack_mode,
        }
        return {**asdict(self.config()), "atomizer": atomizer}

    def sections(self) -> dict[str, Any]:
        return {
            "stack": {name: parameter.detach() for name, parameter in self.named_parameters()},
            "state": {"alpha": self.state.alpha.detach(), "last_byte": torch.tensor(self.last_byte)},
        }

    def load_sections(self, content: Mapping[str, Any]) -> None:
        twin = self.from_options(content["config"])
        theirs, mine = twin.options(), self.options()
        for name in self.shape:
            if theirs[name] != mine[name]:
                raise CheckpointError(
                    f"the checkpoint has {name} {theirs[name]}, this model {mine[name]}: use the same"
                )
        for name, tensors in self.sections().items():
            check_like(content.get(name), tensors, name)
        self.field_bptt = twin.field_bptt
        self.atomizer = twin.atomizer
        for layer in self.stack_layers():
            layer.dynamics.max_rms = theirs["field_max_rms"]
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(content["stack"][name])
        self.state.alpha = content["state"]["alpha"].to(self.state.alpha)
        self.last_byte = int(content["state"]["last_byte"])


def _only_byte(packet: AtomPacket) -> int:
    if len(packet.payload) != 1:
        raise ConfigError(f"the stack works byte by byte: a packet of {len(packet.payload)} bytes does not fit")
    return packet.payload[0]
