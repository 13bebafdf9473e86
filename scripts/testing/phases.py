"""Runs the phases of a test run, each as soon as those before it have ended, and measures what each one costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Lowers the priority of a command, and that of its session, where Linux groups processes by session.
LOWEST_PRIORITY = ["sh", "-c", 'echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 "$@"', "sh"]


@dataclass
class Phase:
    """A command. It starts when the phases of `after` have ended and those of `needs` have succeeded."""

    name: str
    command: list[str]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    is_urgent: bool = True  # False: it leaves the processors to urgent phases
    environment: dict[str, str] = field(default_factory=dict)
    then: Callable[[], list[Phase]] | None = None  # names more phases, once this one has succeeded


@dataclass
class Ended:
    """What a phase took. `cpu_s` counts all processes below it that were waited for."""

    name: str
    status: int
    begin_s: float  # since the run began
    wall_s: float
    cpu_s: float


class Run:
    """The phases of one run. Not for several threads; it waits for all children of this process."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._begin_unix_s = time.time()
        self._waiting: list[Phase] = []
        self._running: dict[int, tuple[Phase, float, subprocess.Popen]] = {}
        self._ended: dict[str, Ended] = {}

    @property
    def begin_unix_s(self) -> float:
        return self._begin_unix_s

    def run(self, phases: Iterable[Phase]) -> list[Ended]:
        """Returns what the phases took that were started. One whose needs failed is not started."""
        self._waiting += phases
        try:
            self._start_what_can()
            while self._running:
                self._await_one()
                self._start_what_can()
        finally:
            self._interrupt()
        return list(self._ended.values())

    def _start_what_can(self) -> None:
        for phase in list(self._waiting):
            if any(name in self._ended and self._ended[name].status != 0 for name in phase.needs):
                self._waiting.remove(phase)
                self._ended[phase.name] = Ended(phase.name, 1, self._since_begin(), 0, 0)
                say(f"{phase.name}: left out, because a phase that it needs failed")
            elif all(name in self._ended for name in (*phase.needs, *phase.after)):
                self._waiting.remove(phase)
                self._start(phase)

    def _start(self, phase: Phase) -> None:
        command = [*([] if phase.is_urgent else LOWEST_PRIORITY), *phase.command]
        process = subprocess.Popen(
            command, env=os.environ | phase.environment, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._running[process.pid] = phase, time.monotonic(), process
        say(f"{phase.name}: begins after {self._since_begin():.0f} s")

    def _await_one(self) -> None:
        pid, status, usage = os.wait4(-1, 0)
        if pid not in self._running:
            return
        phase, begin, process = self._running.pop(pid)
        wall_s, cpu_s = time.monotonic() - begin, usage.ru_utime + usage.ru_stime
        code = process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it
        self._ended[phase.name] = Ended(phase.name, code, begin - self._begin, wall_s, cpu_s)
        how = "well" if code == 0 else f"with status {code}"
        say(f"{phase.name}: ended {how} in {wall_s:.0f} s, {cpu_s:.0f} s of CPU")
        if code == 0 and phase.then:
            self._waiting += phase.then()

    def _interrupt(self) -> None:
        for pid in self._running:
            os.killpg(pid, signal.SIGINT)

    def _since_begin(self) -> float:
        return time.monotonic() - self._begin


def say(text: str) -> None:
    print(f"==> {text}", file=sys.stderr, flush=True)
