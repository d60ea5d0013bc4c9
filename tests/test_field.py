"""The field: the propagator is RK4 in closed form, and its gradient is autograd's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atomnative.model.field import FieldDynamics, channel_phases
from atomnative.model.propagator import propagator
from atomnative.model.recurrence import field_recurrence, plain_recurrence
from tests.reference_rk4 import rk4_tick


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    d=st.integers(1, 6),
    sigma=st.floats(-1, 1),
    eta=st.floats(0.3, 0.95),
    c=st.floats(0, 2),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]),
    seed=st.integers(0, 10**6),
)
def test_the_propagator_is_a_float64_rk4_step(
    n: int, d: int, sigma: float, eta: float, c: float, scale: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    alpha, leak = scale * random.standard_normal((n, d)), random.uniform(0, 0.99, n)
    g, r = random.standard_normal(n), random.standard_normal(d)
    r /= np.linalg.norm(r)
    expected = rk4_tick((1 - leak)[:, None] * alpha + np.outer(g, r), r, sigma, eta, c, None)

    scalars = torch.tensor([sigma, eta, c], dtype=torch.float64)
    move = propagator(scalars[0], scalars[1], scalars[2], torch.from_numpy(leak), n)
    beta = 0.5 * r * np.arange(d)
    v = np.outer(move.SP.numpy() @ g, r)
    v += np.outer(move.q_cos.numpy(), r * np.cos(beta)) - np.outer(move.q_sin.numpy(), r * np.sin(beta))
    assert np.abs(move.W.numpy() @ alpha + v - expected).max() <= 1e-12 * max(1.0, scale)


@pytest.mark.parametrize("max_rms", [None, 0.4])
def test_the_reference_dynamics_are_a_float64_rk4_step(max_rms: float | None) -> None:
    torch.set_default_dtype(torch.float64)
    dynamics = FieldDynamics(max_rms)
    with torch.no_grad():
        dynamics.phase_sync.fill_(-0.3)
        dynamics.energy_decay.fill_(0.7)
        dynamics.coupling_scale.fill_(1.7)
    alpha, r = torch.randn(7, 4), torch.nn.functional.normalize(torch.randn(4), dim=0)
    with torch.no_grad():
        got = dynamics(alpha, r, channel_phases(r)).numpy()
    assert np.abs(got - rk4_tick(alpha.numpy(), r.numpy(), -0.3, 0.7, 1.7, max_rms)).max() <= 1e-13


@pytest.mark.parametrize("leak", ["in W", "by tick"])
@pytest.mark.parametrize("max_rms", [None, 0.3, 1.1, 100.0], ids=["free", "always", "sometimes", "never"])
@pytest.mark.parametrize("ticks", [1, 2, 9])
def test_the_recurrence_and_its_gradient_are_those_of_its_plain_twin(
    ticks: int, max_rms: float | None, leak: str
) -> None:
    random = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).requires_grad_()

    field, W, right, left = draw(3, 5, 4), draw(4, 4), draw(ticks, 3, 5, 2), draw(ticks, 3, 2, 4)
    keep = draw(ticks, 3, 4) if leak == "by tick" else None
    weights = torch.randn(ticks, 3, 5, 4, generator=random, dtype=torch.float64)
    leaves = [leaf for leaf in (field, W, right, left, keep) if leaf is not None]
    outs, gradients = [], []
    for form in (plain_recurrence, field_recurrence):
        out = form(field, 0.5 * W, 0.7 * right, left, max_rms, None if keep is None else torch.sigmoid(keep))
        outs.append(out)
        gradients.append(torch.autograd.grad((out * weights).sum(), leaves))
    assert torch.allclose(outs[0], outs[1], rtol=0, atol=1e-12)
    for plain, fast in zip(*gradients, strict=True):
        assert torch.allclose(plain, fast, rtol=1e-11, atol=1e-12)
    if max_rms == 1.1 and ticks == 9:
        rms = outs[0].detach().square().mean((-2, -1)).sqrt()
        assert (rms > 1.0999).any()
        assert (rms < 1.09).any()
