"""Measures what a snapshot in every iteration costs a pipeline: captures in layers, captures at once, and none.

The job is real: torch.distributed.pipelining with the schedule 1F1B over gloo, and data parallelism beside it. Blocks
of iterations take turns in one run: no snapshots, captures at once (layered_capture=false), and captures in layers.
Then it compares REFT's EstimateBubbleTime with the bubbles that were measured without snapshots.

A core stands for the device of a stage: the ranks of a stage, with their copy threads, share one core. So copies take
computing time from training, and a core idles in its stage's bubbles. Checkpoints stay on their node (copies(1)), so
that the bench measures captures, not replication.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from _netns import run_bench
from ckptengine import load_library
from cluster import Cluster, tail
from run import find_programs

RANK = Path(__file__).resolve().with_name("_bubbles_rank.py")
REPLICAS = 2
SETTLE = 2  # iterations that do not count at the beginning of a block
LEARNED = 8  # iterations of the warm-up after the profile is learned
RANK_S = 540
SCHEMES = {"none": None, "immediate": "false", "layered": "true"}


def plan(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """The blocks: a warm-up, in which profiles are learned, then rounds. Every other round runs backwards."""
    blocks = [(name, arguments.profile_iterations + LEARNED) for name in SCHEMES]
    for number in range(arguments.rounds):
        names = list(SCHEMES)[:: -1 if number % 2 else 1]
        blocks += [(name, SETTLE + arguments.block) for name in names]
    return blocks


def train(clusters: dict[str, Cluster], scratch: Path, arguments: argparse.Namespace) -> list[Any]:
    """Runs the ranks, and returns what each of them reports."""
    world_size = arguments.stages * REPLICAS
    ranks = []
    for rank in range(world_size):
        engines = {
            name: cluster.engine_options("node", rank, world_size)
            | {"layered_capture": SCHEMES[name], "profile_iterations": arguments.profile_iterations}
            for name, cluster in clusters.items()
        }
        settings = vars(arguments) | {
            "rank": rank,
            "world_size": world_size,
            "core": rank // REPLICAS % os.cpu_count(),
            "engines": engines,
            "agents": {name: cluster.nodes["node"].agent.pid for name, cluster in clusters.items()},
            "blocks": plan(arguments),
            "rendezvous": scratch / "rendezvous",
            "report": scratch / f"rank{rank}.report",
        }
        path = scratch / f"rank{rank}.json"
        path.write_text(json.dumps(settings, default=str))
        with open(scratch / f"rank{rank}.log", "w") as log:
            ranks.append(subprocess.Popen([sys.executable, RANK, path], stdout=log, stderr=subprocess.STDOUT))
    try:
        for rank, process in enumerate(ranks):
            if process.wait(RANK_S) != 0:
                raise SystemExit(f"bubbles: rank {rank} failed{tail(scratch / f'rank{rank}.log')}")
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [json.loads((scratch / f"rank{rank}.report").read_text()) for rank in range(world_size)]


def estimate_ms(stage: int, passes_ms: list[float], micro_batches: int) -> tuple[float, float]:
    """REFT's EstimateBubbleTime, as schedule/layers.hpp has it, and the same for stages of unequal speed. `passes_ms`
    has the mean pass of each stage. The slowest stage sets the pace, and the others also wait for it in each pass."""
    stages, own_ms, slowest_ms = len(passes_ms), passes_ms[stage], max(passes_ms)
    passes = 0.8 * stage + 2 * stages - stage - 2
    return passes * own_ms, passes * slowest_ms + 2 * micro_batches * (slowest_ms - own_ms)


def medians_of(reports: list[Any], scheme: str) -> list[float]:
    """The median iteration of each of a scheme's blocks after the warm-up, on the slowest rank."""
    blocks = list(zip(*(report["blocks"] for report in reports), strict=True))[len(SCHEMES) :]
    of_scheme = [block for block in blocks if block[0]["scheme"] == scheme]
    slowest = [[max(each) for each in zip(*(own["ms"] for own in block), strict=True)] for block in of_scheme]
    return [statistics.median(block[SETTLE:]) for block in slowest]


def stage_median(reports: list[Any], stage: int, key: str) -> float:
    """The median of `key` over all ranks of the stage and all iterations without snapshots."""
    return statistics.median(
        iteration[key]
        for report in reports
        if report["stage"] == stage
        for block in report["blocks"][len(SCHEMES) :]
        if block["scheme"] == "none"
        for iteration in block["pipeline"][SETTLE:]
    )


def print_bubbles(reports: list[Any], stages: int, micro_batches: int) -> None:
    print("stage  pass, ms  bubbles, ms  estimated, ms  off   unequal stages, ms  off")
    passes_ms = [stage_median(reports, stage, "pass_ms") for stage in range(stages)]
    worst = [0.0, 0.0]
    for stage, pass_ms in enumerate(passes_ms):
        bubble_ms = stage_median(reports, stage, "bubble_ms")
        estimates = estimate_ms(stage, passes_ms, micro_batches)
        off = [estimate / bubble_ms - 1 for estimate in estimates]
        worst = [max(before, abs(now)) for before, now in zip(worst, off, strict=True)]
        print(
            f"{stage:>5}  {pass_ms:>8.2f}  {bubble_ms:>11.2f}  {estimates[0]:>13.2f}  {off[0]:+4.0%}"
            f"  {estimates[1]:>18.2f}  {off[1]:+4.0%}"
        )
    print(
        f"EstimateBubbleTime is off by at most {worst[0]:.0%}, with unequal stages by at most {worst[1]:.0%} "
        "(goal: 15 %)"
    )


