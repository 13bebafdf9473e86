"""Decides whether a rank that has failed is restarted, and when. Pure: no processes, no clock."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict, dataclass, field
from typing import Any

# Signals that a process gets because of its own faults. Other signals come from outside.
OWN_SIGNALS = {-int(each) for each in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)}
BACKOFF_MAX_S = 30.0
BACKOFF_WINDOW_S = 120.0
TRACE_LINES_MAX = 60
OTHERS_MAX = 8


@dataclass(frozen=True)
class Failure:
    """How a rank's process ended."""

    rank: int
    how: str  # for people: "ended with status 1", "was ended by SIGKILL", "was lost with node 2"
    status: int = 0  # as subprocess gives it; 0 if its node was lost
    trace: str = ""  # the end of what it wrote to standard error, from the last traceback on
    iteration: int | None = None  # the newest that ranks on its node have ended or the job has committed; None: unknown
    where: str = ""  # the node's name, and the process

    def to_message(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def has_place(self) -> bool:
        """True if the process failed by itself, so it may fail at the same place of the program again."""
        return self.status > 0 or self.status in OWN_SIGNALS

    def is_same_place(self, other: Failure) -> bool:
        return (
            self.has_place
            and self.status == other.status
            and _last_line(self.trace) == _last_line(other.trace)
            and (self.iteration is None) == (other.iteration is None)
            and (self.iteration or 0) <= (other.iteration or 0)
        )

    def __str__(self) -> str:
        text = f"rank {self.rank} {self.how}" + (f" ({self.where})" if self.where else "")
        return f"{text}. The last that it wrote to standard error:\n{self.trace}" if self.trace else text


def _last_line(trace: str) -> str:
    lines = trace.strip().splitlines()
    return re.sub(r"0x[0-9a-f]+|\d+", "N", lines[-1]) if lines else ""


def end_of_trace(text: str) -> str:
    """Returns the end of what a process wrote, from its last chain of tracebacks on: at most 60 lines."""
    lines = text.rstrip().splitlines()[-TRACE_LINES_MAX:]
    begins = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
    if not begins:
        return "\n".join(lines[-20:])
    begin = begins[-1]
    for earlier in reversed(begins[:-1]):  # "During handling of the above exception ..." joins them
        if any(line.startswith(("During handling of", "The above exception was")) for line in lines[earlier:begin]):
            begin = earlier
        else:
            break
    return "\n".join(lines[begin:])


@dataclass(frozen=True)
class Restart:
    delay_s: float


@dataclass(frozen=True)
class Stop:
    text: str


@dataclass
class _Rank:
    failed_at_s: list[float] = field(default_factory=list)  # within the window
    last: Failure | None = None


class Restarts:
    """The restarts of all ranks of the job."""

    def __init__(self, max_restarts: int, window_s: float) -> None:
        self._max, self._window_s = max_restarts, window_s
        self._ranks: dict[int, _Rank] = {}
        self._recent: list[tuple[float, Failure]] = []

    def judge(self, failure: Failure, now_s: float) -> Restart | Stop:
        rank = self._ranks.setdefault(failure.rank, _Rank())
        self._recent = [(at, one) for at, one in self._recent if now_s - at <= self._window_s][-100:]
        self._recent.append((now_s, failure))
        before, rank.last = rank.last, failure
        if self._max == 0:
            return Stop(str(failure))
        if before is not None and failure.is_same_place(before):
            reached = "" if before.iteration is None else f" after iteration {before.iteration}"
            others = self._others_since(rank.failed_at_s[-1] if rank.failed_at_s else now_s, failure.rank)
            text = f"rank {failure.rank} has failed twice in the same way{reached}, without progress"
            return Stop(f"{text}{others}. {failure}")
        rank.failed_at_s = [at for at in rank.failed_at_s if now_s - at <= self._window_s] + [now_s]
        if len(rank.failed_at_s) > self._max:
            return Stop(
                f"rank {failure.rank} has failed {len(rank.failed_at_s)} times within {self._window_s:g} s, more often "
                f"than --max-restarts allows. The first failure: {self._recent[0][1]}"
                + ("" if self._recent[0][1] is failure else f"\nThe last failure: {failure}")
            )
        return Restart(_backoff_s(sum(now_s - at <= BACKOFF_WINDOW_S for at in rank.failed_at_s)))

    def _others_since(self, since_s: float, rank: int) -> str:
        """Names failures of other ranks since then, because one of them may be the cause. "" if there are none."""
        found = [f"rank {one.rank} {one.how}" for at, one in self._recent if at >= since_s and one.rank != rank]
        return f" (meanwhile {', '.join(found[:OTHERS_MAX])})" if found else ""


def _backoff_s(failures: int) -> float:
    """How long to wait before a restart. The first restart comes at once."""
    return 0.0 if failures <= 1 else min(BACKOFF_MAX_S, 2.0 ** (failures - 2))
