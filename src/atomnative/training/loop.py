"""The training loop: the same for both forms of the model (design section 4)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from atomnative.errors import UserError
from atomnative.model.protocol import ByteModel
from atomnative.training.clock import is_due, next_window_end
from atomnative.training.optimizer import apply_gradients, set_rates
from atomnative.training.schedule import Schedule, learning_rate_factor
from atomnative.training.windows import Windows


class TrainingDiverged(UserError):
    """The loss is not a number any more; weights and checkpoints are those of before."""


@dataclass(frozen=True)
class Plan:
    """What happens when, in ticks; an interval of 0 means never."""

    window: int
    total: int
    episode_length: int
    ckpt_every: int
    warmup_ticks: int
    schedule: Schedule


@dataclass
class Progress:
    """Where a run is."""

    tick: int = 0


def train(
    model: ByteModel,
    windows: Windows,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    progress: Progress,
    *,
    stop: Callable[[], bool],
    on_window: Callable[[int, float], None],
    on_checkpoint: Callable[[], None],
) -> None:
    """Train from `progress` to the plan's total, until `stop()` is true at the end of a window, or until the data ends.

    `on_window` is told each window's ticks and its mean cross-entropy of the bytes, in nats; `on_checkpoint` is called
    at each multiple of the checkpoint interval and at the end.

    Raises:
        TrainingDiverged: a loss that is not finite, before it reaches a weight.
    """
    saved_at = progress.tick
    while progress.tick < plan.total and not stop():
        start = progress.tick
        end = next_window_end(
            start,
            window=plan.window,
            total=plan.total,
            episode_length=plan.episode_length,
            ckpt_every=plan.ckpt_every,
        )
        window = windows.advance(end - start)
        if window.loss is None:
            break
        if not math.isfinite(float(window.loss.detach())):
            raise TrainingDiverged(
                f"the loss is not finite in ticks {start + 1} to {end}: nothing saved is touched; "
                "run again with a lower --learning-rate"
            )
        factor = learning_rate_factor(
            start, warmup_ticks=plan.warmup_ticks, total_ticks=plan.total, schedule=plan.schedule
        )
        set_rates(optimizer, factor)
        apply_gradients(model, optimizer, window.loss)
        windows.detach()
        progress.tick += window.ticks
        if is_due(progress.tick, plan.episode_length):
            windows.end_episode()
        on_window(window.ticks, window.byte_loss)
        if is_due(progress.tick, plan.ckpt_every):
            on_checkpoint()
            saved_at = progress.tick
        if window.ticks < end - start:
            break
    if progress.tick > saved_at:
        on_checkpoint()
