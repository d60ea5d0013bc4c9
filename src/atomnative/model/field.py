"""The physics of the field as the design writes it: leak, injection, one RK4 step, limiter (2.2 and 2.3)."""

import math
from typing import Any

import torch
from torch import nn

# Legend: n modes, d channels; a field is [..., n, d].

DT = 0.1
SMOOTHING = 0.1


def mode_phases(n: int, like: torch.Tensor) -> torch.Tensor:
    """`phi_m = 2 pi m / n`. [n]"""
    return torch.arange(n, dtype=like.dtype, device=like.device) * (2.0 * math.pi / n)


def channel_phases(r: torch.Tensor) -> torch.Tensor:
    """`beta_j = 0.5 r_j j`, of a unit vector `r`. [..., d] -> [..., d]"""
    return 0.5 * r * torch.arange(r.shape[-1], dtype=r.dtype, device=r.device)


def injection(f: torch.Tensor, p: torch.Tensor, s: torch.Tensor, n: int) -> torch.Tensor:
    """`g`, how much of `r` each mode receives (design 2.2).

    Args:
        f: frequency, at least 0: it decides the centre and the width, [..., 1].
        p: phase, [..., 1].
        s: strength, [..., 1].
        n: modes.

    Returns: [..., n].
    """
    modes = torch.arange(n, dtype=f.dtype, device=f.device)  # [n]
    centre = n * f / (1.0 + f)  # [..., 1]
    delta = torch.remainder(modes - centre + n / 2, n) - n / 2  # [..., n]
    width = 1.0 + 0.25 * torch.sigmoid(f)  # [..., 1]
    return s * torch.exp(-((delta / width) ** 2)) * (0.5 + 0.5 * torch.cos(mode_phases(n, f) - p))  # [..., n]


def drive(r: torch.Tensor, beta: torch.Tensor, n: int) -> torch.Tensor:
    """`u_{m,j} = r_j cos(phi_m + beta_j)`. [..., d] both -> [..., n, d]"""
    angles = mode_phases(n, r)[:, None] + beta[..., None, :]  # [..., n, d]
    return r[..., None, :] * torch.cos(angles)


def laplacian(alpha: torch.Tensor) -> torch.Tensor:
    """`alpha_{m-1} + alpha_{m+1} - 2 alpha_m` on the ring. [..., n, d]"""
    return torch.roll(alpha, 1, dims=-2) + torch.roll(alpha, -1, dims=-2) - 2.0 * alpha


def field_rms(alpha: torch.Tensor) -> torch.Tensor:
    """`sqrt(mean(alpha^2) + 1e-6)` over modes and channels. [..., n, d] -> [...]"""
    return torch.sqrt(alpha.square().mean((-2, -1)) + 1e-6)


def limit(alpha: torch.Tensor, max_rms: float | None) -> torch.Tensor:
    """`alpha min(1, max_rms / (rms + 1e-6))`; None: no limit. [..., n, d]"""
    if max_rms is None:
        return alpha
    scale = (max_rms / (field_rms(alpha) + 1e-6)).clamp_max(1.0)  # [...]
    return alpha * scale[..., None, None]


class FieldState(nn.Module):
    """The field of a single stream, `alpha` [..., n, d]; with gradients, it carries the graph of the window so far."""

    alpha: torch.Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.zeros(shape))

    def __deepcopy__(self, memo: dict[int, Any]) -> "FieldState":
        twin = FieldState(*self.alpha.shape)
        twin.alpha = self.alpha.detach().clone()
        return twin


class FieldEncoder(nn.Module):
    """Writes an atom into the field: leak, then the rank-one bump (design 2.2). It has no weights of its own."""

    def forward(self, alpha: torch.Tensor, leak: torch.Tensor, g: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """Field [n, d], leak [n] or [], bump [n], content [d] -> [n, d]."""
        return (1.0 - leak).reshape(-1, 1) * alpha + g[:, None] * r[None, :]


class FieldDynamics(nn.Module):
    """Moves the field: one RK4 step of `dt = 0.1`, smoothing, limiter (design 2.3).

    Attributes:
        phase_sync: `sigma`, a trained scalar.
        energy_decay: `eta`, a trained scalar.
        coupling_scale: `c`, a trained scalar.
        max_rms: the limiter's bound, or None.
    """

    def __init__(self, max_rms: float | None, sigma: float = 0.5) -> None:
        super().__init__()
        self.phase_sync = nn.Parameter(torch.tensor(sigma))
        self.energy_decay = nn.Parameter(torch.tensor(0.95))
        self.coupling_scale = nn.Parameter(torch.tensor(1.0))
        self.max_rms = max_rms

    def derivative(self, alpha: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        """`dalpha/dt` at a field under the drive `u`, both [n, d]."""
        sine = torch.sin(mode_phases(alpha.shape[-2], alpha))[:, None]  # [n, 1]
        return (
            self.phase_sync * laplacian(alpha)
            + sine * alpha
            + (self.energy_decay - 1.0) * alpha
            + self.coupling_scale * u
        )

    def forward(self, alpha: torch.Tensor, r: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """Field [n, d], content and channel phases [d] -> the field one step later, [n, d]."""
        u = drive(r, beta, alpha.shape[-2])  # [n, d]
        k1 = self.derivative(alpha, u)
        k2 = self.derivative(alpha + 0.5 * DT * k1, u)
        k3 = self.derivative(alpha + 0.5 * DT * k2, u)
        k4 = self.derivative(alpha + DT * k3, u)
        alpha = alpha + DT / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        alpha = alpha + SMOOTHING * self.phase_sync * laplacian(alpha)
        return limit(alpha, self.max_rms)

    @torch.no_grad()
    def stabilize(self) -> None:
        """Clamp `eta` to [0.3, 0.95], `c` to [0, 2], `sigma` to [-1, 1]."""
        self.energy_decay.clamp_(0.3, 0.95)
        self.coupling_scale.clamp_(0.0, 2.0)
        self.phase_sync.clamp_(-1.0, 1.0)
