"""torch's store at MASTER_PORT, in a process of its own: it outlives ranks, and ends with the launcher of node 0."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

from ._loop import Loop
from ._output import Output
from ._process import Process, how_it_ended, worker_words


class Store:
    """The socket listens at once. The process starts, and imports torch, when the first rank connects, because some
    jobs need no store."""

    def __init__(self, loop: Loop, output: Output, listener: socket.socket, on_failure: Callable[[str], None]) -> None:
        host, self.port = listener.getsockname()[:2]
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        self._loop, self._output, self._listener, self._on_failure = loop, output, listener, on_failure
        self._process: Process | None = None
        self._then: Callable[[], None] | None = None
        loop.watch(listener, self._begin)

    def _begin(self) -> None:
        self._loop.forget(self._listener)
        file = self._listener.fileno()
        words = worker_words("store", [str(file), self._host, str(self.port)])
        self._process = Process(self._loop, self._output, words, "store", self._ended, pass_fds=[file])

    def close(self, then: Callable[[], None]) -> None:
        """Ends the process and frees the port. Calls `then()` afterwards."""
        self._loop.forget(self._listener)
        self._listener.close()
        self._then = then
        if self.processes:
            self.processes[0].signal(signal.SIGKILL)
        else:
            then()

    def _ended(self, status: int) -> None:
        if self._then is not None:
            self._then()
            return
        self._on_failure(
            f"the process that serves torch's store at port {self.port} {how_it_ended(status)}, so ranks cannot find "
            "each other any more; see what it wrote. A training script that uses this port needs torch"
        )

    @property
    def processes(self) -> list[Process]:
        return [self._process] if self._process is not None and self._process.runs else []
