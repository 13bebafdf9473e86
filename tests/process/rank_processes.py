"""Processes of ranks: started together from one that has imported their modules, watched to their end, and the node
beneath them lost."""

import importlib
import shutil
import signal
import sys
import time

from fork_server import Processes
from processes import agent_pids, has_ended, kill_process

DEADLINE_S = 100


def ranks_of(*preloaded: str) -> Processes:
    """Makes processes of ranks from one that has imported these modules, which takes longer than what a rank does.
    fork_server.TORCH names what ranks with torch need."""
    ranks = Processes(*preloaded)
    ranks.start_server()
    return ranks


def run_ranks(ranks, train, settings: list[dict], victims=(), daemon: bool = True) -> None:
    """Calls train(settings) in a process for each rank. All end well or, if there are victims, these are killed by
    themselves and the others at their end."""
    processes = [ranks.Process(target=train, args=(one,), daemon=daemon) for one in settings]
    for process in processes:
        process.start()
    deadline = time.monotonic() + DEADLINE_S
    try:
        for rank in victims or range(len(processes)):
            processes[rank].join(max(0.0, deadline - time.monotonic()))
            expected = -signal.SIGKILL if victims else 0
            assert processes[rank].exitcode == expected, f"rank {rank} ended with {processes[rank].exitcode}"
    finally:
        for process in processes:
            process.kill()
            process.join()


class Program:
    """A module's main() in a process, which has the given words as its arguments."""

    def __init__(self, ranks: Processes, module: str, *words: object) -> None:
        self._process = ranks.Process(target=run_main, args=(module, list(map(str, words))))
        self._process.start()
        self.pid = self._process.pid

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        assert self._process.exitcode is not None, f"process {self.pid} runs after {timeout_s} s"
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def run_main(module: str, words: list[str]) -> None:
    sys.argv = [module, *words]
    sys.exit(importlib.import_module(module).main())


def lose_node(cluster, node: str) -> None:
    """Its agent, and all memory there. Its ranks are dead."""
    pids = agent_pids(cluster.job, node)
    assert pids
    for pid in pids:
        kill_process(pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while not all(has_ended(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.rmtree(cluster.arena / cluster.job / node)
