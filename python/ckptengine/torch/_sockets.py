"""Finds the TCP connections of a communication library in this process, and shuts them. Threads that wait for these
connections then get an error. Never touches the listening sockets: gloo ends the process if one of them fails."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator

Address = tuple[str, int]


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yields a duplicate of each TCP socket of this process, and closes it afterwards."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            each = socket.socket(fileno=os.dup(int(entry)))
        except OSError:  # closed meanwhile
            continue
        with each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                yield each


def listening() -> set[Address]:
    """Returns the addresses at which this process listens."""
    return {
        each.getsockname()[:2] for each in _tcp_sockets() if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def shut(here: Collection[Address], there: Collection[Address]) -> int:
    """Shuts the connections that were accepted at the addresses `here`, or made to the addresses `there`. Returns how
    many there are. Any thread may call it."""
    found = 0
    for each in _tcp_sockets():
        with contextlib.suppress(OSError):  # not connected, or not any more
            peer = each.getpeername()[:2]
            if each.getsockname()[:2] in here or peer in there:
                found += 1
                each.shutdown(socket.SHUT_RDWR)
    return found
