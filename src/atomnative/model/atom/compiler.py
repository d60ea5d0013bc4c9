"""Features to the properties of an atom (design 2.1)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from atomnative.data.features import N_FEATURES
from atomnative.model.field import injection


class Properties(NamedTuple):
    """What a packet is to the field, each `[..., d]`.

    The design's `M` and `tau` are not among them: no output depends on either.
    """

    r: torch.Tensor
    """Content, a unit vector."""
    phi: torch.Tensor
    """Phase."""
    omega: torch.Tensor
    """Frequency, above 1e-3."""
    energy: torch.Tensor
    """`E`, in (0, 1)."""
    kappa: torch.Tensor
    """Coupling, above 0."""

    def bump(self, n: int) -> torch.Tensor:
        """`g`, how much of `r` each of `n` modes receives (design 2.2). [..., n]"""
        f = self.omega.mean(-1, keepdim=True).abs()  # [..., 1]
        p = self.phi.mean(-1, keepdim=True)  # [..., 1]
        s = (self.energy * self.kappa).mean(-1, keepdim=True)  # [..., 1]
        return injection(f, p, s, n)


class Compiler(nn.Module):
    """`x[320] -> Linear -> GELU -> Linear -> properties`, hidden `max(32, 2d)`."""

    def __init__(self, d: int) -> None:
        super().__init__()
        hidden = max(32, 2 * d)
        self.fc1 = nn.Linear(N_FEATURES, hidden)
        self.fc2 = nn.Linear(hidden, len(Properties._fields) * d)

    def forward(self, x: torch.Tensor) -> Properties:
        """Features `[..., 320]` to properties `[..., d]`."""
        return self.properties(self.fc1(x))

    def properties(self, hidden: torch.Tensor) -> Properties:
        """The first layer's output `[..., hidden]` to properties `[..., d]`."""
        r, phi, omega, energy, kappa = self.fc2(F.gelu(hidden)).chunk(len(Properties._fields), dim=-1)  # [..., d] each
        norm = r.square().sum(-1, keepdim=True).clamp_min(1e-16).sqrt()  # safe at 0
        return Properties(
            r=r / norm,
            phi=phi,
            omega=F.softplus(omega) + 1e-3,
            energy=torch.sigmoid(energy),
            kappa=F.softplus(kappa),
        )
