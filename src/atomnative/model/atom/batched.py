"""The batched form: `B` parallel streams, `K` ticks at once, equal to the reference (design section 3)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from atomnative.checkpoint.tensors import check_like
from atomnative.data.atomizer import byte_tick_feature_table
from atomnative.data.features import LIVE_COLUMNS, N_FEATURES, N_LIVE
from atomnative.data.stream import expand_features
from atomnative.errors import BatchedUnsupported, CheckpointError, ConfigError
from atomnative.model.atom.atoms import CONSOLIDATION_RATE, HISTORY_LOOKED_AT, HISTORY_NEEDED, stability
from atomnative.model.atom.compiler import Properties
from atomnative.model.atom.config import check_leak
from atomnative.model.atom.options import single_stream_options
from atomnative.model.atom.probes import field_summary, mean_and_std
from atomnative.model.field import channel_phases, limit
from atomnative.model.propagator import propagator
from atomnative.model.recurrence import field_recurrence

if TYPE_CHECKING:
    from atomnative.model.atom.single import AtomNativeModel

# Legend: K ticks, B streams, n modes, d channels. Fields are kept [.., d, n]: see `recurrence`.

NO_BYTE = -1


class BatchedByteTick:
    """`B` streams of byte ticks on the weights of an `AtomNativeModel`.

    Args:
        model: the weights and settings; in byte tick, without the options of design 2.8.
        batch_size: `B`, at least 1.
        atom_flush_every: atoms are flushed after each tick of the run that is a multiple of it, in the middle of a
            window too; from 1 to the model's `n_atoms_max`.

    Attributes:
        ticks: ticks of the run so far; a reset leaves it alone.
        persistence: slow memory, [B, d].

    Raises:
        BatchedUnsupported: an option that only the single-stream form has, or an `atom_flush_every` out of its bounds.
    """

    def __init__(self, model: "AtomNativeModel", batch_size: int, atom_flush_every: int) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, not {batch_size}")
        refuse_single_stream_options(model, atom_flush_every)
        self.model = model
        self.batch_size = batch_size
        self.atom_flush_every = atom_flush_every
        self.ticks = 0
        like = model.core.state.alpha
        d, n = model.d_model, model.n_modes
        table = byte_tick_feature_table().to(like)
        self._feature_table = table.clone()  # [256, 320]
        table[:, list(LIVE_COLUMNS)] = 0.0
        self._static_table = table  # [256, 320]
        self._live_columns = torch.tensor(LIVE_COLUMNS, device=like.device)
        self._J = model.surface.J.view(2 * d, n, d).transpose(1, 2).reshape(2 * d, d * n)  # [2d, d n]
        self.reset_state()

    @property
    def alpha(self) -> torch.Tensor:
        """The field, [B, n, d]."""
        return self._field.transpose(-1, -2)

    def step(
        self,
        current: torch.Tensor,
        features: torch.Tensor,
        target: torch.Tensor,
        dropout_mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """One tick: `run_window` with `K = 1`, without the leading axis on either side."""
        mask = None if dropout_mask is None else dropout_mask[None]
        out = self.run_window(current[None], features[None], target[None], mask)
        return {name: value[0] for name, value in out.items()}

    def run_window(
        self,
        current: torch.Tensor,
        features: torch.Tensor,
        target: torch.Tensor,
        dropout_mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """`K` ticks of every stream.

        With `field_bptt` above 0 gradients flow back through earlier windows too, until `detach_field_graph()`: call it
        after each `backward()`.

        Args:
            current, target: bytes, int64[K, B].
            features: whole rows [K, B, 320], or their live columns alone [K, B, 20].
            dropout_mask: bool[K, B], true where the last-atom term is dropped; None: drawn, in training.

        Returns: `byte_logits` [K, B, 256]; `loss` [K, B], in nats with every weighted term; `byte_loss` [K, B], the
            cross-entropy alone.
        """
        model = self.model
        refuse_single_stream_options(model, self.atom_flush_every)
        check_leak(model.field_leak_learnable, None, model.field_bptt)
        ticks = len(current)
        features = features.to(self._static_table)
        atom = self._compile(current, features)  # [K, B, d] each
        states = self._advance(atom)  # [K, B, d, n]
        if dropout_mask is None:
            dropout_mask = model.surface.draw_dropped(ticks, self.batch_size)
        if dropout_mask is not None:
            dropout_mask = dropout_mask.to(states.device, torch.bool)
        a = states.flatten(-2) @ self._J.T  # [K, B, 2d]
        segments = self._segments(ticks)
        before = self._bytes_before(current, segments)  # [K, B]
        logits = model.surface(a, current, before, atom.phi, dropout_mask)  # [K, B, 256]
        byte_loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(ticks, -1)
        persistence = self._consolidate(atom.energy, states, segments)  # [K, B, d]

        loss = byte_loss
        if model.field_loss_weight > 0:
            if model.field_probe is None:
                raise ConfigError("this model has no field_probe: build it with field_loss_weight above 0")
            mean, std = mean_and_std(states, dim=-1)  # [K, B, d] each
            z = field_summary(mean, std, persistence, atom.r)  # [K, B, 4d]
            whole = features.shape[-1] == N_FEATURES
            x = features if whole else expand_features(self._feature_table, current, features)  # [K, B, 320]
            loss = loss + model.field_loss_weight * model.field_probe.loss(z, x)
        last = states[-1].clone()  # in memory of its own: products may round by where their factors lie
        self._field = last if model.field_bptt > 0 else last.detach()
        self.ticks += ticks
        return {"byte_logits": logits, "loss": loss, "byte_loss": byte_loss}

    # -- the parts of a window --------------------------------------------------------------------------------------

    def _compile(self, current: torch.Tensor, features: torch.Tensor) -> Properties:
        """Features to properties, [K, B, d] each; the static part of the first layer is a row of 256."""
        compiler = self.model.compiler
        if features.shape[-1] == N_FEATURES:
            return compiler(features)
        if features.shape[-1] != N_LIVE:
            raise ConfigError(f"features have {features.shape[-1]} columns: give all {N_FEATURES} or the {N_LIVE} live")
        weight, bias = compiler.fc1.weight, compiler.fc1.bias
        rows = F.linear(self._static_table, weight, bias)  # [256, hidden]
        live = F.linear(features, weight[:, self._live_columns])  # [K, B, hidden]
        return compiler.properties(F.embedding(current, rows) + live)

    def _advance(self, atom: Properties) -> torch.Tensor:
        """The field after each tick, [K, B, d, n]."""
        model, dynamics = self.model, self.model.core.dynamics
        n = model.n_modes
        leak = model.leak()  # [n] or []
        move = propagator(dynamics.phase_sync, dynamics.energy_decay, dynamics.coupling_scale, leak, n)
        g = atom.bump(n)  # [K, B, n]
        beta = channel_phases(atom.r)  # [K, B, d]
        right = torch.stack([atom.r, atom.r * torch.cos(beta), atom.r * torch.sin(beta)], dim=-1)  # [K, B, d, 3]
        rows = [g @ move.SP.T, move.q_cos.expand_as(g), -move.q_sin.expand_as(g)]
        left = torch.stack(rows, dim=-2)  # [K, B, 3, n]
        if model.field_bptt > 0:
            return field_recurrence(self._field, move.W, right, left, dynamics.max_rms)

        with torch.no_grad():
            states = field_recurrence(self._field, move.W, right, left, dynamics.max_rms)
            earlier = torch.cat([self._field[None], states[:-1]])
            entering = (1.0 - leak) * earlier + atom.r[..., None] * g[..., None, :]  # [K, B, d, n]
        driven = right[..., 1:] @ torch.stack(rows[1:], dim=-2)
        return limit(entering @ move.SP.T + driven, dynamics.max_rms)

    def _segments(self, ticks: int) -> list[tuple[int, int, bool]]:
        """The window cut after each flush: first tick, tick past the last, and whether the atoms are flushed then."""
        cuts = [t for t in range(1, ticks + 1) if (self.ticks + t) % self.atom_flush_every == 0]
        ends = cuts if cuts and cuts[-1] == ticks else [*cuts, ticks]
        return [(start, end, end in cuts) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def _bytes_before(self, current: torch.Tensor, segments: list[tuple[int, int, bool]]) -> torch.Tensor:
        """The previous living atom's byte, or where there is none the byte itself. int64[K, B]"""
        before = torch.cat([self._last_byte[None], current[:-1]])  # [K, B]
        for start, _, _ in segments[1:]:
            before[start] = NO_BYTE
        flushed = segments[-1][2]
        self._last_byte = torch.full_like(current[-1], NO_BYTE) if flushed else current[-1].clone()
        return torch.where(before == NO_BYTE, current, before)

    @torch.no_grad()
    def _consolidate(
        self, energy: torch.Tensor, states: torch.Tensor, segments: list[tuple[int, int, bool]]
    ) -> torch.Tensor:
        """The slow memory after each tick, [K, B, d], from energies [K, B, d] and fields [K, B, d, n] (design 2.4)."""
        mean_field = states.mean(-1)  # [K, B, d]
        persistence = torch.empty_like(mean_field)
        for start, end, flushed in segments:
            weight = CONSOLIDATION_RATE * self._select(energy[start:end])  # [k, B, d]
            for t, weight_t in enumerate(weight.unbind(0), start):
                self.persistence = torch.lerp(self.persistence, mean_field[t], weight_t)  # [B, d]
                persistence[t] = self.persistence
            if flushed:
                self._flush_energies()
        return persistence

    def _select(self, energy: torch.Tensor) -> torch.Tensor:
        """Which channels consolidate, 0 or 1, at each of `k` ticks without a flush; the history moves past them.

        The sums run over ten shifted views, not over differences of running squares: those lose the small spreads.
        """
        ticks, depth = len(energy), HISTORY_LOOKED_AT
        steps = torch.arange(1, ticks + 1, device=energy.device)[:, None]  # [k, 1]
        alive = (self._energy_count + steps)[..., None]  # [k, B, 1]
        mean_energy = (self._energy_sum + energy.cumsum(0)) / alive  # [k, B, d]
        series = torch.cat([self._history, mean_energy])  # [10 + k, B, d]
        depths = torch.arange(depth + ticks, device=energy.device)[:, None]  # [10 + k, 1]
        there = (depths >= depth - self._history_length)[..., None].to(energy)  # [10 + k, B, 1]
        number = there.unfold(0, depth, 1)[:ticks].sum(-1)  # [k, B, 1]
        divisor = number.clamp_min(1.0)
        mean = sum(series[i : i + ticks] * there[i : i + ticks] for i in range(depth)) / divisor  # [k, B, d]
        spread = [(series[i : i + ticks] - mean).square() * there[i : i + ticks] for i in range(depth)]
        std = (sum(spread) / divisor).sqrt()  # [k, B, d]
        steady = mean_energy * stability(mean, std, mean_energy)
        threshold = self.model.core.consolidation.consolidation_threshold
        self._energy_sum = self._energy_sum + energy.sum(0)
        self._energy_count = self._energy_count + ticks
        self._history = series[-depth:].clone()
        self._history_length = (self._history_length + ticks).clamp_max(depth)
        return ((steady > threshold) & (number > HISTORY_NEEDED)).to(energy)

    # -- state ------------------------------------------------------------------------------------------------------

    def reset_state(self, mask: torch.Tensor | None = None) -> None:
        """Start an episode in all streams, or where `mask`, bool[B], is true: field, memory, atoms, history to zero."""
        model = self.model
        if mask is None:
            self._field = model.core.state.alpha.new_zeros(self.batch_size, model.d_model, model.n_modes)  # [B, d, n]
            self.persistence = self._field.new_zeros(self.batch_size, model.d_model)  # [B, d]
            self.flush_atoms()
            return
        mask = mask.to(self._field.device, torch.bool)
        self._field = self._field.masked_fill(mask[:, None, None], 0.0)
        self.persistence = self.persistence.masked_fill(mask[:, None], 0.0)
        self._energy_sum = self._energy_sum.masked_fill(mask[:, None], 0.0)
        self._energy_count = self._energy_count.masked_fill(mask, 0)
        self._history_length = self._history_length.masked_fill(mask, 0)
        self._last_byte = self._last_byte.masked_fill(mask, NO_BYTE)

    def flush_atoms(self) -> None:
        """Forget the living atoms of all streams, not their fields."""
        self._flush_energies()
        self._last_byte = torch.full((self.batch_size,), NO_BYTE, device=self._field.device)  # [B]

    def _flush_energies(self) -> None:
        device = self._field.device
        self._energy_sum = torch.zeros_like(self.persistence)  # [B, d]
        self._energy_count = torch.zeros(self.batch_size, dtype=torch.int64, device=device)  # [B]
        self._history = self.persistence.new_zeros(HISTORY_LOOKED_AT, *self.persistence.shape)  # [10, B, d]
        self._history_length = torch.zeros(self.batch_size, dtype=torch.int64, device=device)  # [B]

    def detach_field_graph(self) -> None:
        """Later windows do not train earlier ones."""
        self._field = self._field.detach()

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
        moved = {name: tensor.to(self._field.device, copy=True) for name, tensor in tensors.items()}
        self.ticks = state["ticks"]
        self._field = moved["alpha"].transpose(-1, -2).contiguous()
        self.persistence = moved["persistence"]
        self._energy_sum = moved["energy_sum"]
        self._energy_count = moved["energy_count"]
        self._history = moved["energy_history"]
        self._history_length = moved["energy_history_length"]
        self._last_byte = moved["last_byte"]

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {
            "alpha": self.alpha.detach().contiguous(),  # [B, n, d]
            "persistence": self.persistence,
            "energy_sum": self._energy_sum,
            "energy_count": self._energy_count,
            "energy_history": self._history,
            "energy_history_length": self._history_length,
            "last_byte": self._last_byte,
        }


def refuse_single_stream_options(model: "AtomNativeModel", atom_flush_every: int) -> None:
    """Raise BatchedUnsupported, naming option and remedy, where the batched form would compute something else."""
    for option in single_stream_options(model):
        raise BatchedUnsupported(f"the batched form has no {option.name}: {option.remedy}, or the single-stream form")
    if not 1 <= atom_flush_every <= model.n_atoms_max:
        raise BatchedUnsupported(
            f"the batched form keeps atoms between flushes only: atom_flush_every must be from 1 to "
            f"n_atoms_max={model.n_atoms_max}, not {atom_flush_every}"
        )
