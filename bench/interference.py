"""Measures what snapshots in every iteration cost training that shares its network, for five schemes.

This repeats GEMINI's figure 16. Two network namespaces are the nodes, with an agent and a rank each. A veth pair of
limited rate joins them. The ranks train a small GPT that is sharded as FSDP does it, with collectives over that link.
The agents replicate over the same link. Blocks of iterations take turns: no snapshots; blocking snapshots at the
beginning of an iteration; `naive`, with one chunk per idle span; `one buffer`, with several chunks per span but one at
a time; and the engine with its defaults. The state fits into the idle time of an iteration in one case, and does not in
the other. Needs root, and two cores.

Training on GPUs leaves CPU cores free. So the ranks share core 0 here, and the agents core 1. In a third case, with
state that fits, all share all cores: the agents then take computing time from training.

In a fourth case the ranks train with AdamW. Copies of its state do not fit into the idle time, but gradients do. It
compares copies(2) with recompute(2), whose nodes repeat the update (docs/mechanisms.md).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

import corpus
import numpy as np
from _netns import INTERFACE, Agents, Network, NetworkFailure, run_bench, tail
from ckptengine import load_library
from run import find_programs

RANK = Path(__file__).resolve().with_name("_interference_rank.py")
SETTLE = 2  # iterations that do not count at the beginning of each block
LEARNED = 5  # iterations from a learned profile to the first measurement
HEADS = 4
SILENCE_S = 120
POLL_S = 0.05
MIB = 1 << 20
CASES = ["fits", "large", "shared", "adamw"]
RANKS_CORE, AGENTS_CORE = 0, 1


@dataclass(frozen=True)
class Scheme:
    """One scheme to take snapshots, with the options of its agents. None if it has no agents."""

    name: str
    agent_options: dict[str, Any] | None
    is_blocking: bool = False

    @property
    def learns(self) -> bool:
        return self.agent_options is not None and not self.is_blocking


@dataclass(frozen=True)
class Case:
    """Moving averages of the weights are state, too. The more of them there are, the larger the state is."""

    name: str
    averages: int
    suffix: str  # at the end of the names of its ratios
    shares_cores: bool = False
    repeats: bool = False  # trains with AdamW, and compares copies with repeated updates only


SCHEMES = [
    Scheme("none", None),
    Scheme("blocking", {"schedule": "immediate"}, is_blocking=True),
    Scheme("naive", {"chunk_bytes": 64 << 20, "chunk_ms": 1000}),
    Scheme("one_buffer", {"sub_buffers": 1}),
    Scheme("engine", {}),
]
# With AdamW. With a third slot, a snapshot can be taken while the one before is still copied in full.
COPIES = Scheme("copies", {"own_slots": 3})
REPEATS = Scheme("recompute", {"own_slots": 3, "protection": "recompute(2)"})


def with_chunks(scheme: Scheme, chunk_kib: int) -> Scheme:
    """The same scheme with chunks of at most that size. Schemes that have large chunks on purpose keep theirs."""
    if not scheme.learns or "chunk_bytes" in scheme.agent_options:
        return scheme
    return replace(scheme, agent_options=scheme.agent_options | {"chunk_bytes": chunk_kib << 10})


class Figures:
    """The figures of one scheme, over its blocks after the warm-up. Counts are those of rank 0."""

    def __init__(self) -> None:
        self.ms: list[float] = []  # times of the measured iterations, on the slower rank
        self.comm_ms: list[float] = []  # time of their collectives, on rank 0
        self.iterations = 0  # how many iterations should have a snapshot
        self.further = 0  # how many more it took until the last snapshot was committed
        self.used: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()

    def add(self, block: list[dict[str, Any]]) -> None:
        both = [[iteration["ms"] for iteration in told["iterations"]] for told in block]
        self.ms += [max(ms) for ms in zip(*both, strict=True)][SETTLE:]
        self.comm_ms += [iteration["comm_ms"] for iteration in block[0]["iterations"]][SETTLE:]
        self.iterations += len(both[0])
        self.further += block[0]["further"]
        self.used.update(block[0]["used"])
        self.counts.update(block[0]["counts"])

    @property
    def median_ms(self) -> float:
        return statistics.median(self.ms)

    def per_iteration(self, key: str) -> float:
        return self.used[key] / self.iterations


class Result:
    """The figures of one case. All schemes are compared with the first one, which takes no snapshots."""

    def __init__(self, case: Case, state_bytes: int, rate_mbit: float) -> None:
        self.case = case
        self.state_bytes = state_bytes
        self.bytes_per_ms = rate_mbit * 1e3 / 8
        self.figures: dict[str, Figures] = {}
        self.schedules: dict[str, Any] = {}  # by scheme: what node 0's agent has learned

    def add(self, block: list[dict[str, Any]]) -> None:
        self.figures.setdefault(block[0]["scheme"], Figures()).add(block)

    @property
    def none(self) -> Figures:
        return self.figures["none"]

    @property
    def idle_ms(self) -> float:
        """The time of an iteration without snapshots in which rank 0 runs no collective."""
        return self.none.median_ms - statistics.median(self.none.comm_ms)

    def ratio(self, name: str) -> float:
        return self.figures[name].median_ms / self.none.median_ms

    def idle_used(self, name: str) -> float:
        """The share of the idle time in which checkpoint traffic uses the link."""
        own = self.figures[name]
        training_bytes = (own.iterations + own.further) * self.none.per_iteration("sent_bytes")
        return (own.used["sent_bytes"] - training_bytes) / own.iterations / self.bytes_per_ms / self.idle_ms

    def table(self) -> str:
        none = self.none
        sending_ms = self.state_bytes / self.bytes_per_ms
        columns = ["iteration ms", "over none", "iterations", "taken", "committed", "skipped", "agents ms", "idle used"]
        lines = [
            f"{self.case.name}: {self.state_bytes / MIB:.2f} MiB of state per rank, {sending_ms:.0f} ms on the link; "
            f"iterations of {none.median_ms:.0f} ms, {self.idle_ms:.0f} ms without training's communication",
            f"{'':<12}" + "".join(f"{column:>14}" for column in columns),
        ]
        for name, own in self.figures.items():
            counts = [own.counts[key] for key in ("snapshots", "committed", "skipped")]
            values = [f"{own.median_ms:.1f}", f"{self.ratio(name):.3f}", own.iterations, *counts]
            values += [f"{1e3 * own.per_iteration(f'agents.{name}'):.1f}", f"{100 * self.idle_used(name):.0f} %"]
            lines.append(f"{name:<12}" + "".join(f"{value:>14}" for value in values))
        agents_ms = [1e3 * none.per_iteration(key) for key in none.used if key.startswith("agents.")]
        lines.append(f"  agents at rest: {statistics.mean(agents_ms):.1f} ms of CPU time for both, per iteration")
        others = [max(0.0, own.used["others"]) / own.used["seconds"] / os.cpu_count() for own in self.figures.values()]
        lines.append(f"  others kept {100 * min(others):.0f} to {100 * max(others):.0f} % of all cores busy meanwhile")
        return "\n".join(lines + [f"  {name}: {schedule_text(own)}" for name, own in self.schedules.items()])


def schedule_text(schedule: dict[str, Any] | None) -> str:
    """A line about what an agent has learned."""
    if not schedule or not schedule["ranks"]:
        return "no profile"
    rank, link, plan = schedule["ranks"][0], schedule["link"], schedule["plan"]
    text = f"{len(rank['spans'])} idle spans, normalized deviation {rank['normalized_deviation']:.3f}"
    text += f", relearned {rank['relearned']} times, {schedule['chunks']} chunks, {schedule['forced']} forced"
    if link:
        text += f"; link {link['startup_us']:.0f} us + {link['bytes_per_s'] / 1e6:.1f} MB/s"
    if plan:
        text += f"; planned {plan['chunks']} chunks, overrun {plan['overrun_ms']:.0f} ms, every {plan['every']}"
    return text


def plan_blocks(schemes: list[Scheme], arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """The order of the blocks: first a warm-up, in which profiles are learned, then rounds. Every other round runs
    backwards.
    """
    learning = arguments.profile_iterations + LEARNED + 1
    plan = [(scheme.name, learning if scheme.learns else LEARNED) for scheme in schemes]
    for number in range(-(-arguments.iterations // arguments.block)):
        plan += [(scheme.name, SETTLE + arguments.block) for scheme in (reversed(schemes) if number % 2 else schemes)]
    return plan


class Ranks:
    """Runs the training job, with one rank on each node. Yields what the ranks report, block by block."""

    def __init__(self, network: Network, scratch: Path, settings: list[dict[str, Any]], core: int | None) -> None:
        self.protocols = [scratch / f"rank{rank}.jsonl" for rank in range(len(settings))]
        self.logs = [scratch / f"rank{rank}.log" for rank in range(len(settings))]
        self.processes = []
        for rank, own in enumerate(settings):
            own |= {"rank": rank, "world_size": len(settings), "protocol": self.protocols[rank]}
            path = scratch / f"rank{rank}.json"
            path.write_text(json.dumps(own, default=str))
            self.processes.append(
                network.start(network.nodes[rank], [sys.executable, RANK, path], self.logs[rank], core)
            )
        self._offsets = [0] * len(settings)

    def lines(self) -> Iterator[list[dict[str, Any]]]:
        """Yields one line of each rank at a time, until all ranks have ended."""
        waiting: list[list[dict[str, Any]]] = [[] for _ in self.protocols]
        heard = time.monotonic()
        while True:
            is_over = all(process.poll() == 0 for process in self.processes)
            for rank, lines in enumerate(waiting):
                lines += self._read(rank)
            while all(waiting):
                heard = time.monotonic()
                yield [lines.pop(0) for lines in waiting]
            if is_over:
                return
            self._check(heard)
            time.sleep(POLL_S)

    def _read(self, rank: int) -> list[dict[str, Any]]:
        if not self.protocols[rank].exists():
            return []
        with open(self.protocols[rank]) as file:
            file.seek(self._offsets[rank])
            text = file.read()
        whole = text.rfind("\n") + 1
        self._offsets[rank] += whole
        return [json.loads(line) for line in text[:whole].splitlines()]

    def _check(self, heard: float) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() not in (None, 0):
                raise NetworkFailure(f"rank {rank} failed{tail(self.logs[rank])}")
        if time.monotonic() > heard + SILENCE_S:
            raise NetworkFailure(f"no rank said anything for {SILENCE_S} s{tail(self.logs[0])}")


def measure(case: Case, schemes: list[Scheme], arguments: argparse.Namespace, scratch: Path) -> Result:
    library = Path(load_library(arguments.library).path)
    programs = find_programs(library)
    ckptd, ctl = programs["ckptd"], programs["ckptctl"]
    plan = plan_blocks(schemes, arguments)
    ranks_core, agents_core = (None, None) if case.shares_cores else (RANKS_CORE, AGENTS_CORE)
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-interference-", dir="/dev/shm") as memory,
        Network(arguments.rate) as network,
    ):
        agents = {}
        for scheme in schemes:
            if scheme.agent_options is not None:
                options = {"profile_iterations": arguments.profile_iterations} | scheme.agent_options
                agents[scheme.name] = Agents(network, ckptd, scheme.name, Path(memory), scratch, options, agents_core)

        def settings(node: str) -> dict[str, Any]:
            engines = {name: own.engine_options(node) | {"library": library} for name, own in agents.items()}
            if REPEATS.name in engines:
                engines[REPEATS.name]["protection"] = REPEATS.agent_options["protection"]
            return {
                "text": arguments.text,
                "characters": corpus.CHARACTERS_MAX,
                "length": arguments.length,
                "width": arguments.width_adamw if case.repeats else arguments.width,
                "heads": HEADS,
                "layers": arguments.layers,
                "batch": arguments.batch_adamw if case.repeats else arguments.batch,
                "optimizer": "adamw" if case.repeats else "sgd",
                "averages": case.averages,
                "interface": INTERFACE,
                "rendezvous": scratch / "rendezvous",
                "blocks": plan,
                "agents": {name: [agent.pid for agent in own.processes.values()] for name, own in agents.items()},
                "schemes": [
                    {"name": scheme.name, "is_blocking": scheme.is_blocking, "engine": engines.get(scheme.name)}
                    for scheme in schemes
                ],
            }

        lines = Ranks(network, scratch, [settings(node) for node in network.nodes], ranks_core).lines()
        result = Result(case, next(lines)[0]["state_bytes"], arguments.rate)
        for number, told in enumerate(lines):
            show(f"{case.name}: block {number + 1} of {len(plan)}, {told[0]['scheme']}")
            if number >= len(schemes):
                result.add(told)
            if number + 2 == len(plan):
                result.schedules = {s.name: agents[s.name].status(ctl)["schedule"] for s in schemes if s.learns}
            if arguments.record is not None:
                with open(arguments.record, "a") as record:
                    record.write(json.dumps({"case": case.name, "ranks": told}) + "\n")
        return result


def show(text: str) -> None:
    """On a terminal, prints a line that the next one overwrites."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def print_ratios(result: Result) -> None:
    theirs = result.none.median_ms
    for name in list(result.figures)[1:]:
        ours = result.figures[name].median_ms
        print(f"ratio: {name}{result.case.suffix} = {ours / theirs:.3f} (ours {ours:.2f}, theirs {theirs:.2f}, ms)")


