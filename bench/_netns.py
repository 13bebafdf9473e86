"""Nodes on this machine, each in its own network namespace with a link of limited rate. Agents on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import netns
from cluster import stop_processes
from netns import INTERFACE, NetworkFailure

START_S = 15
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Network(netns.Network):
    """Nodes node0, node1 and so on, and the processes on them. A node's link has `rate_mbit` Mbit/s in each
    direction.
    """

    def __init__(self, rate_mbit: float, nodes: int = 2) -> None:
        self.nodes = [f"node{number}" for number in range(nodes)]
        self._processes: list[subprocess.Popen] = []
        super().__init__(self.nodes, rate_mbit)

    def close(self) -> None:
        stop_processes(self._processes)
        super().close()

    def start(self, node: str, command: list[Any], log: Path, core: int | None = None) -> subprocess.Popen:
        """A process on that node, on that core alone if there is one. What begins it becomes the command, so that its
        pid is the command's.
        """
        ends_with_parent = ["setpriv", "--pdeathsig", "KILL"]
        pinned = [] if core is None else ["taskset", "--cpu-list", core]
        words = [str(word) for word in [*ends_with_parent, *self.enter(node), *pinned, *command]]
        with open(log, "a") as output:
            # In a session of its own, so that Ctrl-C reaches only the bench, which then ends its processes in order.
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
        self._network, self._ckptd, self._options, self._core = network, ckptd, options, core
        self._coordination = scratch / f"{job}-coordination"
        self.arenas = {node: arena_root / f"{job}-{node}" for node in network.nodes}
        self.logs = {node: scratch / f"{job}-{node}.log" for node in network.nodes}
        self.processes: dict[str, subprocess.Popen] = {}
        self._coordination.mkdir()
        for node in self.arenas:
            self._start(node)
        for node in self.arenas:
            self._await_socket(node)

    def _start(self, node: str) -> None:
        arena = self.arenas[node]
        arena.mkdir(mode=0o700)
        own = {"job": self.job, "node": node, "arena_dir": arena, "coordination": self._coordination}
        more = {"transport": "tcp", "interface": INTERFACE, "log_file": self.logs[node]}
        words = [f"{key}={value}" for key, value in (own | more | self._options).items()]
        self.processes[node] = self._network.start(node, [self._ckptd, *words], self.logs[node], self._core)

    def replace(self, nodes: list[str]) -> None:
        """What power failures do: these nodes' agents and memory are gone. Then each node gets a new agent."""
        for node in nodes:
            self.processes[node].kill()
        for node in nodes:
            self.processes[node].wait()
            shutil.rmtree(self.arenas[node])
            self._start(node)
        for node in nodes:
            self._await_socket(node)

    def _await_socket(self, node: str) -> None:
        deadline = time.monotonic() + START_S
        while not (self.arenas[node] / self.job / node / "agent.sock").exists():
            if self.processes[node].poll() is not None or time.monotonic() > deadline:
                raise NetworkFailure(f"the agent of {self.job} on {node} did not start: {tail(self.logs[node])}")
            time.sleep(0.02)

    def status(self, ckptctl: Path, node: str = "node0") -> dict[str, Any]:
        """What that node's agent tells."""
        words = [ckptctl, "status", "--json", "--job", self.job, "--arena-dir", self.arenas[node]]
        asked = subprocess.run(words, check=False, capture_output=True)  # status not 0: the job is not protected
        return json.loads(asked.stdout)["agents"][0]

    def engine_options(self, node: str) -> dict[str, Any]:
        return {"job": self.job, "node": node, "arena_dir": str(self.arenas[node]), "agent": "attach"}


def tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(["", f"--- {log} ---", *log.read_text(errors="replace").splitlines()[-lines:]])
    except OSError as error:
        return str(error)


def run_bench(name: str, run: Callable[[], None]) -> int:
    """Runs the bench, and returns its exit status. A signal ends it through its clean-up, which nothing shall
    interrupt.
    """

    def end(number: int, _: Any) -> None:
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in ENDING:
        signal.signal(number, end)
    try:
        run()
    except NetworkFailure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return 1
    return 0
