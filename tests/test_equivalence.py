"""The contract: the single stream, the batched form and an independent account of the design agree."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from atomnative import AtomNativeModel, BatchedByteTick, BatchedUnsupported
from atomnative.errors import NotAvailableYet
from tests import tolerances as tol
from tests.forms import (
    Case,
    StackCase,
    Streams,
    Trace,
    as_window,
    compact,
    grad,
    memory_of,
    random_packets,
    run_batched,
    run_single,
)
from tests.reference_rk4 import Reference
from tests.reference_stack import StackReference
from tests.states import through_a_file

THROUGH_TIME = Case()
TICK_BY_TICK = Case(bptt=0, window=1, ticks=200, episode=10**9, leak=0.3, leak_learnable=False, dropout=0.0)
LIMITED = {"free": None, "limited": 0.05}
CASES = {"through_time": THROUGH_TIME, "tick_by_tick": TICK_BY_TICK, "stack": StackCase()}
EACH = pytest.mark.parametrize("case", [THROUGH_TIME, StackCase()], ids=["atom", "stack"])


def assert_same_run(a: Trace, b: Trace, double: bool) -> None:
    def bound(contract: float) -> float:
        return tol.DOUBLE if double else contract

    assert difference(a.logits, b.logits) <= bound(tol.LOGITS)
    assert difference(a.losses, b.losses) <= bound(tol.LOSSES)
    assert len(a.gradients) == len(b.gradients)
    for name in a.gradients[0]:
        left, right = (torch.stack([window[name].flatten() for window in run.gradients]) for run in (a, b))  # [W, ...]
        largest = left.abs().amax(1).clamp_min(1e-12)  # [W]
        if a.gradients[0][name].ndim == 0:
            largest = largest.amax()  # near a zero of its gradient, no sum is exact relative to a scalar itself
        relative = (left - right).abs().amax(1) / largest  # [W]
        worst = int(relative.argmax())
        assert relative[worst] <= bound(tol.GRADIENTS_RELATIVE), f"{name}, window {worst}: {relative[worst]}"
    for name in a.parameters:
        assert float((a.parameters[name] - b.parameters[name]).abs().max()) <= bound(tol.PARAMETERS), name
    assert float((a.alpha - b.alpha).abs().max()) <= bound(tol.FIELD)
    assert float((a.persistence - b.persistence).abs().max()) <= bound(tol.MEMORY)


def difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return apart(torch.stack(a), torch.stack(b))


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_both_forms_train_alike_over_hundreds_of_ticks(case: Case, double: bool, limit: str) -> None:
    case = replace(case, max_rms=LIMITED[limit])
    case = case.in_double() if double else case
    packets = random_packets(case.ticks)
    single, batched = run_single(case, packets), run_batched(case, packets)
    if not isinstance(case, StackCase):
        assert single.persistence_moved > 1e-4, "the slow memory must move for this to test it"
    if case.max_rms is not None:
        assert single.limited == pytest.approx(case.max_rms, rel=1e-3), "the limiter must be active"
    assert_same_run(single, batched, double)


@pytest.mark.parametrize("window", [1, 5, 70])
def test_a_window_of_any_length_without_gradients_through_time_trains_alike(window: int) -> None:
    case = replace(TICK_BY_TICK, window=window, ticks=140, max_rms=0.05).in_double()
    packets = random_packets(case.ticks)
    assert_same_run(run_single(case, packets), run_batched(case, packets), double=True)


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("window", [1, 5, 70])
def test_windows_of_any_length_train_the_stack_alike(window: int, limit: str) -> None:
    case = StackCase(bptt=window, window=window, ticks=140, max_rms=LIMITED[limit]).in_double()
    packets = random_packets(case.ticks)
    assert_same_run(run_single(case, packets), run_batched(case, packets), double=True)


@EACH
def test_live_columns_alone_train_like_whole_feature_rows(case: Case) -> None:
    case = replace(case, ticks=64).in_double()
    packets = random_packets(case.ticks)
    assert_same_run(run_batched(case, packets), run_batched(case, packets, whole_rows=False), double=True)


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("sizes", [(6, 7), (7, 4), (3, 2), (5, 1)], ids=lambda s: f"d{s[0]}-n{s[1]}")
def test_both_forms_give_what_an_independent_account_of_the_design_gives(sizes: tuple[int, int], limit: str) -> None:
    case = Case(d=sizes[0], n=sizes[1], ticks=90, episode=50, flush=16, dropout=0.0, max_rms=LIMITED[limit]).in_double()
    packets = random_packets(case.ticks)
    model = case.model()
    assert isinstance(model, AtomNativeModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.stabilize_dynamics_parameters()
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    reference = Reference(
        weights,
        case.d,
        case.n,
        leak=model.leak().detach().numpy(),
        max_rms=case.max_rms,
        threshold=case.threshold,
        probe_weight=case.probe,
    )
    streams = BatchedByteTick(model, 1, case.flush)
    for t in range(1, case.ticks + 1):
        current, target = packets[t - 1], packets[t]
        logits, loss = reference.tick(
            current.features.numpy().astype(np.float64), current.payload[0], target.payload[0]
        )
        with torch.no_grad():
            single_loss, info = model.transition_loss(current, target)
            batched = streams.run_window(*as_window(packets, t - 1, t))
        for got_logits, got_loss in (
            (info["surface"]["byte_logits"][0], single_loss),
            (batched["byte_logits"][0, 0], batched["loss"][0, 0]),
        ):
            assert np.abs(got_logits.numpy() - logits).max() <= tol.DOUBLE
            assert abs(float(got_loss) - loss) <= tol.DOUBLE
        for alpha in (model.core.state.alpha, streams.alpha[0]):
            assert np.abs(alpha.detach().numpy() - reference.alpha).max() <= tol.DOUBLE
        for memory in (model.core.consolidation.persistence, streams.persistence[0]):
            assert np.abs(memory.numpy() - reference.persistence).max() <= tol.DOUBLE
        if t % case.flush == 0:
            reference.flush()
            model.flush_atoms()
        if t % case.episode == 0:
            assert np.abs(reference.persistence).max() > 0
            reference.reset()
            model.reset_state()
            streams.reset_state()


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("sizes", [(6, 7), (7, 4), (3, 2), (5, 1)], ids=lambda s: f"d{s[0]}-n{s[1]}")
def test_both_forms_of_the_stack_give_what_an_independent_account_gives(sizes: tuple[int, int], limit: str) -> None:
    case = StackCase(d=sizes[0], n=sizes[1], ticks=60, episode=40, max_rms=LIMITED[limit]).in_double()
    packets = random_packets(case.ticks)
    model = case.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.stabilize_dynamics_parameters()
    weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
    reference = StackReference(weights, case.depth, case.d, case.n, case.max_rms)
    streams = model.streams(1)
    for t in range(1, case.ticks + 1):
        current, target = packets[t - 1], packets[t]
        logits, loss = reference.tick(
            current.features.numpy().astype(np.float64), current.payload[0], target.payload[0]
        )
        with torch.no_grad():
            single_loss, info = model.transition_loss(current, target)
            batched = streams.run_window(*as_window(packets, t - 1, t))
        assert np.abs(info["surface"]["byte_logits"][0].numpy() - logits).max() <= tol.DOUBLE
        assert np.abs(batched["byte_logits"][0, 0].numpy() - logits).max() <= tol.DOUBLE
        assert abs(float(single_loss) - loss) <= tol.DOUBLE
        assert abs(float(batched["loss"][0, 0]) - loss) <= tol.DOUBLE
        for alpha in (model.state.alpha, streams.alpha[0]):
            assert np.abs(alpha.numpy() - reference.alpha).max() <= tol.DOUBLE
        if t % case.episode == 0:
            reference.reset()
            model.reset_state()
            streams.reset_state()


class Several:
    """`B` streams of different bytes, each tick's columns from a packet list of its own."""

    def __init__(self, batch_size: int, ticks: int) -> None:
        windows = [as_window(random_packets(ticks, seed=20 + b), 0, ticks) for b in range(batch_size)]
        self.current = torch.cat([current for current, _, _ in windows], dim=1)  # [T, B]
        self.features = compact(torch.cat([features for _, features, _ in windows], dim=1))  # [T, B, 20]
        self.target = torch.cat([target for _, _, target in windows], dim=1)  # [T, B]
        self.dropped = torch.rand(ticks, batch_size, generator=torch.Generator().manual_seed(9)) < 0.5  # [T, B]

    def run(self, streams: Streams, cuts: list[int], columns: slice = slice(None)) -> dict[str, torch.Tensor]:
        """Through windows that end at `cuts`; the outputs of all ticks."""
        outs, start = [], 0
        for end in cuts:
            span = (slice(start, end), columns)
            window = (self.current[span], self.features[span], self.target[span])
            with_dropout = isinstance(streams, BatchedByteTick)
            outs.append(
                streams.run_window(*window, self.dropped[span]) if with_dropout else streams.run_window(*window)
            )
            start = end
        return {name: torch.cat([out[name] for out in outs]) for name in outs[0]}


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@EACH
def test_several_streams_equal_as_many_runs_of_one_also_with_one_of_them_reset(
    case: Case, double: bool, limit: str
) -> None:
    # A flush well after the reset: what the reset leaves of atoms and history must have time to matter.
    case = replace(case, flush=25, max_rms=LIMITED[limit])
    case = case.in_double() if double else case
    batch_size, ticks, reset_at = 4, 110, 60
    several, model = Several(batch_size, ticks), case.model()
    several.dropped[reset_at] = False  # so that the byte before, forgotten or not, shows in the first tick after it
    cuts = [13, 41, reset_at, 77, ticks]

    def run(
        streams: Streams, columns: slice, reset: Callable[[Streams], None] | None
    ) -> tuple[dict[str, torch.Tensor], ...]:
        model.zero_grad()
        first = several.run(streams, [cut for cut in cuts if cut <= reset_at], columns)
        if reset is not None:
            reset(streams)
        rest = Several.__new__(Several)
        rest.current, rest.features = several.current[reset_at:], several.features[reset_at:]
        rest.target, rest.dropped = several.target[reset_at:], several.dropped[reset_at:]
        second = rest.run(streams, [cut - reset_at for cut in cuts if cut > reset_at], columns)
        out = {name: torch.cat([first[name], second[name]]) for name in first}
        (out["loss"].sum() + streams.alpha.sum()).backward()
        return out, {name: grad(p) for name, p in model.named_parameters()}

    together = model.streams(batch_size, case.flush)
    third = torch.tensor([False, False, True, False])
    out, gradients = run(together, slice(None), lambda streams: streams.reset_state(third))
    summed = {name: torch.zeros_like(value) for name, value in gradients.items()}
    bound = tol.DOUBLE if double else tol.LOGITS
    for b in range(batch_size):
        alone = model.streams(1, case.flush)
        mine, my_gradients = run(alone, slice(b, b + 1), (lambda streams: streams.reset_state()) if b == 2 else None)
        assert apart(mine["byte_logits"][:, 0], out["byte_logits"][:, b]) <= bound
        assert apart(mine["loss"][:, 0], out["loss"][:, b]) <= bound
        assert apart(alone.alpha[0], together.alpha[b]) <= bound
        assert apart(memory_of(alone)[0], memory_of(together).expand(batch_size, -1)[b]) <= bound
        for name, value in my_gradients.items():
            summed[name] += value
    for name, value in gradients.items():
        relative = float((value - summed[name]).abs().max() / value.abs().max().clamp_min(1e-12))
        assert relative <= (tol.DOUBLE if double else tol.GRADIENTS_RELATIVE), name


