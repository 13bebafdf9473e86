"""Processes of Python tests that start at once: forks of a server that has imported what takes seconds to import.

multiprocessing has one fork server in a process, which ignores what later users want to have imported.
"""

import multiprocessing
import os
import pathlib
import signal
import sys
from multiprocessing import forkserver
from unittest import mock


class Processes:
    """Makes processes from a server that has imported these modules. Not for several threads."""

    _imported: frozenset[str] = frozenset()  # by the server that runs

    def __init__(self, *modules: str) -> None:
        self._modules = frozenset(modules)
        self._context = multiprocessing.get_context("forkserver")

    def start_server(self) -> None:
        """Replaces a server that lacks a module, and kills processes that a test left behind."""
        if self._modules <= Processes._imported:
            return
        end_server()
        Processes._imported = self._modules
        self._context.set_forkserver_preload(sorted(self._modules))
        # It finds modules by its environment alone.
        with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
            forkserver.ensure_running()

    def Process(self, **given) -> multiprocessing.Process:
        self.start_server()
        return self._context.Process(**given)


def end_server() -> None:
    server = forkserver._forkserver
    pid = server._forkserver_pid
    if pid is not None:
        # It ends by itself only after all its processes have ended.
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process in (pid, *map(int, children)):
            os.kill(process, signal.SIGKILL)
    server._stop()
