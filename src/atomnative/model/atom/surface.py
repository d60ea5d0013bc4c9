"""Field and last bytes to byte logits (design 2.5)."""

import torch
import torch.nn.functional as F
from torch import nn

READ_SEED = 320_001
"""Seed of the fixed random maps `J` and `F`: equal in every model of a shape."""
FIXED_MAP_WEIGHT = 0.3


class ByteProjection(nn.Module):
    """`2d -> 4d -> GELU -> L 256`, the last layer without bias."""

    def __init__(self, d: int, outputs: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2 * d, 4 * d)
        self.fc2 = nn.Linear(4 * d, outputs, bias=False)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        """[..., 2d] -> [..., L 256]"""
        return self.fc2(F.gelu(self.fc1(a)))


class LastAtomReadout(nn.Module):
    """Logits from the last byte, the one before it, and the last atom's phase (byte tick only)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, d)
        self.expand = nn.Linear(2 * d, 8 * d)
        self.contract = nn.Linear(8 * d, d)
        self.phase = nn.Linear(2 * d, d)
        self.head = nn.Linear(d, 256)

    def forward(self, last: torch.Tensor, before: torch.Tensor, phi: torch.Tensor) -> torch.Tensor:
        """Bytes int64[...], int64[...] and phase [..., d] -> [..., 256]."""
        pair = torch.cat([self.embedding(last), self.embedding(before)], dim=-1)  # [..., 2d]
        hidden = keep_largest_quarter(torch.relu(self.expand(pair)))  # [..., 8d]
        turns = torch.cat([torch.cos(phi), torch.sin(phi)], dim=-1)  # [..., 2d]
        return self.head(F.gelu(self.contract(hidden) + self.phase(turns)))


def keep_largest_quarter(hidden: torch.Tensor) -> torch.Tensor:
    """Zero all but the largest quarter of the last axis, of values >= 0. [..., w] -> [..., w]"""
    with torch.no_grad():
        threshold = hidden.topk(hidden.shape[-1] // 4, dim=-1, sorted=False).values.amin(-1, keepdim=True)  # [..., 1]
        kept = (hidden >= threshold).to(hidden.dtype)
    return hidden * kept


class Surface(nn.Module):
    """Byte logits of a field: only the field and the last atom reach them.

    Attributes:
        payload_enabled, last_atom_scale_adaptive: options of the single-stream form.
        last_atom_dropout: chance that the last-atom term is dropped, in training.
        last_atom_scale: `s_la`.
    """

    J: torch.Tensor
    F: torch.Tensor

    def __init__(
        self,
        d: int,
        n: int,
        max_payload_bytes: int,
        *,
        last_atom_readout: bool,
        last_atom_dropout: float,
        last_atom_scale: float,
        last_atom_scale_adaptive: bool,
        payload_enabled: bool,
    ) -> None:
        super().__init__()
        outputs = max_payload_bytes * 256
        fixed = torch.Generator().manual_seed(READ_SEED)
        self.register_buffer("J", torch.randn(2 * d, n * d, generator=fixed) * (n * d) ** -0.5)
        self.register_buffer("F", torch.randn(outputs, 2 * d, generator=fixed) * (2 * d) ** -0.5)
        self.alpha_byte_proj = ByteProjection(d, outputs)
        self.obl_gate = nn.Parameter(torch.tensor(0.0))
        self.last_atom = LastAtomReadout(d) if last_atom_readout else None
        self.last_atom_dropout = last_atom_dropout
        self.last_atom_scale = last_atom_scale
        self.last_atom_scale_adaptive = last_atom_scale_adaptive
        self.payload_enabled = payload_enabled

    def forward(
        self,
        a: torch.Tensor,
        last: torch.Tensor,
        before: torch.Tensor,
        phi: torch.Tensor,
        dropped: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Byte logits.

        Args:
            a: `J vec(alpha)`, [..., 2d].
            last, before: the last byte and the one before it, int64[...].
            phi: phase of the last atom, [..., d].
            dropped: bool[...], where the last-atom term is left out; None: nowhere.

        Returns: [..., L 256].
        """
        rms = a.square().mean(-1, keepdim=True).clamp_min(1e-16).sqrt()  # [..., 1], at least 1e-8
        a_hat = a / rms  # [..., 2d]
        gate = F.softplus(self.obl_gate) + 0.5
        logits = gate * self.alpha_byte_proj(a_hat) + FIXED_MAP_WEIGHT * F.linear(a_hat, self.F)  # [..., L 256]
        if self.last_atom is None:
            return logits
        term = self.last_atom_scale * self.last_atom(last, before, phi)  # [..., 256]
        if dropped is not None:
            term = term * (~dropped)[..., None]
        return logits + term

    def draw_dropped(self, *shape: int) -> torch.Tensor | None:
        """Where to drop the last-atom term: a draw per stream and tick, from torch's global generator. bool[*shape]"""
        if self.last_atom is None or not self.training or self.last_atom_dropout == 0:
            return None
        return torch.rand(shape, dtype=torch.float32) < self.last_atom_dropout
