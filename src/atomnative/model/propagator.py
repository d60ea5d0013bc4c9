"""The closed form of a tick: the field is linear, so RK4 and smoothing are matrices on the modes (design section 3)."""

import math
from typing import NamedTuple

import torch

# Legend: n modes. The step sizes stand here a second time on purpose: this file and `field` are two accounts of one
# tick, and the tests hold them together.

DT = 0.1
SMOOTHING = 0.1


class Propagator(NamedTuple):
    """`alpha_t = s_t (W alpha_{t-1} + SP (g r) + q_cos (r cos beta) - q_sin (r sin beta))`.

    `W` is for one leak per mode; `SP` alone takes a field already leaked and injected.
    """

    W: torch.Tensor
    """`S P diag(1 - lambda)`, [n, n]."""
    SP: torch.Tensor
    """`S P`, [n, n]."""
    q_cos: torch.Tensor
    """`dt c S Q cos(phi_m)`, [n]."""
    q_sin: torch.Tensor
    """`dt c S Q sin(phi_m)`, [n]."""


def propagator(sigma: torch.Tensor, eta: torch.Tensor, c: torch.Tensor, leak: torch.Tensor, n: int) -> Propagator:
    """The matrices of one tick, with gradients to the trained scalars and the leak.

    Args:
        sigma, eta, c: scalars.
        leak: `lambda`, [n] or [].
        n: modes.
    """
    eye = torch.eye(n, dtype=sigma.dtype, device=sigma.device)  # [n, n]
    phases = torch.arange(n, dtype=sigma.dtype, device=sigma.device) * (2.0 * math.pi / n)  # [n]
    ring = eye.roll(1, 0) + eye.roll(-1, 0) - 2.0 * eye  # [n, n], the Laplacian
    Z = DT * (sigma * ring + torch.diag(torch.sin(phases)) + (eta - 1.0) * eye)  # [n, n]
    Z2 = Z @ Z
    Z3 = Z2 @ Z
    P = eye + Z + Z2 / 2.0 + Z3 / 6.0 + Z3 @ Z / 24.0  # [n, n]
    Q = eye + Z / 2.0 + Z2 / 6.0 + Z3 / 24.0  # [n, n]
    S = eye + SMOOTHING * sigma * ring  # [n, n]
    SP = S @ P
    SQ = DT * c * (S @ Q)
    return Propagator(W=SP * (1.0 - leak), SP=SP, q_cos=SQ @ torch.cos(phases), q_sin=SQ @ torch.sin(phases))
