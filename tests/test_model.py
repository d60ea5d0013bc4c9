"""The model as an object: its settings, its leaks, its memory, safe at zero, nothing in it that nothing depends on."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch

from atomnative import Atomizer, AtomNativeModel, BatchedByteTick
from tests.forms import as_window, random_packets


def model_of(**changes: Any) -> AtomNativeModel:
    options: dict[str, Any] = {"d_model": 5, "n_modes": 4, "max_payload_bytes": 1, "last_atom_readout": True}
    return AtomNativeModel(**{**options, **changes})


def total_loss(model: AtomNativeModel, ticks: int) -> torch.Tensor:
    packets = random_packets(ticks)
    return torch.stack([model.transition_loss(a, b)[0] for a, b in pairwise(packets)]).sum()


@pytest.mark.parametrize(
    "changes",
    [
        {"field_bptt": 8, "field_leak_learnable": True},
        {"field_bptt": 8, "field_loss_weight": 0.1, "field_next_weight": 0.1},
        {"field_bptt": 0},
        {"last_atom_readout": False},
    ],
)
def test_every_parameter_has_an_effect_on_the_loss(changes: dict[str, Any]) -> None:
    model = model_of(**changes)
    total_loss(model, 60).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_the_default_model_makes_an_atomizer_of_its_own_span() -> None:
    assert AtomNativeModel().atomizer.max_span_bytes == 32
    assert model_of().atomizer.max_span_bytes == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"last_atom_readout": True, "max_payload_bytes": 2}, "last_atom_readout.*max_payload_bytes"),
        ({"d_model": 0}, "d_model must be at least 1"),
        ({"n_modes": -1}, "n_modes must be at least 1"),
        ({"field_leak": 1.0}, r"field_leak must be in \[0, 1\)"),
        ({"field_leak_learnable": True}, "field_bptt to at least 1"),
        ({"field_leak_learnable": True, "field_bptt": 4, "field_leak_spectrum": (0.1, 0.5)}, "contradict"),
        ({"field_leak_spectrum": (0.0, 0.5)}, r"must lie in \(0, 1\)"),
        ({"field_max_rms": 0.0}, "field_max_rms must be positive"),
        ({"last_atom_dropout": 1.5}, r"last_atom_dropout must be in \[0, 1\]"),
        ({"field_loss_weight": float("nan")}, "field_loss_weight"),
        ({"atomizer": Atomizer(4)}, "do not fit max_payload_bytes=1"),
    ],
)
def test_a_setting_out_of_its_domain_is_a_value_error_that_names_it(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model_of(**changes)


def test_a_copy_is_independent_also_in_the_middle_of_a_window() -> None:
    model = model_of(field_bptt=8)
    loss = total_loss(model, 3)
    twin = copy.deepcopy(model)
    assert torch.equal(twin.core.state.alpha, model.core.state.alpha)
    assert not twin.core.state.alpha.requires_grad
    loss.backward()
    assert all(parameter.grad is None for parameter in twin.parameters())
    packets = random_packets(1)
    twin.transition_loss(packets[0], packets[1])
    assert len(twin.core.atoms) == len(model.core.atoms) + 1


def test_a_spectrum_leaks_each_mode_by_its_own_share() -> None:
    model = model_of()
    model.set_field_leak_spectrum((0.8, 0.1))
    assert torch.allclose(model.leak(), torch.tensor([0.8, 0.4, 0.2, 0.1]))
    atom = model.compiler(random_packets(1)[0].features)
    alpha = torch.randn(4, 5)
    written = (model.leak(), atom.bump(model.n_modes), atom.r)
    kept = model.core.encoder(alpha, *written) - model.core.encoder(0 * alpha, *written)
    assert torch.allclose(kept, alpha * (1.0 - model.leak())[:, None], atol=1e-6)
    total_loss(model, 3)
    model.set_field_leak_spectrum(None)
    assert float(model.leak()) == model.field_leak


def test_a_learnable_leak_starts_at_the_scalar_and_contradictions_are_value_errors() -> None:
    model = model_of(field_leak=0.2, field_bptt=4)
    model.set_field_leak_learnable(True)
    assert torch.allclose(model.leak(), torch.full((4,), 0.2))
    with pytest.raises(ValueError, match="contradict"):
        model.set_field_leak_spectrum((0.1, 0.5))
    model.set_field_leak_learnable(False)
    assert model.field_leak_logit is None
    model.set_field_leak_spectrum((0.1, 0.5))
    with pytest.raises(ValueError, match="contradict"):
        model.set_field_leak_learnable(True)


def test_a_learnable_leak_that_could_never_be_trained_is_refused_when_running() -> None:
    model = model_of(field_leak_learnable=True, field_bptt=4)
    model.field_bptt = 0
    packets = random_packets(1)
    with pytest.raises(ValueError, match="field_bptt"):
        model.transition_loss(packets[0], packets[1])
    with pytest.raises(ValueError, match="field_bptt"):
        BatchedByteTick(model, 1, 8).run_window(*as_window(packets, 0, 1))


def test_the_trained_scalars_are_brought_back_into_their_bounds() -> None:
    model = model_of()
    dynamics = model.core.dynamics
    with torch.no_grad():
        dynamics.energy_decay.fill_(2.0)
        dynamics.coupling_scale.fill_(-1.0)
        dynamics.phase_sync.fill_(-3.0)
    model.stabilize_dynamics_parameters()
    assert dynamics.energy_decay.item() == pytest.approx(0.95)
    assert dynamics.coupling_scale.item() == 0.0
    assert dynamics.phase_sync.item() == -1.0


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize("field_bptt", [0, 4])
def test_a_field_of_zeros_gives_finite_losses_and_gradients_in_both_forms(field_bptt: int, limit: float | None) -> None:
    packets = random_packets(4)
    for form in ("single", "batched"):
        model = model_of(field_bptt=field_bptt, field_max_rms=limit, field_loss_weight=0.1)
        with torch.no_grad():
            model.compiler.fc2.weight.zero_()
            model.compiler.fc2.bias.zero_()
            model.core.dynamics.coupling_scale.zero_()
        if form == "single":
            loss = torch.stack([model.transition_loss(a, b)[0] for a, b in pairwise(packets)]).sum()
            alpha = model.core.state.alpha
        else:
            streams = BatchedByteTick(model, 1, 8)
            loss = streams.run_window(*as_window(packets, 0, 4))["loss"].sum()
            alpha = streams.alpha
        assert not alpha.any()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None or bool(parameter.grad.isfinite().all()), f"{name} in the {form} form"


def test_a_flush_forgets_the_byte_before_and_the_oldest_atom_is_dropped() -> None:
    packets = random_packets(12)
    model = model_of(n_atoms_max=6).eval()
    for packet in packets:
        model.next_byte_logits(packet)
    assert [atom.payload for atom in model.core.atoms] == [packet.payload for packet in packets[-6:]]

    alike = model_of().eval()
    alike.load_state_dict(model.state_dict())
    model.core.atoms = type(model.core.atoms)()
    model.core.energy_history = []
    assert torch.equal(model.next_byte_logits(packets[0]), alike.next_byte_logits(packets[0]))
    assert not torch.equal(
        model.next_byte_logits(packets[1]), alike.reset_state() or alike.next_byte_logits(packets[1])
    )


def test_reset_starts_an_episode() -> None:
    model = model_of(consolidation_threshold=0.01)
    packets = random_packets(20)
    first = [model.transition_loss(a, b)[0] for a, b in pairwise(packets)]
    assert model.core.consolidation.persistence.any()
    model.reset_state()
    assert not model.core.state.alpha.any()
    assert not model.core.consolidation.persistence.any()
    again = [model.transition_loss(a, b)[0] for a, b in pairwise(packets)]
    assert torch.equal(torch.stack(first), torch.stack(again))


def test_a_probe_whose_weight_is_turned_on_without_it_is_refused_in_both_forms() -> None:
    model = model_of()
    model.field_loss_weight = 0.5
    packets = random_packets(1)
    with pytest.raises(ValueError, match="no probe for field_loss"):
        model.transition_loss(packets[0], packets[1])
    with pytest.raises(ValueError, match="no field_probe"):
        BatchedByteTick(model, 1, 8).run_window(*as_window(packets, 0, 1))


def test_the_next_packet_probe_is_one_minus_the_cosine_to_the_next_features() -> None:
    model = model_of(field_next_weight=0.5)
    packets = random_packets(1)
    loss, info = model.transition_loss(packets[0], packets[1])
    assert torch.allclose(loss, info["byte_loss"] + 0.5 * info["field_next_loss"])
    assert model.field_next_probe is not None
    assert 0.0 <= float(info["field_next_loss"].detach()) <= 2.0


def test_dropout_draws_once_for_each_stream_and_tick_in_training_only() -> None:
    model = model_of(last_atom_dropout=0.5)
    torch.manual_seed(4)
    drawn = torch.stack([model.surface.draw_dropped(3) for _ in range(5)])  # type: ignore[arg-type]
    torch.manual_seed(4)
    at_once = model.surface.draw_dropped(5, 3)
    assert at_once is not None
    assert torch.equal(drawn, at_once)
    assert model.eval().surface.draw_dropped(5, 3) is None