@pytest.mark.parametrize("limit", LIMITED)
@pytest.mark.parametrize("window", [1, 3, 16, 64])
@EACH
def test_a_window_equals_its_steps_with_a_flush_in_its_middle(case: Case, window: int, limit: str) -> None:
    case = replace(case, flush=9, max_rms=LIMITED[limit]).in_double()
    several, ticks = Several(3, 64), 64
    gradients, outs, states = [], [], []
    for cuts in ([*range(window, ticks, window), ticks], list(range(1, ticks + 1))):
        model = case.model()
        streams = model.streams(3, case.flush)
        if len(cuts) == ticks and isinstance(streams, BatchedByteTick):
            steps = [
                streams.step(several.current[t], several.features[t], several.target[t], several.dropped[t])
                for t in range(ticks)
            ]
            out = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
        else:
            out = several.run(streams, cuts)
        (out["loss"].sum() + streams.alpha.sum()).backward()
        gradients.append({name: grad(p) for name, p in model.named_parameters()})
        outs.append(out)
        states.append(streams.state_dict())
    for name in outs[0]:
        assert apart(outs[0][name], outs[1][name]) <= tol.DOUBLE, name
    for name in gradients[0]:
        largest = gradients[0][name].abs().max().clamp_min(1e-12)
        assert float((gradients[0][name] - gradients[1][name]).abs().max() / largest) <= tol.DOUBLE, name
    for name, value in states[0].items():
        assert torch.allclose(torch.as_tensor(value), torch.as_tensor(states[1][name]), atol=tol.DOUBLE), name


