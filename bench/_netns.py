"""Two nodes of their own on this machine: network namespaces, joined by a veth pair of limited rate.

A Network owns its namespaces and every process started in them, and takes all of them away when it is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from cluster import stop_processes

INTERFACE = "ckpt0"  # on both nodes
# What one send may pass on at once is kept small, so that the link is shared in small turns; the bucket takes it whole.
GSO_BYTES = 32 << 10
BURST_BYTES = GSO_BYTES + (1 << 10)
QUEUE_BYTES = 4 << 20
START_S = 15


class NetworkFailure(Exception):
    """Namespaces or what runs in them cannot be had; the text says why."""


class Network:
    """Nodes node0 and node1. Each direction of the link takes `rate_mbit` Mbit/s."""

    def __init__(self, rate_mbit: float) -> None:
        missing = [program for program in ("ip", "tc", "setpriv", "taskset") if shutil.which(program) is None]
        if missing:
            raise NetworkFailure(
                f"{' and '.join(missing)} not found: install iproute2 and util-linux (Debian packages)"
            )
        if os.geteuid() != 0:
            raise NetworkFailure("network namespaces need root: run this as root")
        self.nodes = [f"node{i}" for i in range(2)]
        self._namespaces = {node: f"ckptengine-{os.getpid()}-{node}" for node in self.nodes}
        self._processes: list[subprocess.Popen] = []
        self._closing = contextlib.ExitStack()
        try:
            for namespace in self._namespaces.values():
                self._closing.callback(_try, "ip", "netns", "del", namespace)
                _must("ip", "netns", "add", namespace)
            self._join(rate_mbit)
        except BaseException:
            self._closing.close()
            raise
        self._closing.callback(stop_processes, self._processes)

    def _join(self, rate_mbit: float) -> None:
        first, second = self._namespaces.values()
        _must("ip", "link", "add", INTERFACE, "netns", first, "type", "veth", "peer", INTERFACE, "netns", second)
        for number, namespace in enumerate([first, second], 1):
            _must("ip", "-n", namespace, "link", "set", "lo", "up")
            _must("ip", "-n", namespace, "addr", "add", f"10.77.0.{number}/30", "dev", INTERFACE)
            _must("ip", "-n", namespace, "link", "set", INTERFACE, "up", "gso_max_size", str(GSO_BYTES))
            limit = ["rate", f"{rate_mbit}mbit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)]
            _must("tc", "-n", namespace, "qdisc", "add", "dev", INTERFACE, "root", "tbf", *limit)
        for namespace in (first, second):
            _await_link(namespace)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def start(self, node: str, command: list[Any], log: Path, core: int | None = None) -> subprocess.Popen:
        """A process on that node, on that core alone if there is one. What begins it becomes the command, so that its
        pid is the command's.
        """
        ends_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        inside = ["ip", "netns", "exec", self._namespaces[node]]
        pinned = [] if core is None else ["taskset", "--cpu-list", core]
        words = [str(word) for word in [*ends_with_parent, *inside, *pinned, *command]]
        with open(log, "a") as output:
            # A session of its own: Ctrl-C reaches the bench alone, which then ends its processes in order.
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "GLOO_SOCKET_IFNAME": INTERFACE},
            )
        self._processes.append(process)
        return process


class Agents:
    """One agent on each node, for one job."""

    def __init__(
        self,
        network: Network,
        ckptd: Path,
        job: str,
        arena_root: Path,
        scratch: Path,
        options: dict[str, Any],
        core: int | None = None,
    ) -> None:
        self.job = job
        self.arenas = {node: arena_root / f"{job}-{node}" for node in network.nodes}
        self.logs = {node: scratch / f"{job}-{node}.log" for node in network.nodes}
        self.processes: dict[str, subprocess.Popen] = {}
        coordination = scratch / f"{job}-coordination"
        coordination.mkdir()
        for node, arena in self.arenas.items():
            arena.mkdir(mode=0o700)
            own = {"job": job, "node": node, "arena_dir": arena, "coordination": coordination}
            more = {"transport": "tcp", "interface": INTERFACE, "log_file": self.logs[node]}
            words = [f"{key}={value}" for key, value in (own | more | options).items()]
            self.processes[node] = network.start(node, [ckptd, *words], self.logs[node], core)
        for node in self.arenas:
            self._await_socket(node)

    def _await_socket(self, node: str) -> None:
        deadline = time.monotonic() + START_S
        while not (self.arenas[node] / self.job / node / "agent.sock").exists():
            if self.processes[node].poll() is not None or time.monotonic() > deadline:
                raise NetworkFailure(f"the agent of {self.job} on {node} did not start: {tail(self.logs[node])}")
            time.sleep(0.02)

    def status(self, ckptctl: Path) -> dict[str, Any]:
        """What the first node's agent tells."""
        words = [ckptctl, "status", "--json", "--job", self.job, "--arena-dir", next(iter(self.arenas.values()))]
        return json.loads(_must(*map(str, words)))["agents"][0]

    def engine_options(self, node: str) -> dict[str, Any]:
        return {"job": self.job, "node": node, "arena_dir": str(self.arenas[node]), "agent": "attach"}


def tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(["", f"--- {log} ---", *log.read_text(errors="replace").splitlines()[-lines:]])
    except OSError as error:
        return str(error)


def _await_link(namespace: str) -> None:
    """Until the kernel says so, programs take the interface for one that cannot be used."""
    deadline = time.monotonic() + START_S
    while "state UP" not in _must("ip", "-n", namespace, "link", "show", INTERFACE):
        if time.monotonic() > deadline:
            raise NetworkFailure(f"{INTERFACE} in the namespace {namespace} does not come up")
        time.sleep(0.02)


def _must(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NetworkFailure(f"'{' '.join(words)}' failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _try(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True)
