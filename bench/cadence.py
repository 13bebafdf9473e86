"""Measures how many snapshots are skipped if iterations are short: one snapshot in every iteration of 2 to 50 ms.

There are jobs of one rank, whose checkpoint stays on its node, and of two ranks on two nodes of this machine, which
copy each other's state. An iteration has three parts: three fifths of its time from snapshot() to a collective, one
fifth in the collective, which keeps the ranks in step, and one fifth from before_update() to the next snapshot().
Meanwhile the ranks wait, as for a GPU, or compute (--busy). The memory is that of all nodes' arenas, per byte of all
ranks' state. The ratio is that of the worst row.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from ckptengine import Engine, load_library
from cluster import Cluster
from run import find_programs

DEADLINE_S = 60
REDUCTION = 0.2  # share of an iteration that the collective takes
UPDATE = 0.2


def compute(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def train(
    options: dict[str, Any], mib: int, iteration_ms: float, count: int, busy: bool, lockstep: Any, found: Any, end: Any
) -> None:
    """One rank. Runs as many iterations to warm up as it counts afterwards."""
    spend = compute if busy else time.sleep
    state = bytearray(mib << 20)
    with Engine(**options) as engine:
        engine.register("state", state)
        engine.restore()
        iteration = 0
        for _ in range(2):
            lockstep.wait(DEADLINE_S)
            before, began_at = engine.stats(), time.perf_counter()
            for _ in range(count):
                iteration += 1
                engine.snapshot(iteration)
                spend(iteration_ms * (1 - REDUCTION - UPDATE) / 1000)
                engine.comm_begin()
                lockstep.wait(DEADLINE_S)
                time.sleep(iteration_ms * REDUCTION / 1000)
                engine.comm_end()
                engine.before_update()
                spend(iteration_ms * UPDATE / 1000)
            took_ms, after = 1000 * (time.perf_counter() - began_at), engine.stats()
        found.put(
            [(after.skipped - before.skipped) / count, (after.committed - before.committed) / count, took_ms / count]
        )
        end.wait(DEADLINE_S)


def measure(
    programs: dict[str, Path], ranks: int, mib: int, iteration_ms: float, arguments: argparse.Namespace
) -> list[float]:
    """Shares of iterations that were skipped and committed, milliseconds per iteration, own slots, memory per state."""
    context = multiprocessing.get_context("fork")
    lockstep, found, end = context.Barrier(ranks), context.Queue(), context.Event()
    count = max(50, int(arguments.seconds * 1000 / iteration_ms))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-cadence-", dir="/dev/shm")))
        options = {"protection": f"copies({ranks})", "interface": "lo", "schedule": arguments.schedule}
        cluster = stack.enter_context(
            Cluster(f"cadence-{uuid.uuid4().hex[:8]}", programs, folder, Path("/dev/shm"), options)
        )
        for rank in range(ranks):
            engine = cluster.engine_options(cluster.add_node(f"node{rank}").name, rank, ranks)
            trainer = context.Process(
                target=train, args=(engine, mib, iteration_ms, count, arguments.busy, lockstep, found, end)
            )
            trainer.start()
            stack.callback(trainer.join, DEADLINE_S)
        stack.callback(end.set)
        means = [
            sum(values) / ranks for values in zip(*(found.get(timeout=DEADLINE_S) for _ in range(ranks)), strict=True)
        ]
        agents = [cluster.status(name) for name in cluster.nodes]
        slots = max(rank["own_slots"]["count"] for agent in agents for rank in agent["ranks"])
        bytes_held = sum(segment["bytes"] for agent in agents for segment in agent["segments"])
        return [*means, slots, bytes_held / (ranks * mib << 20)]


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4, help="how long to count iterations for each row")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--mib", type=int, nargs="+", default=[1, 16], help="MiB of state of each rank")
    parser.add_argument("--iterations-ms", type=float, nargs="+", default=[2, 5, 10, 20, 50])
    parser.add_argument("--busy", action="store_true", help="iterations compute, as without a GPU")
    parser.add_argument("--schedule", default="idle", help="idle, or immediate: send without regard for training")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    programs = find_programs(Path(load_library(arguments.library).path))
    rows = [["ranks", "state, MiB", "iteration, ms", "took, ms", "skipped", "committed", "own slots", "memory / state"]]
    worst = 0.0
    for ranks, mib, iteration_ms in itertools.product(arguments.ranks, arguments.mib, arguments.iterations_ms):
        skipped, committed, took_ms, slots, memory = measure(programs, ranks, mib, iteration_ms, arguments)
        worst = max(worst, skipped)
        rows.append(
            [
                str(ranks),
                str(mib),
                f"{iteration_ms:g}",
                f"{took_ms:.1f}",
                f"{skipped:.0%}",
                f"{committed:.0%}",
                f"{slots:.0f}",
                f"{memory:.2f}",
            ]
        )
        print("  ".join(rows[-1]), flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(aligned(rows))
    print(f"ratio: cadence_skipped = {worst:.2f} (skipped {worst:.2f}, offered 1, snapshots of the worst row)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
