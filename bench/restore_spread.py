"""Measures how long nodes that lost their memory take to restore a shard that is the same on all ranks.

The nodes are network namespaces, with an agent and a rank each. Each node's link has a limited rate in each direction.
All ranks name the same main shard. After a commit, some nodes lose their memory: their agents and ranks end, and agents
with empty arenas take their places. Then new ranks call restore(), all at the same time. The time counts from the first
call until the last rank has its state.

The lower bound is bytes to bring / rate of a link: each node that lost its memory receives the state over its own link.
The nodes that are left send each byte at least once, which takes no longer. The ratio is time / lower bound.

There are three ways to store the shard. `whole`: each rank captures all of it (placement=group). `parts`: it is cut
into one part per rank (placement=auto), and every node has all parts. With both, all nodes but one or two lose their
memory. `parity`: it is cut into one part per rank, and beside its part a node has parity only. One node loses its
memory. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from _netns import INTERFACE, Agents, Network, NetworkFailure, run_bench, tail
from cadence import aligned
from ckptengine import Engine, Stage, load_library
from run import find_programs

DEADLINE_S = 300
STOP_S = 10
TRIES = 5
SLOTS_S, CAPTURE_S, COMMIT_S = 3, 1, 60
POLL_S = 0.05
MIB = 1 << 20
PLACEMENTS = {"whole": "group", "parts": "auto", "parity": "auto"}
BYTE = b"\x5a"
TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Case:
    nodes: int
    holders: int  # nodes that keep their memory
    stored: str  # a key of PLACEMENTS

    @property
    def protection(self) -> str:
        return "xor(4)" if self.stored == "parity" else f"copies({self.nodes})"

    def left(self, nodes: list[str]) -> list[str]:
        """Which nodes keep their memory: `holders` of them, at equal distances in the order of their numbers."""
        return [nodes[number * self.nodes // self.holders] for number in range(self.holders)]

    @property
    def name(self) -> str:
        return f"{self.stored}_{self.nodes}_nodes_{self.holders}_left"


@dataclass(frozen=True)
class Figures:
    took_s: float
    bound_s: float
    sent_share: float  # bytes that the nodes which were left sent, per byte of the state
    cores: float  # cores that were busy on this machine meanwhile


def say_into(log: Path) -> None:
    """What this process says goes to a file: the engine tells that the job is degraded, as it is here."""
    with open(log, "a") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())


def capture(log: Path, options: dict[str, Any], size_bytes: int, together: Any, committed: Any, end: Any) -> None:
    """A rank of the first incarnation. Takes snapshots in step with the others until one is committed: while the agents
    make the slots, some ranks may skip theirs.
    """
    say_into(log)
    state = bytearray(BYTE * size_bytes)
    with Engine(**options) as engine:
        engine.register("state", state)
        engine.restore()
        for iteration in range(1, TRIES + 1):
            time.sleep(SLOTS_S)
            together.wait(DEADLINE_S)
            ticket = engine.snapshot(iteration)
            time.sleep(CAPTURE_S)
            engine.before_update()
            if ticket.wait(timeout_ms=COMMIT_S * 1000):
                break
        committed.put(ticket.stage is Stage.COMMITTED)
        end.wait(DEADLINE_S)


def restore(log: Path, options: dict[str, Any], size_bytes: int, together: Any, found: Any, end: Any) -> None:
    """A rank of the second incarnation. Tells when it called restore(), and when it had its state."""
    say_into(log)
    state = bytearray(size_bytes)
    with Engine(**options) as engine:
        engine.register("state", state)
        together.wait(DEADLINE_S)
        begin_s = time.monotonic()
        restored = engine.restore()
        end_s = time.monotonic()
        is_right = restored.found and state.count(BYTE) == size_bytes
        found.put((begin_s, end_s, is_right))
        end.wait(DEADLINE_S)


class Job:
    """Agents on the nodes of a network, and the ranks of one incarnation at a time."""

    def __init__(
        self, network: Network, agents: Agents, programs: dict[str, Path], folder: Path, size_bytes: int
    ) -> None:
        self.network, self.agents, self.size_bytes = network, agents, size_bytes
        self.library, self.ctl = programs["library"], programs["ckptctl"]
        self.logs = [folder / f"rank{rank}.log" for rank in range(len(network.nodes))]
        self.context = multiprocessing.get_context("fork")
        self.end = self.context.Event()
        self.ranks: list[Any] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_ranks()

    def start_ranks(self, program: Any, *more: Any) -> None:
        self.end = self.context.Event()
        for rank, node in enumerate(self.network.nodes):
            own = {"library": self.library, "rank": rank, "world_size": len(self.network.nodes), "shard": "model"}
            options = self.agents.engine_options(node) | own
            log = self.logs[rank]
            process = self.context.Process(target=program, args=(log, options, self.size_bytes, *more, self.end))
            process.start()
            self.ranks.append(process)

    def stop_ranks(self) -> None:
        self.end.set()
        for process in self.ranks:
            process.join(STOP_S)
            process.kill()
        self.ranks.clear()

    def answers(self, queue: Any) -> list[Any]:
        """One answer of each rank."""
        answers: list[Any] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(answers) < len(self.ranks):
            try:
                answers.append(queue.get(timeout=POLL_S))
            except Empty:
                self._check(deadline)
        return answers

    def _check(self, deadline: float) -> None:
        failed = next((rank for rank, process in enumerate(self.ranks) if process.exitcode not in (None, 0)), None)
        if failed is not None:
            raise NetworkFailure(f"rank {failed} failed{tail(self.logs[failed])}")
        if time.monotonic() > deadline:
            raise NetworkFailure(f"some rank did not answer within {DEADLINE_S} s")

    def commit(self) -> None:
        committed = self.context.Queue()
        self.start_ranks(capture, self.context.Barrier(len(self.network.nodes)), committed)
        told = self.answers(committed)
        if not all(told):
            raise NetworkFailure("the snapshot was not committed on every rank")
        self.stop_ranks()

    def lose_all_but(self, holders: list[str]) -> None:
        self.agents.replace([node for node in self.network.nodes if node not in holders])
        self._await_leader()

    def _await_leader(self) -> None:
        """Until one agent leads all nodes. So the time of an election does not count."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(self._leads_all(node) for node in self.network.nodes):
            if time.monotonic() > deadline:
                raise NetworkFailure(f"no agent led all nodes within {DEADLINE_S} s")
            time.sleep(POLL_S)

    def _leads_all(self, node: str) -> bool:
        status = self.agents.status(self.ctl, node)
        return status["is_leader"] and len(status["nodes_present"]) == len(self.network.nodes)

    def restore_all(self) -> float:
        found = self.context.Queue()
        self.start_ranks(restore, self.context.Barrier(len(self.network.nodes)), found)
        answers = self.answers(found)
        if not all(is_right for _, _, is_right in answers):
            raise NetworkFailure("a rank did not get the state that was captured")
        return max(end_s for _, end_s, _ in answers) - min(begin_s for begin_s, _, _ in answers)


