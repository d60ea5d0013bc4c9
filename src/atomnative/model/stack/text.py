"""What the first layer is given of the text: the byte, the byte before it, and the live columns (design 5)."""

import torch
from torch import nn

from atomnative.data.features import N_FEATURES

# Legend: w width; `...` is nothing for a tick, or K ticks and B streams.

NO_BYTE = -1
"""Stands for the byte before an episode's first one."""
CONTEXT = slice(300, N_FEATURES)
"""`x_live`: the columns that tell of what came before the byte, and of its boundary."""
N_CONTEXT = CONTEXT.stop - CONTEXT.start


class TextInput(nn.Module):
    """`h = E[b] + E'[b'] + W_live x_live`; where there is no byte before, `b' = b`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.embedding_before = nn.Embedding(256, width)
        self.live = nn.Linear(N_CONTEXT, width, bias=False)

    def forward(self, current: torch.Tensor, before: torch.Tensor, x_live: torch.Tensor) -> torch.Tensor:
        """Bytes, int64[...] both, `before` perhaps `NO_BYTE`; columns [..., 20] -> [..., w]."""
        before = torch.where(before == NO_BYTE, current, before)
        return self.embedding(current) + self.embedding_before(before) + self.live(x_live)
