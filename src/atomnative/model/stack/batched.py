"""The window form of the stack: `B` parallel streams, `K` ticks at once, layer by layer (design 5)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from atomnative.checkpoint.tensors import check_like
from atomnative.data.atomizer import byte_tick_feature_table
from atomnative.data.features import N_FEATURES, N_LIVE
from atomnative.errors import CheckpointError, ConfigError
from atomnative.model.propagator import propagator
from atomnative.model.recurrence import field_recurrence
from atomnative.model.stack.layer import Signals, StackLayer
from atomnative.model.stack.text import CONTEXT, NO_BYTE

if TYPE_CHECKING:
    from atomnative.model.stack.single import StackModel

# Legend: K ticks, B streams, D layers, w width, n modes, d channels. Fields are kept [.., d, n]: see `recurrence`.


class StackStreams:
    """`B` streams on the weights of a `StackModel`.

    Args:
        model: the weights and settings.
        batch_size: `B`, at least 1.

    Attributes:
        ticks: ticks of the run so far; a reset leaves it alone.
    """

    def __init__(self, model: "StackModel", batch_size: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        self.model = model
        self.batch_size = batch_size
        self.ticks = 0
        self._boundary_columns = byte_tick_feature_table()[:, 302:304].to(model.state.alpha)  # [256, 2]
        self.reset_state()

    @property
    def alpha(self) -> torch.Tensor:
        """The fields, [B, D, n, d]."""
        return torch.stack(self._fields, dim=1).transpose(-1, -2)

    def run_window(
        self, current: torch.Tensor, features: torch.Tensor, target: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """`K` ticks of every stream.

        Gradients flow back through earlier windows too, until `detach_field_graph()`: call it after each `backward()`.

        Args:
            current, target: bytes, int64[K, B].
            features: whole rows [K, B, 320], or their live columns alone [K, B, 20].

        Returns: `byte_logits` [K, B, 256]; `loss` and `byte_loss` [K, B], in nats.
        """
        model = self.model
        before = torch.cat([self._last_byte[None], current[:-1]])  # [K, B]
        h = model.text(current, before, self._x_live(current, features))  # [K, B, w]
        for index, layer in enumerate(model.stack_layers()):
            told = layer.signals(h)
            states = self._advance(layer, self._fields[index], told)  # [K, B, d, n]
            W_read = layer.W_read.weight.unflatten(1, (-1, told.r.shape[-1])).transpose(1, 2).flatten(1)  # [d, d n]
            h = layer.answer(h, F.linear(states.flatten(-2), W_read), told.gate)  # [K, B, w]
            self._fields[index] = states[-1].clone()  # in memory of its own: products may round by where it lies
        logits = model.head(model.norm(h))  # [K, B, 256]
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(len(current), -1)
        self._last_byte = current[-1].clone()
        self.ticks += len(current)
        return {"byte_logits": logits, "loss": loss, "byte_loss": loss}

    # -- the parts of a window --------------------------------------------------------------------------------------

    def _x_live(self, current: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Columns 300:320, [K, B, 20]; of the live columns alone, two are not among them and two are not live."""
        features = features.to(self._boundary_columns)
        if features.shape[-1] == N_FEATURES:
            return features[..., CONTEXT]
        if features.shape[-1] != N_LIVE:
            raise ConfigError(f"features have {features.shape[-1]} columns: give all {N_FEATURES} or the {N_LIVE} live")
        boundary = F.embedding(current, self._boundary_columns)  # [K, B, 2]
        return torch.cat([features[..., 2:4], boundary, features[..., 4:]], dim=-1)

    @staticmethod
    def _advance(layer: StackLayer, field: torch.Tensor, told: Signals) -> torch.Tensor:
        """A layer's field after each tick, [K, B, d, n], from the one before the first, [B, d, n]."""
        dynamics = layer.dynamics
        sigma, eta, c = dynamics.phase_sync, dynamics.energy_decay, dynamics.coupling_scale
        g, r, beta = told.g, told.r, told.beta
        move = propagator(sigma, eta, c, leak=torch.zeros_like(sigma), n=g.shape[-1])
        right = torch.stack([r, r * torch.cos(beta), r * torch.sin(beta)], dim=-1)  # [K, B, d, 3]
        rows = [g @ move.SP.T, move.q_cos.expand_as(g), -move.q_sin.expand_as(g)]
        left = torch.stack(rows, dim=-2)  # [K, B, 3, n]
        return field_recurrence(field, move.SP, right, left, dynamics.max_rms, keep=1.0 - told.leak)

    # -- state ------------------------------------------------------------------------------------------------------

    def reset_state(self, mask: torch.Tensor | None = None) -> None:
        """Start an episode in all streams, or where `mask`, bool[B], is true: fields to zero, and no byte before."""
        model = self.model
        like = model.state.alpha
        if mask is None:
            zeros = like.new_zeros(model.depth, self.batch_size, model.d_model, model.n_modes)
            self._fields = list(zeros.unbind(0))  # D of [B, d, n]
            self._last_byte = torch.full((self.batch_size,), NO_BYTE, device=like.device)  # [B]
            return
        mask = mask.to(like.device, torch.bool)
        self._fields = [field.masked_fill(mask[:, None, None], 0.0) for field in self._fields]
        self._last_byte = self._last_byte.masked_fill(mask, NO_BYTE)

    def detach_field_graph(self) -> None:
        """Later windows do not train earlier ones."""
        self._fields = [field.detach() for field in self._fields]

    def state_dict(self) -> dict[str, Any]:
        """Everything the next tick depends on beside the weights and the bytes."""
        return {"ticks": self.ticks, **{name: tensor.clone() for name, tensor in self._tensors().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on exactly where `state_dict()` was taken.

        Raises:
            CheckpointError: another number of streams, another shape, or no such state; nothing is then changed.
        """
        tensors = {name: value for name, value in state.items() if name != "ticks"}
        if not isinstance(state.get("ticks"), int):
            raise CheckpointError("the saved streams have no tick count: it is no state of this form")
        check_like(tensors, self._tensors(), "runtime")
        device = self._last_byte.device
        self.ticks = state["ticks"]
        self._fields = [field.mT.contiguous() for field in tensors["alpha"].to(device).unbind(1)]
        self._last_byte = tensors["last_byte"].to(device, copy=True)

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {"alpha": self.alpha.detach().contiguous(), "last_byte": self._last_byte}  # [B, D, n, d], [B]