@EACH
def test_a_byte_changed_in_one_stream_changes_nothing_in_any_other(case: Case) -> None:
    case = replace(case, max_rms=0.05)
    several, model = Several(5, 40), case.model()
    outs, fields = [], []
    for changed in (False, True):
        if changed:
            several.current[3, 2] ^= 1
            several.target[2, 2] ^= 1
        streams = model.streams(5, case.flush)
        outs.append(several.run(streams, [17, 40]))
        fields.append(streams.alpha)
    others = [0, 1, 3, 4]
    for name in outs[0]:
        assert torch.equal(outs[0][name][:, others], outs[1][name][:, others]), name
        assert not torch.equal(outs[0][name][:, 2], outs[1][name][:, 2]), name
    assert torch.equal(fields[0][others], fields[1][others])


@EACH
def test_gradients_stop_at_a_detach(case: Case) -> None:
    several, model = Several(2, 20), case.model()
    streams = model.streams(2, 32)
    several.run(streams, [10])
    assert streams.alpha.requires_grad
    streams.detach_field_graph()
    assert not streams.alpha.requires_grad


@EACH
def test_gradients_stop_at_a_reset_for_the_reset_stream_alone(case: Case) -> None:
    several, model = Several(2, 20), case.model()
    streams = model.streams(2, 32)
    several.run(streams, [10])
    streams.reset_state(torch.tensor([False, True]))
    weight = model.compiler.fc1.weight if isinstance(model, AtomNativeModel) else model.text.embedding.weight
    (kept,) = torch.autograd.grad(streams.alpha[0].sum(), weight, retain_graph=True)
    (stopped,) = torch.autograd.grad(streams.alpha[1].sum(), weight)
    assert kept.any()
    assert not stopped.any()


