"""When things happen in a run: functions of the tick alone, never of an interruption (design section 4).

Tick `t` is the same instant for every stream: `t` bytes of each have been seen. An interval of 0 means never.
"""


def is_due(tick: int, every: int) -> bool:
    """Whether something that happens every `every` ticks happens at the end of `tick`."""
    return every > 0 and tick > 0 and tick % every == 0


def next_multiple(tick: int, every: int) -> int | None:
    """The first tick after `tick` at which it is due; None: never."""
    return None if every == 0 else (tick // every + 1) * every


def next_window_end(tick: int, *, window: int, total: int, episode_length: int, ckpt_every: int) -> int:
    """Where the window that begins after `tick` ends.

    After `window` ticks, or sooner at an episode's end, at a checkpoint, or at the run's total.
    """
    ends = [tick + window, total, next_multiple(tick, episode_length), next_multiple(tick, ckpt_every)]
    return min(end for end in ends if end is not None)
