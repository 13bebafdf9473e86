"""The launcher's event loop: files that can be read or written, and timers. One thread."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections.abc import Callable
from typing import Any


class Timer:
    """A call that is due once."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Makes the calls that watch(), after() and every() ask for, in one thread. A call must not block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def watch(self, file: Any, call: Callable[[], None], *, write: bool = False) -> None:
        """Calls `call` whenever `file` can be read, or with `write` also whenever it can be written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        if file in self._selector.get_map():
            self._selector.modify(file, events, call)
        else:
            self._selector.register(file, events, call)

    def forget(self, file: Any) -> None:
        if file in self._selector.get_map():
            self._selector.unregister(file)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), timer))
        return timer

    def every(self, period_s: float, call: Callable[[], None]) -> None:
        """Calls `call` again and again, as long as the loop runs."""

        def again() -> None:
            call()
            self.after(period_s, again)

        self.after(period_s, again)

    def turn(self, wait_limit_s: float = 1.0) -> None:
        """Waits for the next event, at most `wait_limit_s`, and makes the calls that are due."""
        now = time.monotonic()
        wait_s = min(wait_limit_s, max(0.0, self._timers[0][0] - now)) if self._timers else wait_limit_s
        for key, _ in self._selector.select(wait_s):
            if self._selector.get_map().get(key.fd) is key:  # an earlier call may have forgotten it
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.call is not None:
                timer.call()
