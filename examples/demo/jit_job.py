"""A job under ckptrun on several "nodes" of this machine: each has a launcher, an agent and an arena of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import corpus
import numpy as np
from cluster import DemoFailure, stop_processes, tail
from report import Progress

HERE = Path(__file__).resolve().parent
RANK = HERE / "jit_rank.py"
PYTHON = HERE.parents[1] / "python"
PRELOAD = "numpy,torch,torch._dynamo,torch.distributed,ckptengine.torch"  # an optimizer imports torch._dynamo, in 2 s
HALT_LINE = re.compile(r"^\[([^]]*)\] .*halt: incarnation (\d+) is halted", re.MULTILINE)
CAPTURE_EVERY = 10
SILENCE_S = 60
POLL_S = 0.01


class Told:
    """What the processes of one rank have told."""

    def __init__(self, path: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self.since_begin = -1  # iterations that the rank has finished since it last began to train; -1: it restores
        self._path, self._offset = path, 0
        self._by_name: dict[str, list[dict[str, Any]]] = {}

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            text = file.read()
            whole = text.rfind(b"\n") + 1
            self._offset += whole
            for line in text[:whole].splitlines():
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        name = event["event"]
        self.events.append(event)
        self._by_name.setdefault(name, []).append(event)
        if name in ("begins", "restoring"):
            self.since_begin = 0 if name == "begins" else -1
        elif name == "iteration":
            self.since_begin += 1

    def of(self, event: str) -> list[dict[str, Any]]:
        return self._by_name.get(event, [])


@dataclass
class Node:
    name: str
    arena: Path
    launcher: subprocess.Popen


class JitJob:
    """Four launchers with a rank each, and with `standby` one that takes the place of a lost one. Owns all processes
    and folders that it makes, and removes them when it is closed. `options` are the engine's, `way` is that of
    jit_rank.py."""

    def __init__(
        self, name: str, programs: dict[str, Path], logs: Path, arena_root: Path, *, ranks: int = 4,
        options: dict[str, Any], spares: int = 1, standby: bool = True, way: str = "rejoin",
        layers: int = 2, batch: int = 2, halt_grace_s: float = 1, end: int | None = None,
        progress: Progress | None = None, script: Path = RANK, python: Path = Path(sys.executable),
        preload: str = PRELOAD, environment: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.name = f"{name}-{os.getpid()}"
        self.programs, self.logs, self.ranks = programs, logs, ranks
        self.options, self.spares, self.way = options, spares, way
        self.halt_grace_s, self.progress = halt_grace_s, progress
        self.script, self.python, self.preload, self.environment = script, python, preload, environment or {}
        self._closing = contextlib.ExitStack()
        make = tempfile.TemporaryDirectory
        self.folder = Path(self._closing.enter_context(make(prefix=f"ckptengine-{name}-")))
        self.arenas = Path(self._closing.enter_context(make(prefix=f"ckptengine-{name}-", dir=arena_root)))
        np.save(self.folder / "text.npy", corpus.encode(corpus.read_text(None)))
        settings = {
            "folder": str(self.folder), "text": str(self.folder / "text.npy"), "way": way,
            "characters": corpus.CHARACTERS_MAX, "length": 64, "layers": layers, "batch": batch,
            "library": str(programs["library"]),
        }  # fmt: skip
        (self.folder / "settings.json").write_text(json.dumps(settings))
        if end is not None:
            self.set_end(end)
        self.told = [Told(self.folder / f"told-{rank}") for rank in range(ranks)]
        self.nodes: dict[str, Node] = {}
        self.endpoint = f"127.0.0.1:{free_port()}"
        try:
            for rank in range(ranks):
                self.launch(f"node{rank}", "--node-rank", str(rank))
            if standby:
                self.launch("standby", "--standby")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JitJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._closing:
            stop_processes([node.launcher for node in self.nodes.values()])
            self.kill_agents()

    # ---- nodes ----

    def launch(self, name: str, *words: str) -> None:
        arena = self.arenas / name
        arena.mkdir(mode=0o700)
        own = {
            "job": self.name, "node": name, "arena_dir": arena, "coordination": self.folder / "coordination",
            "ckptd": self.programs["ckptd"], "log_file": self.logs / f"{name}.agent.log", "interface": "lo",
        } | self.options  # fmt: skip
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CKPTENGINE_")}
        environment = kept | {f"CKPTENGINE_{key.upper()}": str(value) for key, value in own.items()}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(PYTHON), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PATH": os.pathsep.join([str(self.programs["ckptctl"].parent), os.environ["PATH"]]),
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        } | self.environment  # fmt: skip
        command = [
            str(self.python), "-m", "ckptengine.run", "--nnodes", str(self.ranks), "--rdzv-endpoint", self.endpoint,
            *words,
            "--spares", str(self.spares), "--preload", self.preload, "--halt-grace", str(self.halt_grace_s),
            "--max-restarts", "1000", "--restart-window", "5",
            "--restart", "all" if self.way == "restart" else "dead", "--shutdown-timeout", "5", "--node-timeout", "3",
            str(self.script), str(self.folder / "settings.json"),
        ]  # fmt: skip
        with open(self.logs / f"{name}.log", "a") as output:
            launcher = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self.nodes[name] = Node(name, arena, launcher)

    def agents(self, node: str | None = None) -> list[int]:
        return agents_of(self.name, node)

    def kill_agents(self) -> None:
        deadline = time.monotonic() + 10
        while (pids := self.agents()) and time.monotonic() < deadline:
            signal_all(pids, signal.SIGKILL)
            time.sleep(POLL_S)

    def kill_node(self, name: str) -> float:
        """What a power failure does: launcher, ranks and agent are gone in the same moment, and so is the memory."""
        node = self.nodes.pop(name)
        at_s = time.monotonic()
        node.launcher.kill()  # the kernel ends its ranks and spares with it
        signal_all(self.agents(name), signal.SIGKILL)
        node.launcher.wait()
        shutil.rmtree(node.arena, ignore_errors=True)
        return at_s

    def node_of(self, rank: int) -> str:
        """Which node has that rank's process now."""
        pid = self.pids()[rank]
        for name, node in self.nodes.items():
            if pid in children_of(node.launcher.pid):
                return name
        raise DemoFailure(f"rank {rank} runs on no node: process {pid}")

    # ---- ranks ----

    def read(self) -> None:
        for told in self.told:
            told.read()

    def pids(self) -> list[int]:
        return [told.of("started")[-1]["pid"] for told in self.told]

    def reached(self) -> int:
        """The newest iteration that all ranks have finished. -1: none."""
        return min((told.of("iteration") or [{"k": -1}])[-1]["k"] for told in self.told)

    def until(self, is_so: Callable[[], Any], what: str, timeout_s: float = SILENCE_S) -> None:
        begun_s = time.monotonic()
        deadline = begun_s + timeout_s
        while True:
            self.read()
            if self.progress is not None:
                self.progress.wait(f"iteration {self.reached()}: waits for the job to {what}", begun_s)
            if is_so():
                return
            ended = [node.name for node in self.nodes.values() if node.launcher.poll() not in (None, 0)]
            if ended:
                raise DemoFailure(f"the launcher of {ended[0]} has ended\n{tail(self.logs / f'{ended[0]}.log', 40)}")
            if time.monotonic() > deadline:
                logs = "\n".join(tail(self.logs / f"{name}.log") for name in self.nodes)
                raise DemoFailure(f"the job did not {what} within {timeout_s} s\n{logs}")
            time.sleep(POLL_S)

    def since_begin(self, rank: int) -> int:
        return self.told[rank].since_begin

    def await_learned(self, count: int = 10) -> None:
        """Until deadlines are learned, and some iterations after a capture of all: only a late capture has the newest
        iteration."""

        def is_so() -> bool:
            learned = all(self.since_begin(rank) >= count for rank in range(self.ranks))
            return learned and 3 <= self.reached() % CAPTURE_EVERY <= 6

        self.until(is_so, f"do {count} iterations")

    def await_spares(self) -> None:
        """Until spare processes have imported their modules: they use no CPU any more."""
        quiet_since_s, before = time.monotonic(), -1.0

        def is_so() -> bool:
            nonlocal quiet_since_s, before
            launchers = [node.launcher.pid for node in self.nodes.values()]
            ranks = self.pids()
            used = sum(cpu_seconds(pid) for each in launchers for pid in children_of(each) if pid not in ranks)
            if used != before:
                quiet_since_s, before = time.monotonic(), used
            return time.monotonic() > quiet_since_s + 0.4

        self.until(is_so, "have its spare processes ready")

    def command(self, rank: int, fault: str, place: str, seconds: float = 0) -> None:
        whole = self.folder / f"do-{rank}.new"
        whole.write_text(f"{fault} {place} {seconds}")
        whole.rename(self.folder / f"do-{rank}")

    def end(self, iterations_more: int) -> int:
        """Lets the job end after some more iterations. Returns how many there are in all."""
        self.read()
        end = max(told.of("iteration")[-1]["k"] for told in self.told) + iterations_more
        self.set_end(end)
        self.until(lambda: all(told.of("done") for told in self.told), "end")
        return end

    def set_end(self, end: int) -> None:
        whole = self.folder / "end.new"
        whole.write_text(str(end))
        whole.rename(self.folder / "end")

    def losses(self, rank: int) -> dict[int, str]:
        """By iteration. An iteration that was done twice must have the same loss."""
        found: dict[int, str] = {}
        for event in self.told[rank].of("iteration"):
            if found.setdefault(event["k"], event["loss"]) != event["loss"]:
                raise DemoFailure(f"rank {rank} did iteration {event['k']} twice, with different losses")
        return found

    # ---- agents ----

    def halts(self, since_s: float) -> list[tuple[float, int]]:
        """What agents have logged of halts: when, and of which incarnation."""
        clocks_apart_s = time.time() - time.monotonic()
        found = []
        for log in self.logs.glob("*.agent.log"):
            for at, incarnation in HALT_LINE.findall(log.read_text(errors="replace")):
                at_s = datetime.fromisoformat(at).timestamp() - clocks_apart_s
                if at_s >= since_s:
                    found.append((at_s, int(incarnation)))
        return sorted(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def children_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def cpu_seconds(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def agents_of(job: str, node: str | None) -> list[int]:
    """The agents of a job: ckptd processes that say so in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        is_ours = words[0].endswith(b"ckptd") and f"job={job}".encode() in words
        if is_ours and (node is None or f"node={node}".encode() in words):
            found.append(int(entry.name))
    return found