@EACH
def test_the_batched_state_goes_on_bit_for_bit_after_saving_and_refuses_another_number_of_streams(case: Case) -> None:
    several, model = Several(3, 50), case.model().eval()
    streams = model.streams(3, case.flush)
    several.run(streams, [17])
    saved = streams.state_dict()
    twin = model.streams(3, case.flush)
    twin.load_state_dict(saved)
    outs = [s.run_window(several.current, several.features, several.target) for s in (streams, twin)]
    assert torch.equal(outs[0]["byte_logits"], outs[1]["byte_logits"])
    for name, value in streams.state_dict().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(twin.state_dict()[name])), name
    with pytest.raises(ValueError, match=r"alpha has shape \[3, .*\], this model \[4, .*\]"):
        model.streams(4, case.flush).load_state_dict(saved)


@EACH
def test_after_a_window_of_any_length_a_restored_state_trains_on_bit_for_bit(case: Case) -> None:
    """Products may round by where their factors lie in memory, and a window's last field may lie anywhere."""
    several = Several(3, 50)
    for window in range(1, 17):
        model = case.model()
        streams = model.streams(3, case.flush)
        several.run(streams, [window])
        streams.detach_field_graph()
        twin = model.streams(3, case.flush)
        twin.load_state_dict(through_a_file(streams.state_dict()))
        gradients = []
        for form in (streams, twin):
            model.zero_grad()
            torch.manual_seed(window)  # dropout draws
            form.run_window(several.current, several.features, several.target)["loss"].mean().backward()
            gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        for name, gradient in gradients[0].items():
            assert torch.equal(gradient, gradients[1][name]), (window, name)


