"""Processes of ranks: started together from one that has imported their modules, watched to their end, and the node
beneath them lost."""

import shutil
import signal
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
