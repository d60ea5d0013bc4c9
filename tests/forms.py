"""Drives both forms of a model through the same plan, and keeps all that the contract speaks of."""

import copy
from dataclasses import dataclass, field, replace

import torch
from typing_extensions import Self

from atomnative import Atomizer, AtomNativeModel, AtomPacket, BatchedByteTick, StackModel, StackStreams
from atomnative.data.features import LIVE_COLUMNS

# Legend: T ticks, B streams, n modes, d channels. All sizes differ, so that no swapped axis passes.


Model = AtomNativeModel | StackModel
Streams = BatchedByteTick | StackStreams


@dataclass(frozen=True)
class Case:
    """An `atom` and a plan of ticks; `bptt` 0 or the window."""

    d: int = 6
    n: int = 7
    bptt: int = 16
    window: int = 16
    ticks: int = 300
    episode: int = 150
    flush: int = 32
    leak: float = 0.1
    leak_learnable: bool = True
    max_rms: float | None = None
    dropout: float = 0.5
    probe: float = 0.3
    threshold: float = 0.05
    learning_rate: float = 1e-3
    dtype: torch.dtype = torch.float32

    def model(self) -> Model:
        torch.manual_seed(3)
        torch.set_default_dtype(self.dtype)
        return AtomNativeModel(
            d_model=self.d,
            n_modes=self.n,
            n_atoms_max=64,
            max_payload_bytes=1,
            last_atom_readout=True,
            field_bptt=self.bptt,
            field_leak=self.leak,
            field_leak_learnable=self.leak_learnable,
            field_max_rms=self.max_rms,
            field_loss_weight=self.probe,
            last_atom_dropout=self.dropout,
            consolidation_threshold=self.threshold,
        )

    def in_double(self) -> Self:
        return replace(self, dtype=torch.float64)

    def window_ends(self) -> list[int]:
        ends, t = [], 0
        while t < self.ticks:
            t = min(t + self.window, self.ticks, (t // self.episode + 1) * self.episode)
            ends.append(t)
        return ends


@dataclass(frozen=True)
class StackCase(Case):
    """A `stack` and a plan of ticks."""

    depth: int = 3
    width: int = 10

    def model(self) -> StackModel:
        torch.manual_seed(3)
        torch.set_default_dtype(self.dtype)
        return StackModel(self.depth, self.width, self.d, self.n, field_max_rms=self.max_rms, field_bptt=self.bptt)


def field_of(model: Model) -> torch.Tensor:
    """The field of an atom, [n, d]; the fields of a stack, [D, n, d]."""
    return (model.core.state if isinstance(model, AtomNativeModel) else model.state).alpha


def memory_of(form: Model | Streams) -> torch.Tensor:
    """The slow memory, [d] or [B, d]; a stack has none."""
    if isinstance(form, AtomNativeModel):
        return form.core.consolidation.persistence
    return form.persistence if isinstance(form, BatchedByteTick) else torch.zeros(1)


def flush(model: Model) -> None:
    if isinstance(model, StackModel):
        return model.flush_atoms()
    model.core.atoms = type(model.core.atoms)()
    model.core.energy_history = []
    return None


@dataclass
class Trace:
    """What came out: logits [T, 256], losses [T], gradients of each window, and the end of it all."""

    logits: list[torch.Tensor] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    alpha: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    persistence: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    persistence_moved: float = 0.0
    limited: float = 0.0


def random_packets(ticks: int, seed: int = 1) -> list[AtomPacket]:
    """`ticks + 1` packets of random bytes, some of them rare."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (ticks + 1,), generator=generator)
    common = torch.randint(97, 101, (ticks + 1,), generator=generator)
    mixed = torch.where(torch.rand(ticks + 1, generator=generator) < 0.7, common, values)
    return Atomizer(max_span_bytes=1).encode_bytes(bytes(mixed.tolist()))


def as_window(packets: list[AtomPacket], start: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ticks of one stream: current [K, 1], features [K, 1, 320], target [K, 1]."""
    current = torch.tensor([[packet.payload[0]] for packet in packets[start:end]])
    target = torch.tensor([[packet.payload[0]] for packet in packets[start + 1 : end + 1]])
    return current, torch.stack([packet.features for packet in packets[start:end]])[:, None], target


def compact(features: torch.Tensor) -> torch.Tensor:
    return features[..., list(LIVE_COLUMNS)]


def optimizer_of(model: Model, case: Case) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=case.learning_rate, weight_decay=0.01)


def train_window(
    model: Model, optimizer: torch.optim.Optimizer, trace: Trace, loss: torch.Tensor, alpha: torch.Tensor
) -> None:
    """Backward through the loss and the window's last field, then a step."""
    weights = torch.randn(alpha.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(alpha)
    optimizer.zero_grad()
    (loss + 0.1 * (alpha * weights).sum()).backward()
    trace.gradients.append({name: grad(p) for name, p in model.named_parameters()})
    optimizer.step()
    model.stabilize_dynamics_parameters()


def grad(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def run_single(case: Case, packets: list[AtomPacket]) -> Trace:
    model, trace = case.model(), Trace()
    optimizer = optimizer_of(model, case)
    torch.manual_seed(11)
    losses: list[torch.Tensor] = []
    ends = set(case.window_ends())
    for t in range(1, case.ticks + 1):
        loss, info = model.transition_loss(packets[t - 1], packets[t])
        losses.append(loss)
        trace.losses.append(loss.detach())
        trace.logits.append(info["surface"]["byte_logits"].detach()[0])
        if t % case.flush == 0:
            flush(model)
        if t in ends:
            train_window(model, optimizer, trace, torch.stack(losses).mean(), field_of(model))
            losses = []
            model.detach_field_graph()
            note_extremes(trace, field_of(model), memory_of(model))
        if t % case.episode == 0 and t < case.ticks:
            model.reset_state(reset_atomizer=False)
    return finish(trace, model, field_of(model), memory_of(model))


def run_batched(case: Case, packets: list[AtomPacket], whole_rows: bool = True) -> Trace:
    model, trace = case.model(), Trace()
    optimizer = optimizer_of(model, case)
    streams = model.streams(1, case.flush)
    torch.manual_seed(11)
    start = 0
    for end in case.window_ends():
        current, features, target = as_window(packets, start, end)
        out = streams.run_window(current, features if whole_rows else compact(features), target)
        trace.losses += out["loss"].detach()[:, 0].unbind(0)
        trace.logits += out["byte_logits"].detach()[:, 0].unbind(0)
        train_window(model, optimizer, trace, out["loss"].mean(), streams.alpha[0])
        streams.detach_field_graph()
        note_extremes(trace, streams.alpha[0], memory_of(streams)[0])
        if end % case.episode == 0 and end < case.ticks:
            streams.reset_state()
        start = end
    return finish(trace, model, streams.alpha[0], memory_of(streams)[0])


def note_extremes(trace: Trace, alpha: torch.Tensor, persistence: torch.Tensor) -> None:
    trace.persistence_moved = max(trace.persistence_moved, float(persistence.abs().max()))
    trace.limited = max(trace.limited, float(alpha.detach().square().mean((-2, -1)).sqrt().max()))


def finish(trace: Trace, model: Model, alpha: torch.Tensor, persistence: torch.Tensor) -> Trace:
    trace.alpha, trace.persistence = alpha.detach().clone(), persistence.clone()
    trace.parameters = {name: copy.deepcopy(p.detach()) for name, p in model.named_parameters()}
    return trace