def byte_tick_model(**settings: object) -> AtomNativeModel:
    defaults: dict[str, object] = {"d_model": 5, "n_modes": 4, "max_payload_bytes": 1}
    return AtomNativeModel(**{**defaults, **settings})  # type: ignore[arg-type]


SINGLE_ONLY = {
    "enable_merge": lambda: byte_tick_model(enable_merge=True),
    "surface.payload_enabled": lambda: byte_tick_model(payload_copy=True),
    "efference_every": lambda: byte_tick_model(efference_every=3),
    "field_contrast_weight": lambda: byte_tick_model(field_contrast_weight=0.1),
    "slow_every": lambda: byte_tick_model(slow_every=2),
    "surface.last_atom_scale_adaptive": lambda: byte_tick_model(last_atom_scale_adaptive=True),
    "field_leak_spectrum": lambda: byte_tick_model(field_leak_spectrum=(0.5, 0.01)),
    "max_payload_bytes": lambda: AtomNativeModel(d_model=5, n_modes=4),
    "field_obligatory_hard": lambda: byte_tick_model(field_obligatory_hard=False),
    "field_next_weight": lambda: byte_tick_model(field_next_weight=0.2),
}
COMPUTED_BY_THE_SINGLE_STREAM = {"field_leak_spectrum", "field_next_weight"}


@pytest.mark.parametrize("name", SINGLE_ONLY)
def test_the_batched_form_refuses_each_option_it_lacks_by_name_and_says_what_to_do(name: str) -> None:
    with pytest.raises(BatchedUnsupported, match=rf"{name}.*: .*(set|build|use)"):
        BatchedByteTick(SINGLE_ONLY[name](), 2, 16)


def test_an_option_turned_on_later_is_refused_at_the_next_window() -> None:
    model = byte_tick_model()
    streams = BatchedByteTick(model, 1, 16)
    model.surface.last_atom_scale_adaptive = True
    with pytest.raises(BatchedUnsupported, match="last_atom_scale_adaptive"):
        streams.run_window(*as_window(random_packets(3), 0, 3))


@pytest.mark.parametrize("every", [0, -1, 129])
def test_the_batched_form_refuses_a_flush_that_lets_atoms_be_dropped(every: int) -> None:
    with pytest.raises(BatchedUnsupported, match=rf"atom_flush_every must be from 1 to n_atoms_max=128, not {every}"):
        BatchedByteTick(byte_tick_model(), 1, every)


@pytest.mark.parametrize("name", sorted(SINGLE_ONLY.keys() - COMPUTED_BY_THE_SINGLE_STREAM))
def test_the_single_stream_says_that_an_option_is_not_available_yet(name: str) -> None:
    packets = random_packets(1)
    with pytest.raises(NotAvailableYet, match=rf"{name}.* is not available yet"):
        SINGLE_ONLY[name]().transition_loss(packets[0], packets[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@EACH
def test_cuda_equals_cpu(case: Case) -> None:
    case = replace(case, max_rms=0.05)
    several = Several(3, 50)
    outs = []
    for device in ("cpu", "cuda"):
        model = case.model().to(device)
        streams = model.streams(3, case.flush)
        moved = [tensor.to(device) for tensor in (several.current, several.features, several.target, several.dropped)]
        outs.append(streams.run_window(*moved[: 4 if isinstance(streams, BatchedByteTick) else 3]))
    for name in outs[0]:
        assert apart(outs[0][name], outs[1][name].cpu()) <= 1e-3, name
