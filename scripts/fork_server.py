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

# What ranks with torch import. All tests ask for the same, so the tests of all files share a server: an import of torch
# takes 2 s of CPU, and one of torch._dynamo as much. Modules that are imported at once need not be named.
TORCH = (
    "ckptengine.torch",
    "pytest",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
    "torchdata.stateful_dataloader",
)


class Processes:
    """Makes processes from a server that has imported these modules, and perhaps others. Not for several threads."""

    _imported: frozenset[str] | None = None  # by the server that runs

    def __init__(self, *modules: str) -> None:
        self._modules = frozenset(modules)
        self._context = multiprocessing.get_context("forkserver")

    def start_server(self) -> None:
        """Replaces a server that lacks a module, and kills processes that a test left behind."""
        imported = Processes._imported
        if imported is not None and self._modules <= imported:
            return
        end_server()
        Processes._imported = self._modules | (imported or frozenset())
        self._context.set_forkserver_preload(sorted(Processes._imported))
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
