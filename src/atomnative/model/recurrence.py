"""The sequential part of a window, `alpha_t = s_t (W (keep_t alpha_{t-1}) + v_t)`, and its gradient (design 3).

`v_t`, what a tick adds, is of low rank, `right_t left_t`: it is built once, in the place of the states, never kept.
"""

from typing import Any

import torch

# Legend: K ticks, B streams, d channels, n modes, R the rank of v. Here a field is [d, n]: the mode product is then one
# plain product [B d, n] x [n, n], and the readout's a plain one over its last two axes.


def plain_recurrence(
    field: torch.Tensor,
    W: torch.Tensor,
    right: torch.Tensor,
    left: torch.Tensor,
    max_rms: float | None,
    keep: torch.Tensor | None = None,
) -> torch.Tensor:
    """The recurrence as it is written, differentiated by autograd: the twin that `field_recurrence` is tested against.

    Args:
        field: [B, d, n].
        W: what moves the modes, [n, n].
        right, left: factors of what each tick adds, [K, B, d, R] and [K, B, R, n].
        max_rms: the limiter's bound, or None.
        keep: `1 - lambda` of each tick, stream and mode, [K, B, n]; None: `W` holds the leak.

    Returns: the field after each tick, [K, B, d, n].
    """
    states = []
    for t, v_t in enumerate((right @ left).unbind(0)):
        kept = field if keep is None else field * keep[t][:, None, :]  # [B, d, n]
        field = kept @ W.T + v_t  # [B, d, n]
        if max_rms is not None:
            rms = torch.sqrt(field.square().mean((-2, -1), keepdim=True) + 1e-6)  # [B, 1, 1]
            field = field * (max_rms / (rms + 1e-6)).clamp_max(1.0)
        states.append(field)
    return torch.stack(states)


def field_recurrence(
    field: torch.Tensor,
    W: torch.Tensor,
    right: torch.Tensor,
    left: torch.Tensor,
    max_rms: float | None,
    keep: torch.Tensor | None = None,
) -> torch.Tensor:
    """`plain_recurrence` with one tensor of the field's size in each direction: the states, and their gradient."""
    states = _Recurrence.apply(field, W, right, left, max_rms, keep)
    assert isinstance(states, torch.Tensor)
    return states


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        field: torch.Tensor,
        W: torch.Tensor,
        right: torch.Tensor,
        left: torch.Tensor,
        max_rms: float | None,
        keep: torch.Tensor | None,
    ) -> torch.Tensor:
        states = right @ left  # [K, B, d, n]
        _advance(states, field, W, keep)
        first = len(states) if max_rms is None else _first_near(states, max_rms)
        rms = states.new_zeros(states.shape[:2])  # [K, B], of the field before the limiter, where it may act
        if max_rms is not None and first < len(states):
            torch.matmul(right[first:], left[first:], out=states[first:])
            before = field if first == 0 else states[first - 1]  # [B, d, n]
            for t in range(first, len(states)):
                _advance(states[t : t + 1], before, W, None if keep is None else keep[t : t + 1])
                rms[t] = _rms(states[t])
                states[t].mul_((max_rms / (rms[t] + 1e-6)).clamp_max(1.0)[:, None, None])
                before = states[t]
        ctx.save_for_backward(field, W, right, left, keep, states, rms)
        ctx.max_rms, ctx.first = max_rms, first
        return states

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        field, W, right, left, keep, states, rms = ctx.saved_tensors
        ticks, streams, d, n = states.shape
        grad = grads[0].clone(memory_format=torch.contiguous_format)  # [K, B, d, n], becomes that of v
        grad_W = torch.zeros_like(W)  # [n, n]
        grad_keep = None if keep is None else torch.empty_like(keep)  # [K, B, n]
        grad_field = torch.zeros_like(field)  # [B, d, n]
        for t in range(ticks - 1, -1, -1):
            if t >= ctx.first:
                _limiter_backward(grad[t], states[t], rms[t], ctx.max_rms)
            before = states[t - 1] if t > 0 else field  # [B, d, n]
            grad_before = grad[t - 1] if t > 0 else grad_field  # [B, d, n]
            grad_after = grad[t].view(streams * d, n)
            if keep is None or grad_keep is None:
                grad_W.addmm_(grad_after.T, before.reshape(streams * d, n))
                grad_before.view(streams * d, n).addmm_(grad_after, W)
                continue
            keep_t = keep[t][:, None, :]  # [B, 1, n]
            grad_W.addmm_(grad_after.T, (before * keep_t).reshape(streams * d, n))
            grad_kept = (grad_after @ W).view(streams, d, n)
            torch.sum(grad_kept * before, dim=1, out=grad_keep[t])
            grad_before.addcmul_(grad_kept, keep_t)
        return grad_field, grad_W, grad @ left.mT, right.mT @ grad, None, grad_keep


def _advance(states: torch.Tensor, field: torch.Tensor, W: torch.Tensor, keep: torch.Tensor | None) -> None:
    """Turn what `k` ticks add, [k, B, d, n], into the field after each, in place; no limiter."""
    _, streams, d, n = states.shape
    for t, after in enumerate(states.unbind(0)):
        kept = field if keep is None else field * keep[t][:, None, :]  # [B, d, n]
        after.view(streams * d, n).addmm_(kept.reshape(streams * d, n), W.T)
        field = after


def _rms(field: torch.Tensor) -> torch.Tensor:
    """`sqrt(mean(alpha^2) + 1e-6)` of fields [..., d, n] -> [...]"""
    size = field.shape[-1] * field.shape[-2]
    return torch.linalg.vector_norm(field, dim=(-2, -1)).square().div(size).add(1e-6).sqrt()


def _first_near(states: torch.Tensor, max_rms: float) -> int:
    """The first tick of fields [K, B, d, n] at which a limiter may act, with room for rounding; K where none does."""
    near = (_rms(states) > 0.999 * max_rms).any(1)  # [K]
    return int(near.long().argmax()) if bool(near.any()) else len(states)


def _limiter_backward(grad: torch.Tensor, limited: torch.Tensor, rms: torch.Tensor, max_rms: float) -> None:
    """Turn the gradient of a limited field, [B, d, n], into that of the field before the limiter, in place.

    With `y = s x`, `s = M / (rms + 1e-6)` and `d rms / dx = x / (N rms)`: `dx = s g - (g . y) y / (M N rms)`.
    """
    scale = max_rms / (rms + 1e-6)  # [B]
    active = scale < 1.0
    if not bool(active.any()):
        return
    size = limited[0].numel()
    along = (grad * limited).sum((-2, -1))  # [B]
    factor = torch.where(active, along / (max_rms * size * rms), 0.0)  # [B]
    grad.mul_(scale.clamp_max(1.0)[:, None, None])
    grad.addcmul_(limited, factor[:, None, None], value=-1.0)
