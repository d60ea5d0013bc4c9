"""The one sequential part of a window, `alpha_t = s_t (alpha_{t-1} W^T + v_t)`, and its gradient (design section 3)."""

from typing import Any

import torch

# Legend: K ticks, B streams, d channels, n modes. Here a field is [d, n]: the mode product is then one plain product
# [B d, n] x [n, n], and the readout's a plain one over its last two axes.


def plain_recurrence(field: torch.Tensor, W: torch.Tensor, v: torch.Tensor, max_rms: float | None) -> torch.Tensor:
    """The recurrence as it is written, differentiated by autograd: the twin that `field_recurrence` is tested against.

    Args:
        field: [B, d, n].
        W: [n, n].
        v: what each tick adds, [K, B, d, n].
        max_rms: the limiter's bound, or None.

    Returns: the field after each tick, [K, B, d, n].
    """
    states = []
    for v_t in v.unbind(0):
        field = field @ W.T + v_t  # [B, d, n]
        if max_rms is not None:
            rms = torch.sqrt(field.square().mean((-2, -1), keepdim=True) + 1e-6)  # [B, 1, 1]
            field = field * (max_rms / (rms + 1e-6)).clamp_max(1.0)
        states.append(field)
    return torch.stack(states)


def field_recurrence(field: torch.Tensor, W: torch.Tensor, v: torch.Tensor, max_rms: float | None) -> torch.Tensor:
    """`plain_recurrence`, with the states written once and the gradient of `W` taken as one product over all ticks."""
    states = _Recurrence.apply(field, W, v, max_rms)
    assert isinstance(states, torch.Tensor)
    return states


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, field: torch.Tensor, W: torch.Tensor, v: torch.Tensor, max_rms: float | None) -> torch.Tensor:
        ticks, streams, d, n = v.shape
        states = torch.empty_like(v)  # [K, B, d, n]
        rms = v.new_zeros(ticks, streams)  # [K, B], of the field before the limiter
        transposed = W.T.contiguous()
        before = field.reshape(streams * d, n)
        for t in range(ticks):
            after = states[t].view(streams * d, n)
            torch.addmm(v[t].reshape(streams * d, n), before, transposed, out=after)
            if max_rms is not None:
                rms[t] = torch.linalg.vector_norm(states[t], dim=(-2, -1)).square().div(d * n).add(1e-6).sqrt()  # [B]
                scale = (max_rms / (rms[t] + 1e-6)).clamp_max(1.0)  # [B]
                states[t].mul_(scale[:, None, None])
            before = after
        ctx.save_for_backward(field, W, states, rms)
        ctx.max_rms = max_rms
        return states

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        field, W, states, rms = ctx.saved_tensors
        max_rms: float | None = ctx.max_rms
        ticks, streams, d, n = states.shape
        grad = grads[0].clone(memory_format=torch.contiguous_format)  # [K, B, d, n], becomes that of (W alpha + v)
        for t in range(ticks - 1, -1, -1):
            if max_rms is not None:
                _limiter_backward(grad[t], states[t], rms[t], max_rms)
            if t > 0:
                grad[t - 1].view(streams * d, n).addmm_(grad[t].view(streams * d, n), W)
        grad_field = (grad[0].view(streams * d, n) @ W).view(streams, d, n) if ctx.needs_input_grad[0] else None
        flat = grad.view(ticks, streams * d, n)
        grad_W = flat[0].T @ field.reshape(streams * d, n)  # [n, n]
        if ticks > 1:
            grad_W = torch.addmm(grad_W, flat[1:].reshape(-1, n).T, states[:-1].reshape(-1, n))
        return grad_field, grad_W, grad, None


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
