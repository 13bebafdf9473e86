"""Measures what a snapshot in every iteration costs training: the demo's job with and without snapshots, in one run.

Four ranks on four nodes of this machine train as in ./dev demo. Blocks of iterations with snapshots take turns with
blocks without any. The first iterations of a block do not count, because the work of the block before may still go on.
Ours is the median iteration with snapshots, theirs the one without. If training keeps all cores of the machine busy,
all that capture and protection compute prolongs iterations. The figures below the ratio say how much that is. Two more
runs have parity instead of copies, and checkpoints that go to storage all the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

import corpus
import numpy as np
from ckptengine import load_library
from cluster import Cluster
from demo import LENGTH, placement
from report import Progress, mib, table
from run import Run, find_programs

SETTLE = 2  # iterations that do not count at the beginning of each block


def cpu_seconds(pids: list[int]) -> float:
    """The user and system time that these processes have used so far, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(arguments: argparse.Namespace, folder: Path, more: dict[str, Any]) -> tuple[Run, float]:
    """The run, and the CPU seconds of all agents during it."""
    programs = find_programs(Path(load_library(arguments.library).path))
    # The first block warms up. The profile is learned within it.
    options = {"transport": arguments.transport, "interface": "lo", "profile_iterations": 3} | more
    folder.mkdir()
    with Cluster("iteration", programs, folder, Path("/dev/shm"), options) as cluster:
        np.save(cluster.scratch / "text.npy", corpus.encode(corpus.read_text(None)))
        names = [f"node{i}" for i in range(arguments.nodes)]
        pids = [cluster.add_node(name).agent.pid for name in names]
        settings = {
            "name": "iteration",
            "text": str(cluster.scratch / "text.npy"),
            "characters": corpus.CHARACTERS_MAX,
            "length": LENGTH,
            "layers": arguments.nodes,
            "batch": arguments.batch,
            "iterations": 2 * arguments.blocks * arguments.block,
            "seed": 1,
            "alternate": arguments.block,
        }
        run = Run(cluster, settings, Progress())
        before = cpu_seconds(pids)
        run.live(placement(names, 1))
        return run, cpu_seconds(pids) - before


def split(run: Run, block: int) -> tuple[list[float], list[float]]:
    """Iteration times of rank 0 with and without snapshots; the first two blocks warm up."""
    with_snapshots, without = [], []
    for event in run.incarnations[0].iterations[0]:
        k = event["k"]
        if k >= 2 * block and k % block >= SETTLE:
            (with_snapshots if (k // block) % 2 == 0 else without).append(event["ms"])
    return with_snapshots, without


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=6, help="blocks of each kind; the first one warms up")
    parser.add_argument("--block", type=int, default=7, help="iterations in a block")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--transport", default="tcp")
    parser.add_argument("--directory", type=Path, default=ROOT / "build", metavar="DIR", help="where to put storage")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ckptengine-iteration-", dir=arguments.directory) as scratch:
        folder = Path(scratch)
        report(arguments, "iteration", *measure(arguments, folder / "logs", {}))
        parity = {"protection": f"xor({arguments.nodes})"}
        report(arguments, "iteration_parity", *measure(arguments, folder / "parity", parity))
        storage = folder / "storage"
        storage.mkdir()
        storing = {"storage": storage, "storage_every": 1, "storage_keep_last": 2}
        report(arguments, "iteration_storing", *measure(arguments, folder / "storing", storing))
        newest = max((step.parent.name for step in storage.glob("*/*/manifest.json")), default="none")
        print(f"newest step on storage: {newest}")
    return 0


def report(arguments: argparse.Namespace, name: str, run: Run, agents_s: float) -> None:
    with_snapshots, without = split(run, arguments.block)
    taken, skipped = run.count_snapshots()
    captured = run.bytes_captured()
    print(table([("stall", run.values("stall_ms")), ("from capture to commit", run.values("protection_ms"))]))
    rounds = max(1, taken // arguments.nodes)
    print(f"snapshots: {taken} taken, {skipped} skipped; {mib(captured / rounds)} captured per iteration of all ranks")
    print(f"agents: {1e3 * agents_s / rounds:.0f} ms of CPU time per snapshot of all ranks, heartbeats included")
    ours, theirs = statistics.median(with_snapshots), statistics.median(without)
    print(f"ratio: {name} = {ours / theirs:.3f} (ours {ours:.2f}, theirs {theirs:.2f}, ms)")


if __name__ == "__main__":
    sys.exit(main())
