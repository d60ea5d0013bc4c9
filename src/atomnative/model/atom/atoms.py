"""Living atoms and consolidation (design 2.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

HISTORY_KEPT = 20
HISTORY_LOOKED_AT = 10
HISTORY_NEEDED = 5
CONSOLIDATION_RATE = 0.005


@dataclass(frozen=True, eq=False)
class LivingAtom:
    """What is remembered of an atom: its payload, its energy `E` [d] without graph, and its level `rho`."""

    payload: bytes
    energy: torch.Tensor
    rho: int


class Consolidation(nn.Module):
    """The slow memory: channels of high and steady energy follow the field's mean over the modes."""

    persistence: torch.Tensor

    def __init__(self, d: int, consolidation_threshold: float) -> None:
        super().__init__()
        self.register_buffer("persistence", torch.zeros(d))
        self.consolidation_threshold = consolidation_threshold

    @torch.no_grad()
    def forward(self, mean_energy: torch.Tensor, history: Sequence[torch.Tensor], alpha: torch.Tensor) -> None:
        """Update `persistence` from the mean energy [d], the earlier ones, and the field [n, d]."""
        if len(history) <= HISTORY_NEEDED:
            return
        looked_at = torch.stack(list(history[-HISTORY_LOOKED_AT:]))  # [<=10, d]
        mean = looked_at.mean(0)  # [d]
        std = (looked_at - mean).square().mean(0).sqrt()  # [d]
        selected = mean_energy * stability(mean, std, mean_energy) > self.consolidation_threshold  # [d]
        moved = torch.lerp(self.persistence, alpha.mean(-2), CONSOLIDATION_RATE)  # [d]
        self.persistence = torch.where(selected, moved, self.persistence)


def stability(mean: torch.Tensor, std: torch.Tensor, mean_energy: torch.Tensor) -> torch.Tensor:
    """`exp(-std / max(|mean|, 1e-6)) E`, with the history's mean and population std. All [..., d]."""
    return torch.exp(-std / mean.abs().clamp_min(1e-6)) * mean_energy
