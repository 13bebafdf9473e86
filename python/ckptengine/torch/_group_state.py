"""The state that all replaceable groups of a process share (groups.py)."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from typing import Any

from .._engine import Error, Halted, Status
from . import _internals

log = logging.getLogger("ckptengine")

_CLOSING_S = 1.0  # how long communications may take to end after their connections were shut
_START = "start"  # the prefix under which groups are opened first


class Interrupted(Halted):
    """Training was interrupted, because the job is halted or a communication has failed.

    Let it through: run() restores the state, and calls the training function again.
    """

    def __init__(self, message: str) -> None:
        super().__init__(Status.HALTED, message)


class State:
    """The state of all replaceable groups of this process. Any thread may call interrupt() and fail(). Only the
    training thread may call the other methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Any] = []
        self._prefix = ""
        self._store: Any = None  # of the default group
        self._ranks = 0
        self._reason = ""  # why they were interrupted
        self._failure = ""  # the first communication that failed
        self.failures = 0
        self.works: weakref.WeakSet[Any] = weakref.WeakSet()  # communications whose futures somebody may wait for
        self.is_closed = False
        self.is_open = True  # neither closed, nor failed, nor interrupted
        self.guarded = False
        self.watcher: Any = None  # the Communication that is told of every communication of the groups, or None
        self.unanswered = ""  # a communication in closed groups that only another rank could have answered

    # ---- the groups ----

    def begin(self, group: Any, store: Any) -> None:
        """Call this for the default group, with its store. The store counts how often this rank has started. If it has
        started before, the other ranks may be training, so this process begins with closed groups."""
        self._groups.clear()
        self.is_closed = store.add(f"starts/{group.rank()}", 1) > 1
        self._store, self._ranks = store, group.size()
        self._reason = self._failure = self.unanswered = ""
        self._prefix = _START
        self._judge()

    def add(self, group: Any) -> None:
        if not self.is_closed:
            self.raise_if_interrupted()
            group._open(self._prefix)
        self._groups.append(group)

    def has(self, group: Any) -> bool:
        return group in self._groups

    def forget(self, group: Any) -> None:
        if group in self._groups:
            self._groups.remove(group)
        drop([group._let_go()])

    # ---- interruptions ----

    def _judge(self) -> None:
        self.is_open = not (self.is_closed or self._reason or self._failure)

    def fail(self, error: BaseException) -> None:
        if not self.guarded:
            return
        with self._lock:
            self.failures += 1
            if not self._failure and not self._reason and not self.is_closed:
                self._failure = _first_sentence(error)
                log.warning("a communication has failed, so this rank begins no update: %s", self._failure)
            self._judge()

    def interrupt(self, reason: str) -> None:
        with self._lock:
            if not self._reason:
                self._reason = reason or "interrupted"
            self._judge()
            groups = list(self._groups)
        for group in groups:
            group._interrupt()
        for work in list(self.works):
            work.settle()

    @property
    def is_interrupted(self) -> bool:
        return bool(self._reason)

    def why_not(self) -> str:
        return self._reason or (f"a communication has failed: {self._failure}" if self._failure else "")

    def raise_if_interrupted(self) -> None:
        if self._reason:
            raise Interrupted(self._reason)

    def raise_if_started_anew(self) -> None:
        """Raises Error if a rank has ended and was started again while groups open for the first time. Its first
        process was waited for, and never connects."""
        if self._prefix == _START:
            again = [rank for rank in range(self._ranks) if self._store.add(f"starts/{rank}", 0) > 1]
            if again:
                raise Error(
                    Status.SUPERSEDED,
                    f"ranks {again} ended and were started again before all ranks had connected; end this process, so "
                    "that the launcher starts all ranks again",
                )

    def raise_or_go_on(self, error: BaseException | None) -> None:
        """Call this if a communication did not succeed. Returns in a guarded backward pass, where the result may be
        meaningless. Otherwise raises `error` or Interrupted."""
        if not self.guarded and error is not None and not self._reason:
            raise error
        if not (self.guarded and _internals.in_backward()):
            raise Interrupted(self.why_not()) from error

    def close(self) -> None:
        self.interrupt("the groups are closed")
        drop([group._let_go() for group in self._groups])
        with self._lock:
            self.is_closed, self._reason, self._failure, self.failures = True, "", "", 0
            self._judge()

    def reopen(self, prefix: str) -> None:
        if not self.is_closed or any(group._inner is not None for group in self._groups):
            self.close()
        self._prefix = prefix
        for group in self._groups:
            group._open(prefix)
        with self._lock:
            self.is_closed = False
            self._judge()
        self.raise_if_interrupted()


def _first_sentence(error: BaseException) -> str:
    """Returns the first sentence of an error, without gloo's place in the source, and without gloo's advice."""
    text = re.sub(r"^\[[^]]*\.(cc|h|cpp):\d+\] *", "", str(error).strip()) or type(error).__name__
    return text.splitlines()[0].split(". ")[0]


def drop(inner: list[Any | None]) -> None:
    """Ends the connections and threads of these groups. Their communications end, because no byte comes in any more.
    But gloo may not notice that a send has failed. Then gloo's thread waits until the group's timeout."""
    threads = []
    while inner:
        one = [inner.pop()]  # the only reference, so that the thread runs the destructor, which waits
        if one[0] is not None:
            threads.append(threading.Thread(target=one.clear, daemon=True))
            threads[-1].start()
    deadline = time.monotonic() + _CLOSING_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left = sum(thread.is_alive() for thread in threads)
    if left:
        log.warning(
            "%d interrupted process groups still wait to send. Their threads end when the group's timeout has passed",
            left,
        )


state = State()
