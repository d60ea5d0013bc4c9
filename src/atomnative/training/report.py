"""Plain progress lines: how far, how well, how fast."""

import math
import time
from collections.abc import Callable


class ProgressLines:
    """Prints a line whenever `log_every` ticks have passed since the last, with the mean over them.

    Args:
        tick, total: where the run is, and where it ends.
        batch_size: streams; a tick is so many bytes.
        say: prints a line.
        clock: seconds, for the rate.
    """

    def __init__(
        self,
        *,
        tick: int,
        total: int,
        batch_size: int,
        log_every: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tick = tick
        self._total = total
        self._batch_size = batch_size
        self._log_every = log_every
        self._say = say
        self._clock = clock
        self._begin_line()

    def window(self, ticks: int, byte_loss: float) -> None:
        """Take note of a window: its ticks and its mean cross-entropy of the bytes, in nats."""
        self._tick += ticks
        self._ticks += ticks
        self._nats += ticks * byte_loss
        if self._ticks >= self._log_every:
            self.finish()

    def finish(self) -> None:
        """Print what has not been printed yet."""
        if self._ticks == 0:
            return
        seconds = max(self._clock() - self._since, 1e-9)
        bits = self._nats / self._ticks / math.log(2)
        rate = self._ticks * self._batch_size / seconds
        left = (self._total - self._tick) * self._batch_size / rate
        self._say(
            f"tick {self._tick:,}/{self._total:,}  {human_bytes(self._tick * self._batch_size)}  "
            f"{bits:.3f} bits/byte  {human_bytes(rate)}/s  {human_time(left)} left"
        )
        self._begin_line()

    def restart_clock(self) -> None:
        """Leave out of the rate what was not training, such as a checkpoint; to be called right after `finish`."""
        self._since = self._clock()

    def _begin_line(self) -> None:
        self._ticks = 0
        self._nats = 0.0
        self._since = self._clock()


def human_bytes(count: float) -> str:
    """1234567 -> '1.23 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} GB" if count < 999.5 else f"{count:,.0f} GB"


def human_time(seconds: float) -> str:
    """185.0 -> '3:05'."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