def print_copies(reports: list[Any]) -> None:
    for scheme in ("immediate", "layered"):
        for report in reports:
            own = report["copied"][scheme]
            total = max(1, own["bubble_bytes"] + own["compute_bytes"] + own["update_bytes"])
            shares = ", ".join(
                f"{own[key] / total:.0%} {where}"
                for key, where in [
                    ("bubble_bytes", "in bubbles"),
                    ("compute_bytes", "beside computation"),
                    ("update_bytes", "in before_update()"),
                ]
            )
            print(
                f"{scheme:<9} stage {report['stage']}, rank {report['rank']}: {shares}; {own['layered']} of "
                f"{own['snapshots']} captures in layers, {own['layered_late']} of them late"
            )


def print_processor_time(reports: list[Any]) -> None:
    """Of all ranks and of the agents, by thread. Threads that took little are left out."""
    print("processor time per iteration, ms")
    sums: dict[str, dict[str, float]] = {}
    for scheme in SCHEMES:
        for report in reports:
            blocks = [block for block in report["blocks"][len(SCHEMES) :] if block["scheme"] == scheme]
            for thread in {thread for block in blocks for thread in block["processor_ms"]}:
                own = statistics.mean(block["processor_ms"].get(thread, 0.0) for block in blocks)
                by_scheme = sums.setdefault(thread, dict.fromkeys(SCHEMES, 0.0))
                by_scheme[scheme] += own
    print(f"{'thread':<32}" + "".join(f"{scheme:>12}" for scheme in SCHEMES))
    for thread, by_scheme in sorted(sums.items()):
        if max(by_scheme.values()) >= 0.05:
            print(f"{thread:<32}" + "".join(f"{value:>12.2f}" for value in by_scheme.values()))


def draw(path: Path, cluster: Cluster, scratch: Path, ctl: Path) -> None:
    where = ["--job", cluster.job, "--arena-dir", cluster.nodes["node"].arena_dir, "--iterations", 2]
    command = [ctl, "trace", *where, "--output", scratch / "trace.json", "--plot", path]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    print(f"figure: {path}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = 4 if os.cpu_count() >= 4 else 2
    parser.add_argument("--stages", type=int, default=stages, help=f"with {REPLICAS} ranks each; a core for each stage")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--block", type=int, default=15, help="iterations of a scheme that count, in each round")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8, help="of each stage")
    parser.add_argument("--batch", type=int, default=96, help="rows of a micro-batch")
    parser.add_argument("--profile-iterations", type=int, default=20)
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draws the last iterations, as ckptctl trace does")
    parser.add_argument("--library", type=Path)
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> None:
    library = Path(load_library(arguments.library).path)
    programs = find_programs(library)
    with tempfile.TemporaryDirectory(prefix="ckptengine-bubbles-") as folder:
        scratch = Path(folder)
        clusters: dict[str, Cluster] = {}
        try:
            for name, layered in SCHEMES.items():
                if layered is None:
                    continue
                job = f"bubbles-{name.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
                logs = scratch / name
                logs.mkdir()
                # The schemes that wait are not in trouble.
                quiet = {"unprotected_after_ms": 3_600_000, "hang_floor_ms": 3_600_000}
                options = {"protection": "copies(1)", "interface": "lo"} | quiet
                clusters[name] = Cluster(job, programs, logs, Path("/dev/shm"), options)
                clusters[name].add_node("node")
            reports = train(clusters, scratch, arguments)
            if arguments.plot is not None:
                draw(arguments.plot, clusters["layered"], scratch, programs["ckptctl"])
        finally:
            for cluster in clusters.values():
                cluster.__exit__()
    medians = {name: medians_of(reports, name) for name in SCHEMES}
    print(
        f"{arguments.stages} stages x {REPLICAS} ranks, {arguments.micro_batches} micro-batches, "
        f"{reports[0]['state_bytes'] / 2**20:.1f} MiB of state per rank; a core for each stage's ranks; load of the "
        f"machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    print_bubbles(reports, arguments.stages, arguments.micro_batches)
    print_copies(reports)
    print_processor_time(reports)
    for name, line in [("layered", "bubbles_layered"), ("immediate", "bubbles_at_once")]:
        # Of each round by itself, because the load of a machine changes.
        ratio = statistics.median(own / none for own, none in zip(medians[name], medians["none"], strict=True))
        ours, theirs = statistics.median(medians[name]), statistics.median(medians["none"])
        print(f"ratio: {line} = {ratio:.3f} (ours {ours:.2f}, theirs {theirs:.2f}, ms)")


def main() -> int:
    arguments = parse()
    return run_bench("bubbles", lambda: run(arguments))


if __name__ == "__main__":
    sys.exit(main())
