"""What the field is asked beside the next byte: to give features back (design 2.6)."""

import torch
import torch.nn.functional as F
from torch import nn

from atomnative.data.features import N_FEATURES

# Legend: d channels.


class FieldProbe(nn.Linear):
    """Reads a packet's 320 features from the field's summary `z`, 4d -> 320."""

    def __init__(self, d: int) -> None:
        super().__init__(4 * d, N_FEATURES)

    def loss(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`1 - cos(probe(z), x)`. z [..., 4d], x [..., 320] -> [...]"""
        return 1.0 - F.cosine_similarity(self(z), x, dim=-1)


def field_summary(mean: torch.Tensor, std: torch.Tensor, persistence: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """`z = LayerNorm([mean_m alpha, std_m alpha, persistence, r])`, without weights: the probe has them. [..., 4d]"""
    parts = torch.cat([mean, std, persistence, r], dim=-1)
    return F.layer_norm(parts, parts.shape[-1:])


def mean_and_std(alpha: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and population std of a field over its modes; the std is `sqrt(var + 1e-8)`, safe at 0."""
    mean = alpha.mean(dim, keepdim=True)
    variance = (alpha - mean).square().mean(dim)
    return mean.squeeze(dim), torch.sqrt(variance + 1e-8)
