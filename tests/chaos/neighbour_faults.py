"""What neighbours do to a job: somebody removes its files from memory, or sends bytes to every port that it has."""

import shutil
import subprocess
import sys
from pathlib import Path

from chaos_settings import DEADLINE_S, Violation
from faults import Aftermath, has_spare_copies, kind, random_moment
from processes import agent_pids, cpu_seconds, has_ended, listening_ports

IDLE_S = 2.0
BUSY_SHARE = 0.2
UNAUTHENTICATED_PEER = Path(__file__).with_name("unauthenticated_peer.py")


@kind(loses_nodes=1, fits=has_spare_copies)
def arena_removed(job, rng):
    """As logind does when a user logs out. What is mapped lives on until its processes end. The agent says so, unless
    the job is started again at once."""
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    shutil.rmtree(job.arena / job.name / node)
    if rng.random() < 0.7:
        job.train_for(rng.uniform(0, 4))
        job.await_status(node, lambda agent: "removed" in agent["alarm"], f"word that the arena of {node} was removed")
    return Aftermath(1, node)


@kind()
def unauthenticated_peers_at_every_port(job, rng):
    """Of every agent. Each comes from another node, or from the same where nodes share an interface."""
    random_moment(job, rng)
    nodes = [*job.nodes, *job.standbys]
    pids = agent_pids(job.name)
    ports = {node: [port for pid in agent_pids(job.name, node) for port in listening_ports(pid)] for node in nodes}
    unauthenticated_peers = [visit(job, node, rng.choice(nodes), ports[node], rng) for node in nodes]
    try:
        while any(unauthenticated_peer.poll() is None for unauthenticated_peer in unauthenticated_peers):
            job.release()
    finally:
        for unauthenticated_peer in unauthenticated_peers:
            unauthenticated_peer.kill()
            unauthenticated_peer.wait(DEADLINE_S)
    if any(unauthenticated_peer.returncode != 0 for unauthenticated_peer in unauthenticated_peers):
        raise Violation("an unauthenticated peer was not done; the log is unauthenticated_peer.log")
    job.train_until_commit()
    if ended := sum(has_ended(pid) for pid in pids):
        raise Violation(f"unauthenticated peers have ended {ended} of {len(pids)} agents")
    check_that_nobody_burns(job)
    return Aftermath(0, f"{sum(map(len, ports.values()))} ports of {len(nodes)} agents")


def check_that_nobody_burns(job):
    """While no rank trains, an agent has next to nothing to do."""
    job.wait_until(lambda: all(t.ready for t in job.trainers), "every rank ready for its next iteration")
    before = {pid: cpu_seconds(pid) for pid in agent_pids(job.name)}
    job.pause(IDLE_S)
    for pid, spent in before.items():
        now = cpu_seconds(pid)
        if spent is not None and now is not None and now - spent > BUSY_SHARE * IDLE_S:
            raise Violation(f"agent {pid} spends {now - spent:.1f} s of processor time in {IDLE_S} s without training")


def visit(job, node, origin, ports, rng):
    words = [job.network.address(node), str(rng.randrange(1 << 32)), *map(str, ports)]
    with open(job.logs / "unauthenticated_peer.log", "ab") as log:
        command = [*job.network.enter(origin), sys.executable, UNAUTHENTICATED_PEER, *words]
        return subprocess.Popen(command, stdout=log, stderr=log)
