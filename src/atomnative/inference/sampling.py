"""Logits to a byte."""

import torch

from atomnative.errors import ConfigError, check_seed


def check_sampling(temperature: float, top_k: int, top_p: float, seed: int | None) -> None:
    """ConfigError naming the setting and the rule."""
    if not 0 <= temperature < float("inf"):
        raise ConfigError(f"temperature must be a number of at least 0, not {temperature}")
    if top_k < 0:
        raise ConfigError(f"top_k must be at least 1, or 0 for all bytes, not {top_k}")
    if not 0 < top_p <= 1:
        raise ConfigError(f"top_p must be in (0, 1], not {top_p}")
    if seed is not None:
        check_seed(seed)


def sample_byte(
    logits: torch.Tensor, *, temperature: float, top_k: int, top_p: float, generator: torch.Generator
) -> int:
    """Draw a byte.

    Args:
        logits: [256].
        temperature: 0 takes the likeliest.
        top_k: keep the k likeliest bytes; 0: all.
        top_p: keep the fewest likeliest bytes that together have this probability.
        generator: a CPU generator.
    """
    logits = logits.detach().double().cpu()
    if temperature == 0:
        return int(logits.argmax())
    ordered, byte = ((logits - logits.max()) / temperature).sort(descending=True)  # [256] each
    probabilities = torch.softmax(ordered, dim=0)
    before = probabilities.cumsum(0) - probabilities
    probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    if top_k:
        probabilities[top_k:] = 0.0
    return int(byte[torch.multinomial(probabilities, 1, generator=generator)])
