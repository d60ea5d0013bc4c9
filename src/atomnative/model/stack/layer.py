"""One layer: what the text tells its field, and what the field gives back; between the two, either form (design 5)."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from atomnative.model.field import FieldDynamics, FieldEncoder, channel_phases, injection

# Legend: w width, n modes, d channels; `...` is nothing for a tick, or K ticks and B streams.

SLOWEST_LEAK, FASTEST_LEAK = 0.01, 0.6
SIGMA = 0.3


class Signals(NamedTuple):
    """What a tick tells a layer's field, and the gate of its answer."""

    g: torch.Tensor
    """How much of `r` each mode receives, [..., n]."""
    r: torch.Tensor
    """What the modes receive, of norm `sqrt(d)`, [..., d]."""
    beta: torch.Tensor
    """Phases of the drive, [..., d]."""
    leak: torch.Tensor
    """`lambda`, the share of each mode forgotten before that, [..., n]."""
    gate: torch.Tensor
    """`gamma`, [..., d]."""


class StackLayer(nn.Module):
    """The weights of a layer, and what is the same in both forms."""

    def __init__(self, width: int, d_model: int, n_modes: int, max_rms: float | None) -> None:
        super().__init__()
        w, d, n = width, d_model, n_modes
        self.sizes = (d, 1, 1, 1, 1, n, d)  # r, p, o, e, k, zeta, gamma
        self.norm_in = nn.LayerNorm(w)
        self.W_in = nn.Linear(w, sum(self.sizes))
        leak = torch.logspace(math.log10(FASTEST_LEAK), math.log10(SLOWEST_LEAK), n)  # [n]
        self.leak_logit = nn.Parameter(torch.logit(leak))
        self.encoder = FieldEncoder()
        self.dynamics = FieldDynamics(max_rms, sigma=SIGMA)
        self.W_read = nn.Linear(n * d, d, bias=False)
        self.norm_read = nn.RMSNorm(d, eps=1e-6)
        self.W_out = nn.Linear(d, w, bias=False)
        self.norm_mlp = nn.LayerNorm(w)
        self.mlp = nn.Sequential(nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, w))

    def signals(self, h: torch.Tensor) -> Signals:
        """From the layer's input, [..., w]."""
        z = self.W_in(self.norm_in(h))  # [..., 2d + 4 + n]
        content, p, o, e, k, zeta, gate = z.split(self.sizes, dim=-1)
        unit = F.normalize(content, dim=-1)  # [..., d]
        d, n = content.shape[-1], zeta.shape[-1]
        f = F.softplus(o) + 1e-3  # [..., 1]
        s = torch.sigmoid(e) * F.softplus(k)  # [..., 1]
        leak = torch.sigmoid(self.leak_logit + zeta)  # [..., n]
        return Signals(injection(f, p, s, n), math.sqrt(d) * unit, channel_phases(unit), leak, gate)

    def answer(self, h: torch.Tensor, read: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """The layer's output from its input, [..., w], `W_read vec(alpha)` and `gamma`, both [..., d]. -> [..., w]"""
        y = self.norm_read(read) * F.silu(gate)  # [..., d]
        h = h + self.W_out(y)  # [..., w]
        return h + self.mlp(self.norm_mlp(h))
