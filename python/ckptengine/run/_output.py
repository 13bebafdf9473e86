"""Passes on what ranks write: puts the rank's number in front of each line, and writes it to the launcher's own
output."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable

from ._loop import Loop

LINE_BYTES_MAX = 8192  # a longer line is cut in two
TAIL_BYTES = 64 << 10
RETRY_S = 0.05


class Output:
    """Writes to the launcher's standard output and error, on a thread of its own, because their readers may be slow.

    At most `limit` pieces wait to be written. While so many wait, no output of ranks is read, so ranks that write wait.
    """

    def __init__(self, limit: int = 1000) -> None:
        self._pieces: queue.Queue[tuple[int, bytes] | None] = queue.Queue()
        self._limit = limit
        self._thread = threading.Thread(target=self._write, name="ckptrun-output", daemon=True)
        self._thread.start()

    def has_room(self) -> bool:
        return self._pieces.qsize() < self._limit

    def put(self, fd: int, data: bytes) -> None:
        self._pieces.put((fd, data))

    def say(self, text: str) -> None:
        """Writes lines of the launcher itself."""
        self.put(2, "".join(f"ckptrun: {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def close(self, wait_limit_s: float) -> None:
        """Waits until everything is written, at most `wait_limit_s`."""
        self._pieces.put(None)
        self._thread.join(wait_limit_s)

    def _write(self) -> None:
        broken: set[int] = set()
        while (piece := self._pieces.get()) is not None:
            fd, data = piece
            while data and fd not in broken:
                try:
                    data = data[os.write(fd, data) :]
                except BlockingIOError:
                    time.sleep(RETRY_S)
                except OSError:  # nobody reads it any more
                    broken.add(fd)


class Stream:
    """One pipe from a process. `end` has the last bytes that came through it. This object closes the pipe."""

    def __init__(self, loop: Loop, output: Output, pipe: int, fd: int, prefix: Callable[[], str]) -> None:
        self._loop, self._output, self._pipe, self._fd, self._prefix = loop, output, pipe, fd, prefix
        self._rest = b""
        self.end = b""
        os.set_blocking(pipe, False)
        loop.watch(pipe, self._read)

    def finish(self) -> None:
        """Takes what is in the pipe, without waiting for more, and closes it."""
        with contextlib.suppress(BlockingIOError):
            while self._pipe >= 0:
                self._take()
        self._close()

    def _read(self) -> None:
        if not self._output.has_room():
            self._loop.forget(self._pipe)
            self._loop.after(RETRY_S, self._resume)
        else:
            with contextlib.suppress(BlockingIOError):
                self._take()

    def _resume(self) -> None:
        if self._pipe >= 0:
            self._loop.watch(self._pipe, self._read)

    def _take(self) -> None:
        """Takes some of what is in the pipe. Raises BlockingIOError if there is nothing now."""
        data = os.read(self._pipe, 65536)
        if data:
            self.end = (self.end + data)[-TAIL_BYTES:]
            self._pass_on(data)
        else:
            self._close()

    def _pass_on(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        while len(rest) > LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._rest = rest
        if lines:
            prefix = self._prefix().encode()
            self._output.put(self._fd, b"".join(prefix + line + b"\n" for line in lines))

    def _close(self) -> None:
        if self._pipe < 0:
            return
        if self._rest:
            self._pass_on(b"\n")
        self._loop.forget(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
