"""The learning rate over a run, as a factor of its peak."""

import math
from typing import Literal

Schedule = Literal["constant", "cosine"]


def learning_rate_factor(tick: int, *, warmup_ticks: int, total_ticks: int, schedule: Schedule) -> float:
    """The factor for the window that begins after `tick`: linear warm-up, times the schedule over the whole run."""
    warmup = min(1.0, (tick + 1) / warmup_ticks) if warmup_ticks else 1.0
    if schedule == "constant":
        return warmup
    return warmup * 0.5 * (1.0 + math.cos(math.pi * min(1.0, tick / total_ticks)))
