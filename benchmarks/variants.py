"""The stack with one thing changed, to see what that thing is worth: `python benchmarks/quality.py --variant NAME`."""

import math
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

from atomnative import StackModel, StackStreams
from atomnative.data.features import N_FEATURES
from atomnative.model.stack.layer import Signals, StackLayer
from atomnative.model.stack.text import N_CONTEXT

# Legend: K ticks, B streams, w width, n modes, d channels.


def layers_become(model: StackModel, kind: type[StackLayer]) -> None:
    for layer in model.stack_layers():
        layer.__class__ = kind


class LeakNotByTheText(StackModel):
    """The leak is one trained number for each mode."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        layers_become(self, _LeakNotByTheText)


class _LeakNotByTheText(StackLayer):
    def signals(self, h: torch.Tensor) -> Signals:
        told = super().signals(h)
        return told._replace(leak=torch.sigmoid(self.leak_logit).expand_as(told.leak))


class FixedRead(StackModel):
    """`W_read` stays as it was drawn."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for layer in self.stack_layers():
            layer.W_read.weight.requires_grad_(False)


class NoPhase(StackModel):
    """The injection's factor `0.5 + 0.5 cos(phi_m - p)` is 1."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        layers_become(self, _NoPhase)


def _injection_without_phase(f: torch.Tensor, p: torch.Tensor, s: torch.Tensor, n: int) -> torch.Tensor:
    delta = torch.remainder(torch.arange(n, dtype=f.dtype) - n * f / (1.0 + f) + n / 2, n) - n / 2  # [..., n]
    return s * torch.exp(-((delta / (1.0 + 0.25 * torch.sigmoid(f))) ** 2))


class _NoPhase(StackLayer):
    def signals(self, h: torch.Tensor) -> Signals:
        with patch("atomnative.model.stack.layer.injection", _injection_without_phase):
            return super().signals(h)


class NoDrive(StackModel):
    """`c` is 0: nothing moves a field but what is injected."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for layer in self.stack_layers():
            layer.dynamics.coupling_scale.requires_grad_(False).zero_()


class Tied(StackModel):
    """The head's weights are those of the byte embedding, which begin as small as a head's."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        with torch.no_grad():
            self.text.embedding.weight.mul_(1.0 / math.sqrt(self.width))
        self.head.weight = self.text.embedding.weight


class Convolution(StackModel):
    """In the place of `E'`, a trained weight for each channel of the last four bytes' embeddings."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.text = _Convolution(self.width)  # type: ignore[assignment]


class _Convolution(nn.Module):
    TAPS = 4

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.weights = nn.Parameter(torch.randn(self.TAPS, width) / math.sqrt(self.TAPS))
        self.live = nn.Linear(N_CONTEXT, width, bias=False)
        self.earlier: torch.Tensor | None = None  # [3, B], of the window before

    def forward(self, current: torch.Tensor, before: torch.Tensor, x_live: torch.Tensor) -> torch.Tensor:
        if self.earlier is None or self.earlier.shape[1] != current.shape[1]:
            self.earlier = current[:1].expand(self.TAPS - 1, -1)
        text = torch.cat([self.earlier, current])  # [3 + K, B]
        self.earlier = text[1 - self.TAPS :]
        embedded = self.embedding(text)  # [3 + K, B, w]
        last = self.TAPS - 1
        taps = [self.weights[i] * embedded[last - i : last - i + len(current)] for i in range(self.TAPS)]
        return torch.stack(taps).sum(0) + self.live(x_live)


class Dropout(StackModel):
    """A tenth of what each layer adds is dropped in training."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        layers_become(self, _Dropout)


class _Dropout(StackLayer):
    def answer(self, h: torch.Tensor, read: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        y = self.norm_read(read) * F.silu(gate)  # [..., d]
        h = h + F.dropout(self.W_out(y), 0.1, self.training)  # [..., w]
        return h + F.dropout(self.mlp(self.norm_mlp(h)), 0.1, self.training)


class Probe(StackModel):
    """The first field must also tell the byte's features, as an atom's may (weight 0.1)."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.probe = nn.Sequential(nn.LayerNorm(2 * self.d_model), nn.Linear(2 * self.d_model, N_FEATURES))

    def streams(self, batch_size: int, atom_flush_every: int = 1) -> StackStreams:
        return _ProbedStreams(self, batch_size)


class _ProbedStreams(StackStreams):
    def run_window(
        self, current: torch.Tensor, features: torch.Tensor, target: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert isinstance(self.model, Probe)
        self.first: torch.Tensor | None = None
        out = super().run_window(current, features, target)
        assert self.first is not None
        spread = torch.sqrt(self.first.var(-1, correction=0) + 1e-8)  # [K, B, d]
        told = self.model.probe(torch.cat([self.first.mean(-1), spread], dim=-1))  # [K, B, 320]
        wanted = F.one_hot(current, N_FEATURES).to(told)  # the byte's own columns
        out["loss"] = out["loss"] + 0.1 * (1.0 - F.cosine_similarity(told, wanted, dim=-1))
        return out

    def _advance(  # type: ignore[override]
        self, layer: StackLayer, field: torch.Tensor, told: Signals
    ) -> torch.Tensor:
        states = super()._advance(layer, field, told)
        if self.first is None:
            self.first = states
        return states


VARIANTS: dict[str, type[StackModel]] = {
    "as-designed": StackModel,
    "leak-not-by-the-text": LeakNotByTheText,
    "fixed-read": FixedRead,
    "no-phase": NoPhase,
    "no-drive": NoDrive,
    "tied": Tied,
    "convolution": Convolution,
    "dropout": Dropout,
    "probe": Probe,
}