def draw(path: Path, results: list[Result]) -> None:
    """Iteration times as bars, a group for each case, as in GEMINI's figure 16."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = ["#9aa5b1", "#d1242f", "#bf8700", "#8250df", "#1f6feb"]
    figure, all_axes = pyplot.subplots(1, len(results), figsize=(4.5 * len(results), 4), layout="constrained")
    for axes, result in zip(np.atleast_1d(all_axes), results, strict=True):
        names = list(result.figures)
        bars = axes.bar(names, [result.figures[name].median_ms for name in names], color=colors)
        axes.bar_label(bars, [f"{result.ratio(name):.3f}" for name in names], padding=2)
        axes.axhline(result.none.median_ms, color="#57606a", linestyle=":", linewidth=1)
        axes.set(ylabel="iteration in ms (median)", title=f"{result.state_bytes / MIB:.1f} MiB: {result.case.name}")
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def parse() -> argparse.Namespace:
    names = [scheme.name for scheme in SCHEMES[1:]]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=50, help="iterations to measure with each scheme")
    parser.add_argument("--block", type=int, default=10, help="iterations to measure before the next scheme's turn")
    parser.add_argument("--rate", type=float, default=200, metavar="MBIT", help="rate of the link in Mbit/s")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128, help="characters of a text")
    parser.add_argument("--batch", type=int, default=64, help="texts per rank and iteration")
    parser.add_argument("--averages", type=int, default=0, help="moving averages of the weights, if state fits")
    parser.add_argument("--averages-large", type=int, default=20, help="moving averages, if state does not fit")
    parser.add_argument("--width-adamw", type=int, default=256, help="width of the model in the case adamw")
    parser.add_argument("--batch-adamw", type=int, default=16, help="texts per rank and iteration in that case")
    parser.add_argument("--profile-iterations", type=int, default=20)
    parser.add_argument("--schemes", nargs="+", choices=names, default=names, help="schemes to measure besides `none`")
    parser.add_argument(
        "--chunk", type=int, metavar="KIB", help="largest chunk of one_buffer and engine (the option's default)"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: all; with --sweep, fits alone")
    parser.add_argument("--sweep", action="store_true", help="compare chunk sizes instead, with state that fits")
    parser.add_argument("--chunks", type=int, nargs="+", default=[64, 256, 512, 1024, 2048, 4096], metavar="KIB")
    parser.add_argument("--record", type=Path, metavar="FILE", help="append a JSON line with all figures of each block")
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "interference.png", metavar="PATH")
    parser.add_argument("--directory", type=Path, default=ROOT / "build", metavar="DIR", help="for logs while it runs")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    sizes = ("layers", "width", "width_adamw", "length", "batch", "batch_adamw")
    for name in ("iterations", "block", "rate", *sizes, "profile_iterations"):
        if not 0 < getattr(arguments, name) < float("inf"):
            parser.error(f"--{name.replace('_', '-')} must be above 0")
    if min(arguments.averages, arguments.averages_large) < 0:
        parser.error("--averages and --averages-large must be 0 or more")
    if min([*arguments.chunks, 1 if arguments.chunk is None else arguments.chunk]) < 1:
        parser.error("--chunk and --chunks must be at least 1 KiB")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    arguments.directory.mkdir(parents=True, exist_ok=True)
    cases = [
        Case("fits", arguments.averages, ""),
        Case("large", arguments.averages_large, "_large"),
        Case("shared", arguments.averages, "_shared", shares_cores=True),
        Case("adamw", 0, "_adamw", repeats=True),
    ]
    wanted = arguments.cases or (["fits"] if arguments.sweep else CASES)
    cases = [case for case in cases if case.name in wanted]
    schemes = [SCHEMES[0], *(scheme for scheme in SCHEMES[1:] if scheme.name in arguments.schemes)]
    repeating = [SCHEMES[0], COPIES, REPEATS]
    if arguments.chunk is not None:
        schemes = [with_chunks(scheme, arguments.chunk) for scheme in schemes]
    if arguments.sweep:
        schemes = [SCHEMES[0]]
        schemes += [Scheme(f"{kib}KiB", {"chunk_bytes": kib << 10, "chunk_ms": 1000}) for kib in arguments.chunks]
    results = []
    with tempfile.TemporaryDirectory(prefix="ckptengine-interference-", dir=arguments.directory) as scratch:
        arguments.text = Path(scratch) / "text.npy"
        np.save(arguments.text, corpus.encode(corpus.read_text(None)))
        for number, case in enumerate(cases):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            results.append(measure(case, repeating if case.repeats else schemes, arguments, folder))
            show("")
            print(results[-1].table(), flush=True)
    if not arguments.sweep:
        draw(arguments.plot, results)
        print(f"figure: {arguments.plot}")
    for result in results:
        print_ratios(result)


def main() -> int:
    arguments = parse()
    return run_bench("interference", lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