def sent_bytes(network: Network, nodes: list[str]) -> int:
    """How many bytes these nodes have sent, with the headers of all packets."""
    total = 0
    for node in nodes:
        words = [*network.enter(node), "cat", "/proc/net/dev"]
        told = subprocess.run(words, check=True, capture_output=True, text=True)
        line = next(line for line in told.stdout.splitlines() if line.strip().startswith(f"{INTERFACE}:"))
        total += int(line.split(":")[1].split()[8])
    return total


def busy_s() -> float:
    """For how long the cores of this machine were busy, all together."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_S


def measure(case: Case, arguments: argparse.Namespace, programs: dict[str, Path], folder: Path) -> Figures:
    size_bytes = arguments.mib * MIB
    options = {"protection": case.protection, "placement": PLACEMENTS[case.stored]}
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-restore-", dir="/dev/shm") as memory,
        Network(arguments.rate, case.nodes) as network,
    ):
        agents = Agents(network, programs["ckptd"], case.name, Path(memory), folder, options)
        with Job(network, agents, programs, folder, size_bytes) as job:
            job.commit()
            left = case.left(network.nodes)
            job.lose_all_but(left)
            sent, busy, begin_s = sent_bytes(network, left), busy_s(), time.monotonic()
            took_s = job.restore_all()
            cores = (busy_s() - busy) / (time.monotonic() - begin_s)
            sent = sent_bytes(network, left) - sent
    bound_s = size_bytes * 8 / (arguments.rate * 1e6)
    return Figures(took_s, bound_s, sent / size_bytes, cores)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=128, help="MiB of the shard")
    parser.add_argument("--rate", type=float, default=200, metavar="MBIT", help="rate of a node's link in Mbit/s")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--holders", type=int, nargs="+", default=[1, 2], help="nodes that keep their memory")
    parser.add_argument("--stored", nargs="+", choices=PLACEMENTS, default=list(PLACEMENTS))
    parser.add_argument("--directory", type=Path, default=ROOT / "build", metavar="DIR", help="for logs while it runs")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    if arguments.mib < 1 or not 0 < arguments.rate < float("inf"):
        parser.error("--mib and --rate must be above 0")
    if min(arguments.holders) < 1 or max(arguments.holders) >= min(arguments.nodes):
        parser.error("--holders must be at least 1 and less than --nodes")
    return arguments


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    cases = []
    for nodes in arguments.nodes:
        copied = [stored for stored in arguments.stored if stored != "parity"]
        cases += [Case(nodes, *own) for own in itertools.product(arguments.holders, copied)]
        if "parity" in arguments.stored:
            cases.append(Case(nodes, nodes - 1, "parity"))
    return cases


def run(arguments: argparse.Namespace) -> None:
    programs = find_programs(Path(load_library(arguments.library).path))
    cases = cases_of(arguments)
    arguments.directory.mkdir(parents=True, exist_ok=True)
    figures: dict[Case, Figures] = {}
    rows = [["stored", "nodes", "left", "took, s", "lower bound, s", "ratio", "sent by the left / state", "busy cores"]]
    with tempfile.TemporaryDirectory(prefix="ckptengine-restore-", dir=arguments.directory) as scratch:
        for case in cases:
            folder = Path(scratch) / case.name
            folder.mkdir()
            own = figures[case] = measure(case, arguments, programs, folder)
            numbers = [own.took_s, own.bound_s, own.took_s / own.bound_s, own.sent_share, own.cores]
            cells = [f"{number:.2f}" for number in numbers]
            rows.append([case.stored, str(case.nodes), str(case.holders), *cells])
            print("  ".join(rows[-1]), flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(aligned(rows))
    for case, own in figures.items():
        print_ratio(f"restore_spread_{case.name}", own)
    print_ratio("restore_spread", max(figures.values(), key=lambda own: own.took_s / own.bound_s))


def print_ratio(name: str, own: Figures) -> None:
    print(f"ratio: {name} = {own.took_s / own.bound_s:.2f} (ours {own.took_s:.2f}, theirs {own.bound_s:.2f}, s)")


def main() -> int:
    arguments = parse()
    return run_bench("restore_spread", lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
