"""One child process of the launcher: its output, its end, and signals to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ._loop import Loop
from ._output import Output, Stream

WORKER = Path(__file__).with_name("_worker.py")


def worker_words(kind: str, words: Sequence[str], preload: str = "-") -> list[str]:
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    return [python, "-u", str(WORKER), str(os.getpid()), preload, kind, *words]


def how_it_ended(status: int) -> str:
    """Returns how a process ended, for people. `status` is as subprocess gives it: negative for a signal."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


class Process:
    """A process in a session of its own. It calls `on_end(status)` once it has ended and its output has been taken.

    `name` goes in front of each line that the process writes, and may change. When the process has ended, its process
    group is killed. So no process that it started outlives it, except daemons such as the agent.
    """

    def __init__(
        self,
        loop: Loop,
        output: Output,
        words: Sequence[str],
        name: str,
        on_end: Callable[[int], None],
        environment: dict[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.started_s = time.monotonic()
        self._loop, self._on_end = loop, on_end
        self._popen = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._streams = [
            Stream(loop, output, os.dup(pipe.fileno()), fd, lambda: f"[{self.name}] ")
            for pipe, fd in ((self._popen.stdout, 1), (self._popen.stderr, 2))
        ]
        self._popen.stdout.close()
        self._popen.stderr.close()
        self._pidfd = os.pidfd_open(self.pid)
        loop.watch(self._pidfd, self._ended)

    @property
    def runs(self) -> bool:
        return self._pidfd >= 0

    def tell(self, line: bytes) -> None:
        """Writes a line to the process's standard input, and closes that input."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended; on_end() will be called
            os.write(self._popen.stdin.fileno(), line)
        self._popen.stdin.close()

    def signal(self, number: signal.Signals) -> None:
        if self.runs:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def error_text(self) -> str:
        """Returns the end of what the process wrote to standard error."""
        return self._streams[1].end.decode(errors="replace")

    def _ended(self) -> None:
        self._loop.forget(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # before wait(), because after it another process may get this number
        status = self._popen.wait()
        if self._popen.stdin and not self._popen.stdin.closed:
            self._popen.stdin.close()
        for stream in self._streams:
            stream.finish()
        self._on_end(status)
