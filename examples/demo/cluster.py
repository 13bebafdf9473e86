"""Nodes on one machine: each has an agent of its own, an arena of its own, and some trainers.

A Cluster owns every process and directory it makes, and takes all of them away when it is closed, however that comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
AGENT_START_S = 15
STATUS_S = 15
REPLACEMENT_S = 60
STOP_GRACE_S = 5
LOST_LINE = re.compile(r"^\[([^]]*)\] .* node (\S+) does not answer any more:", re.MULTILINE)
DECIDED_LINE = re.compile(r"^\[([^]]*)\] .* incarnation (\d+) was decided:", re.MULTILINE)
PARITY_PREFIX = "parity."  # of the names under which agents hold parity


class DemoFailure(Exception):
    """The demo cannot go on; the text says why, and what the log says."""


@dataclass(frozen=True)
class Held:
    """Bytes of one checkpoint on all nodes."""

    captured: int
    copies: int
    parity: int


@dataclass
class Node:
    name: str
    arena_dir: Path
    agent: subprocess.Popen
    log: Path
    trainers: dict[int, subprocess.Popen] = field(default_factory=dict)


class Cluster:
    """`programs` holds the paths of library, ckptd and ckptctl. `agent_options` go to every agent, and what both
    must agree on to the trainers, too."""

    def __init__(
        self,
        job: str,
        programs: dict[str, Path],
        logs: Path,
        arena_root: Path,
        agent_options: dict[str, Any],
        coordinator: str = "directory",
    ) -> None:
        self.job = job
        self.programs = programs
        self.logs = logs
        self.agent_options = agent_options
        self.nodes: dict[str, Node] = {}
        self._closing = contextlib.ExitStack()
        self.scratch = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-demo-")))
        self.arenas = Path(
            self._closing.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-demo-", dir=arena_root))
        )
        self.coordination = self._start_etcd() if coordinator == "etcd" else str(self.scratch / "coordination")
        self._incarnations = 0
        self._loose: dict[int, subprocess.Popen] = {}  # trainers on no node
        self._counted_before: Counter[str] = Counter()  # by agents that were killed

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self.stop_trainers()
            for node in self.nodes.values():
                stop_processes([node.agent])

    def _start_etcd(self) -> str:
        """A real server, which ends with the cluster."""
        folder = self.scratch / "etcd"
        self._closing.callback(_etcd_server, "stop", folder)
        try:
            return _etcd_server("start", folder)
        except DemoFailure:
            self._closing.close()
            raise

    # ---- nodes ----

    def add_node(self, name: str, **more: Any) -> Node:
        """A machine with nothing on it but a running agent, which takes these options, too."""
        arena_dir = self.arenas / name
        arena_dir.mkdir(mode=0o700)
        log = self.logs / f"{name}.agent.log"
        options = self._node_options(name, arena_dir) | {"log_file": log} | self.agent_options | more
        words = [f"{key}={value}" for key, value in options.items()]
        agent = _start([self.programs["ckptd"], *words], log)  # what it says before its log is open
        self.nodes[name] = Node(name, arena_dir, agent, log)
        deadline = time.monotonic() + AGENT_START_S
        socket = arena_dir / self.job / name / "agent.sock"
        while not socket.exists():
            if agent.poll() is not None:
                raise DemoFailure(f"the agent of {name} ended with status {agent.returncode}: {why_ended(log)}")
            if time.monotonic() > deadline:
                raise DemoFailure(f"the agent of {name} is not ready after {AGENT_START_S} s\n{tail(log)}")
            time.sleep(0.02)
        return self.nodes[name]

    def kill_nodes(self, names: list[str]) -> None:
        """What a power failure does: agents and trainers are gone in the same moment, and so is the memory."""
        for name in names:
            self._counted_before.update(self.status(name)["counters"])
        nodes = [self.nodes.pop(name) for name in names]
        processes = [process for node in nodes for process in [node.agent, *node.trainers.values()]]
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            process.wait()
        for node in nodes:
            shutil.rmtree(node.arena_dir)

    def status(self, name: str) -> dict[str, Any]:
        """What `ckptctl status` tells of a node's agent."""
        where = ["--job", self.job, "--arena-dir", self.nodes[name].arena_dir]
        command = [str(word) for word in [self.programs["ckptctl"], "status", "--json", *where]]
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=STATUS_S, check=True)
        except subprocess.SubprocessError as error:
            reason = getattr(error, "stderr", None) or error
            raise DemoFailure(f"the agent of {name} does not answer: {reason}\n{tail(self.nodes[name].log)}") from error
        return json.loads(asked.stdout)["agents"][0]

    def declared_lost_at_s(self, names: list[str], killed_at_s: float) -> float | None:
        """When the last of these nodes was found to be lost, as the agent that led the job logged it; on the clock of
        time.monotonic(). None where nobody was left who could."""
        found = self._logged(LOST_LINE, killed_at_s)
        return max(found[name] for name in names) if found.keys() >= set(names) else None

    def decided_at_s(self, incarnation: int, killed_at_s: float) -> float | None:
        """When it was decided what this incarnation of the job goes on from."""
        return self._logged(DECIDED_LINE, killed_at_s).get(str(incarnation))

    def _logged(self, line: re.Pattern[str], since_s: float) -> dict[str, float]:
        """When any agent first logged such a line, by what it names."""
        clocks_apart_s = time.time() - time.monotonic()
        found: dict[str, float] = {}
        for log in sorted(self.logs.glob("*.agent.log")):
            for at, name in line.findall(log.read_text(errors="replace")):
                at_s = datetime.fromisoformat(at).timestamp() - clocks_apart_s
                if at_s > since_s:
                    found[name] = min(at_s, found.get(name, at_s))
        return found

    def await_replacement(self, standby: str, lost: str) -> None:
        """Until the standby node has the place of the lost one, and what is committed all its copies and parity."""

        def is_protected(agent: dict[str, Any]) -> bool:
            has_parity = agent["parity"] == 0 or agent["parity_now"] > 0
            return _stands_in(agent, standby, lost) and agent["copies_now"] == agent["copies"] and has_parity

        self._await(standby, f"get what {lost} had", is_protected)

    def _await(self, name: str, what: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
        deadline = time.monotonic() + REPLACEMENT_S
        while not is_so(self.status(name)):
            if time.monotonic() > deadline:
                raise DemoFailure(f"{name} did not {what} within {REPLACEMENT_S} s\n{tail(self.nodes[name].log)}")
            time.sleep(0.02)

    def counted(self) -> Counter[str]:
        """The counters of all agents that there ever were."""
        counters = Counter(self._counted_before)
        for name in self.nodes:
            counters.update(self.status(name)["counters"])
        return counters

    def held(self) -> Held:
        """The newest checkpoint that all agents know to be committed: how much of it there is in memory."""
        agents = [self.status(name) for name in self.nodes]
        checkpoint = min((agent["committed"] or {} for agent in agents), key=lambda known: tuple(known.values()))
        found: Counter[str] = Counter()
        for agent in agents:
            for segment in agent["segments"]:
                parity = segment["shard"].startswith(PARITY_PREFIX)
                kind = "captured" if segment["kind"] == "local" else "parity" if parity else "copies"
                found[kind] += sum(slot["bytes"] for slot in segment["slots"] if slot["checkpoint"] == checkpoint)
        return Held(found["captured"], found["copies"], found["parity"])

    def _node_options(self, name: str, arena_dir: Path) -> dict[str, Any]:
        return {"job": self.job, "node": name, "arena_dir": arena_dir, "coordination": self.coordination}

    # ---- trainers ----

    def start_trainers(self, placement: dict[int, str | None], settings: dict[str, Any]) -> list[Path]:
        """One incarnation of the job: a trainer for each rank on its node (None: on no node, without an engine).
        Returns the
        files in which the ranks tell what they do."""
        self._incarnations += 1
        protocols = []
        for rank, node in placement.items():
            stem = f"{settings['name']}.incarnation{self._incarnations}.rank{rank}"
            own = settings | {
                "rank": rank,
                "world_size": len(placement),
                "rendezvous": str(self.scratch / f"rendezvous-{self._incarnations}"),
                "protocol": str(self.scratch / f"{stem}.jsonl"),
                "engine": self.engine_options(node, rank, len(placement)) if node is not None else None,
            }
            path = self.scratch / f"{stem}.json"
            path.write_text(json.dumps(own, default=str))
            trainer = _start(
                [sys.executable, HERE / settings.get("program", "trainer.py"), path], self.logs / f"{stem}.log"
            )
            (self._loose if node is None else self.nodes[node].trainers)[rank] = trainer
            protocols.append(Path(own["protocol"]))
        return protocols

    def engine_options(self, node: str, rank: int, world_size: int) -> dict[str, Any]:
        here = self.nodes[node]
        return {
            "library": self.programs["library"],
            "job": self.job,
            "node": node,
            "rank": rank,
            "world_size": world_size,
            "agent": "attach",
            "arena_dir": here.arena_dir,
        } | {key: self.agent_options[key] for key in ("copies", "protection") if key in self.agent_options}

    def trainers(self) -> dict[int, subprocess.Popen]:
        found = dict(self._loose)
        for node in self.nodes.values():
            found |= node.trainers
        return found

    def stop_trainers(self) -> None:
        """Ends this incarnation of the job, as a launcher does when one trainer has failed."""
        stop_processes(list(self.trainers().values()))
        self._loose.clear()
        for node in self.nodes.values():
            node.trainers.clear()

    def failed_trainer(self) -> int | None:
        """A rank whose trainer ended badly, if there is one."""
        return next((rank for rank, trainer in self.trainers().items() if trainer.poll() not in (None, 0)), None)

    def trainers_done(self) -> bool:
        return all(trainer.poll() == 0 for trainer in self.trainers().values())

    def trainer_log(self, rank: int, name: str) -> str:
        return tail(self.logs / f"{name}.incarnation{self._incarnations}.rank{rank}.log")


def _stands_in(agent: dict[str, Any], standby: str, lost: str) -> bool:
    return {"node": standby, "instead_of": lost} in agent["replacements"]


def _etcd_server(command: str, folder: Path) -> str:
    script = HERE.parents[1] / "scripts" / "etcd_server.sh"
    done = subprocess.run(["bash", script, command, folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailure(done.stderr.strip())
    return done.stdout.strip()


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, under its name."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError as error:
        text = [str(error)]
    return "\n".join([f"--- {log} ---", *text])


def why_ended(log: Path) -> str:
    """The sentence with which an agent refused to start, or else the end of its log."""
    said = [line.removeprefix("ckptd: ") for line in tail(log).splitlines() if line.startswith("ckptd: ")]
    return said[-1] if said else f"see its log\n{tail(log)}"


def _start(command: list[Any], log: Path) -> subprocess.Popen:
    # A session of its own: Ctrl-C reaches the demo alone, which then ends its processes in order.
    with open(log, "a") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )


def stop_processes(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
