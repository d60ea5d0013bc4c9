"""SIGINT and SIGTERM ask a run to stop at the end of its window; a second one stops it at once."""

import signal
import threading
from types import FrameType
from typing import Any


class StopRequest:
    """A context in which the first signal is remembered and the second raises KeyboardInterrupt.

    Attributes:
        asked: whether a signal has come.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
