"""Measures what it costs to keep healthy processes when another one fails (docs/jit.md), and how long it takes.

The job is that of ./dev demo --jit: four ranks on four nodes of this machine train a small GPT with DDP. First, jobs
without faults take turns: torch alone, with the engine, torch alone, and so on. Then, in each round, jobs with faults
take turns: with rejoining, where one rank is killed, one is stopped, one spins and a node is lost; and with a restart
of all ranks in new processes after a kill, as under torchrun.

  jit_iteration    the median iteration with halts and capture=jit, against that of the two jobs of torch alone that ran
                   just before and just after it; the median of all such ratios
  jit_vs_restart   from the kill until all ranks have trained again: a restart of all, against rejoining
  jit_vs_nvrx      the same with NVRx's in-process restart, which has a fifth rank in reserve, against rejoining
  jit_vs_torchft   the same with torchft, against rejoining. torchft can also go on with the other three; here the
                   lighthouse waits for all four, so that the job stays the same

Both have their default settings, and each a process that has imported torch in reserve. NVRx loads its state from a
file in tmpfs. Its ranks leave gloo with ckptengine's help, because its own abort does nothing to gloo.

The ranks keep all cores busy here, so whatever the agents compute prolongs iterations.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from _jit_rivals.measure import RIVALS, python_for
from _rivals.environments import NotInstalled
from ckptengine import load_library
from cluster import DemoFailure
from jit_job import CAPTURE_EVERY, JitJob
from jit_recovery import Recovery, restart_all, strike
from report import Progress
from run import find_programs

OPTIONS = {"on_suspicion": "halt", "capture": "jit"}
FAULT_OPTIONS = {**OPTIONS, "capture_every": CAPTURE_EVERY}
FAULTS = {"kill": (1, "kill", "backward"), "stop": (2, "stop", "backward"), "spin": (3, "spin", "forward"),
          "node": (1, "node", "")}  # fmt: skip
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SETTLE = 10  # iterations that do not count


class Figures:
    def __init__(self) -> None:
        self.plain_ms: list[float] = []  # the median iteration of each job; one more than `ours_ms`
        self.ours_ms: list[float] = []
        self.restart_s: list[float] = []
        self.recoveries: dict[str, list[Recovery]] = {}
        self.rival_s: dict[str, list[float]] = {}
        self.why_not: dict[str, str] = {}  # rivals that did not run

    def iteration_ratio(self) -> float:
        beside = [(before + after) / 2 for before, after in pairwise(self.plain_ms)]
        return statistics.median(ours / plain for ours, plain in zip(self.ours_ms, beside, strict=True))

    def phase(self, fault: str, *phases: str) -> list[float]:
        return [sum(each.phases[phase] for phase in phases) for each in self.recoveries.get(fault, [])]

    def totals(self, fault: str) -> list[float]:
        return [each.seconds for each in self.recoveries.get(fault, [])]


def iterations_ms(job: JitJob, count: int) -> list[float]:
    """How long iterations take on rank 0, once the job has settled."""
    job.until(lambda: job.reached() >= SETTLE + count, f"do {SETTLE + count} iterations", 180)
    ends = [event["at_s"] for event in job.told[0].of("iteration")][SETTLE : SETTLE + count + 1]
    return [1e3 * (after - before) for before, after in pairwise(ends)]


def measure(arguments: argparse.Namespace, logs: Path, progress: Progress) -> Figures:
    figures = Figures()
    programs = find_programs(Path(load_library(arguments.library).path))

    def job(way: str, **more: Any) -> JitJob:
        return JitJob("jit-bench", programs, logs, Path("/dev/shm"), way=way, layers=arguments.layers,
                      progress=progress, **more)  # fmt: skip

    def iteration_ms(way: str, **more: Any) -> float:
        with job(way, standby=False, **more) as training:
            training.until(lambda: training.reached() >= 0, "train")
            if way == "rejoin":
                training.await_spares()
            return statistics.median(iterations_ms(training, arguments.iterations))

    for number in range(2 * arguments.rounds + 1):
        is_ours = number % 2 == 1
        which = "with the engine" if is_ours else "torch alone"
        progress.say(f"iterations, job {number + 1} of {2 * arguments.rounds + 1}: {which} ...")
        if is_ours:
            figures.ours_ms.append(iteration_ms("rejoin", options=OPTIONS))
        else:
            figures.plain_ms.append(iteration_ms("plain", options={}, spares=0))
    for number in range(arguments.rounds):
        progress.say(f"round {number + 1} of {arguments.rounds}: rejoining ...")
        with job("rejoin", options=FAULT_OPTIONS, standby="node" in arguments.faults) as ours:
            ours.until(lambda ours=ours: ours.reached() >= 0, "train")
            ours.await_spares()
            for fault in arguments.faults:
                ours.await_learned()
                recovery = strike(ours, *FAULTS[fault])
                figures.recoveries.setdefault(fault, []).append(recovery)
                progress.say(f"  {recovery.fault}: {recovery.seconds:.2f} s")
                if recovery.ended:
                    raise DemoFailure(f"healthy processes have ended: {recovery.ended}")
        progress.say(f"round {number + 1} of {arguments.rounds}: restart of all ...")
        with job("restart", options=FAULT_OPTIONS, spares=0, standby=False) as restart:
            restart.await_learned()
            figures.restart_s.append(restart_all(restart, *FAULTS["kill"]))
            progress.say(f"  killed in backward: {figures.restart_s[-1]:.2f} s")
        for name in arguments.rivals:
            if name not in figures.why_not:
                progress.say(f"round {number + 1} of {arguments.rounds}: {name} ...")
                measure_rival(name, figures, programs, logs, arguments.layers)
    return figures


def measure_rival(name: str, figures: Figures, programs: dict[str, Path], logs: Path, layers: int) -> None:
    try:
        seconds = RIVALS[name](python_for(name), programs, logs, layers)
    except NotInstalled as reason:
        figures.why_not[name] = str(reason)
        return
    except DemoFailure as failure:
        figures.why_not[name] = str(failure).splitlines()[0]
        return
    print(f"  killed in backward: {seconds:.2f} s", flush=True)
    figures.rival_s.setdefault(name, []).append(seconds)


def spread(values: list[float], unit: str, digits: int = 2) -> str:
    if not values:
        return "not measured"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} {unit} ({low:.{digits}f} to {high:.{digits}f})"


def rows(figures: Figures) -> list[tuple[str, str, str]]:
    """What, its goal, what was measured: the median of the rounds, and from the fastest to the slowest."""
    left = "halt, capture"
    hang = "<= max(3 s, 3 x slowest step)"
    return [
        ("iteration, torch alone", "", spread(figures.plain_ms, "ms", 0)),
        ("iteration, with halts and capture=jit", "<= 1.001 x", spread(figures.ours_ms, "ms", 0)),
        ("detection of a death", "<= 0.3 s", spread(figures.phase("kill", "detection"), "s")),
        ("detection of a stopped process", hang, spread(figures.phase("stop", "detection"), "s")),
        ("detection of a process that spins", hang, spread(figures.phase("spin", "detection"), "s")),
        ("halt until all survivors have left", "<= 0.1 s", spread(figures.phase("stop", left), "s")),
        ("kill until all train, with a spare", "<= 1.5 s", spread(figures.totals("kill"), "s")),
        ("stop until all train, with a spare", "", spread(figures.totals("stop"), "s")),
        ("spin until all train, with a spare", "", spread(figures.totals("spin"), "s")),
        ("node lost until all train, standby", "detection + 2 s + fetch", spread(figures.totals("node"), "s")),
        ("kill until all train, restart of all", "", spread(figures.restart_s, "s")),
        ("kill until all train, NVRx", "", spread(figures.rival_s.get("nvrx", []), "s")),
        ("kill until all train, torchft", "", spread(figures.rival_s.get("torchft", []), "s")),
    ]


def report(figures: Figures) -> None:
    print(f"\n{'':<38}{'goal':<32}median (fastest to slowest)")
    for what, goal, found in rows(figures):
        print(f"{what:<38}{goal:<32}{found}")
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"\nmachine: {os.cpu_count()} cores, load average {load} at the end")
    print("not measured: a fault of the network alone; speed of a late capture; a death without a spare")
    ours, theirs = statistics.median(figures.ours_ms), statistics.median(figures.plain_ms)
    print(f"ratio: jit_iteration = {figures.iteration_ratio():.3f} (ours {ours:.2f}, theirs {theirs:.2f}, ms)")
    if "kill" not in figures.recoveries:
        return
    jit = statistics.median(figures.totals("kill"))
    for name, seconds in {"restart": figures.restart_s, **figures.rival_s}.items():
        theirs = statistics.median(seconds)
        print(f"ratio: jit_vs_{name} = {theirs / jit:.2f} (ours {jit:.2f}, theirs {theirs:.2f}, s)")
    for name, why in figures.why_not.items():
        print(f"jit_vs_{name} was not measured: {why}")


def interrupted(number: int, _: object) -> None:
    """Ends the bench through its clean-up, which nothing shall interrupt."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench jit --", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="(default 3)")
    parser.add_argument("--iterations", type=int, default=40, metavar="N", help="measured in each round (default 40)")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="of the GPT (default 2)")
    parser.add_argument("--faults", default=",".join(FAULTS), metavar="A,B", help=f"(default {','.join(FAULTS)})")
    parser.add_argument("--rivals", default=",".join(RIVALS), metavar="A,B", help="or none (default nvrx,torchft)")
    parser.add_argument("--library", type=Path, metavar="FILE", help="libckptengine.so (default: the release build)")
    arguments = parser.parse_args()
    arguments.faults = arguments.faults.split(",")
    if unknown := set(arguments.faults) - set(FAULTS):
        parser.error(f"there is no fault {', '.join(sorted(unknown))} (there are: {' '.join(FAULTS)})")
    arguments.rivals = [] if arguments.rivals == "none" else arguments.rivals.split(",")
    if unknown := set(arguments.rivals) - set(RIVALS):
        parser.error(f"there is no rival {', '.join(sorted(unknown))} (there are: {' '.join(RIVALS)})")
    for ending in ENDING:
        signal.signal(ending, interrupted)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ckptengine-jit-", dir=ROOT / "build") as logs:
        try:
            report(measure(arguments, Path(logs), Progress()))
        except DemoFailure as failure:
            print(f"jit: {failure}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
