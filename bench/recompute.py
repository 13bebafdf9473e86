"""Measures what protection=recompute(2) saves and costs in a real job, against copies(2).

Two ranks on two nodes of this machine, each with an agent, train a model of their own with a fused AdamW. Float32
parameters, moments and gradients. Each iteration ends when its checkpoint is committed, in both jobs. The first
iterations do not count.

recompute_bytes is what an agent receives per iteration, ours / theirs. recompute_cpu is the processor time of both
agents, which serve, receive and verify, or repeat the update. Besides, the share of checkpoints that a repeated update
gave. Afterwards bench_recompute measures the update alone, in one thread.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from ckptengine import Stage, load_library
from run import find_programs

RANKS = 2
WARM_UP = 4  # iterations; in the first, the optimizer makes its moments
DEADLINE_S = 300
CHECKPOINTS = ("recomputed", "recomputed_in_vain", "not_recomputed")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def agent_of(settings: dict[str, Any], rank: int) -> dict[str, float]:
    """Counters and processor time of a node's agent so far."""
    options = settings["options"]
    where = ["--job", options["job"], "--arena-dir", options["arena_dir"], "--node", f"node{rank}"]
    printed = subprocess.run([settings["ckptctl"], "status", "--json", *where], check=True, capture_output=True)
    [agent] = json.loads(printed.stdout)["agents"]
    return agent["counters"] | {"cpu_s": cpu_seconds(agent["pid"])}


def train(settings: dict[str, Any], rank: int, results: Any) -> None:
    """One rank. Puts (rank, state bytes, figures of the counted iterations, seconds)."""
    import torch
    from ckptengine.torch import Checkpointer
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    width = settings["width"]
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(settings["layers"])))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    batch = torch.randn(4, width)
    own = {"rank": rank, "world_size": RANKS, "node": f"node{rank}"}
    before: dict[str, float] = {}
    begun_s = 0.0
    with Checkpointer(model, optimizer, **settings["options"], **own) as checkpointer:
        checkpointer.restore()
        for k in range(WARM_UP + settings["iterations"]):
            if k == WARM_UP:
                before, begun_s = agent_of(settings, rank), time.monotonic()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            with checkpointer.update(k):
                optimizer.step()
            checkpointer.before_update()
            if not checkpointer.ticket or not checkpointer.ticket.wait(Stage.COMMITTED, 60_000):
                raise RuntimeError(f"iteration {k} was not committed: {checkpointer.ticket}")
        took_s = time.monotonic() - begun_s
        after = agent_of(settings, rank)
        state_bytes = 12 * sum(parameter.numel() for parameter in model.parameters())
        results.put((rank, state_bytes, {name: after[name] - before[name] for name in before}, took_s))


def measure(arguments: argparse.Namespace, protection: str) -> tuple[dict[str, float], int, float]:
    """Figures of both agents together per iteration, the state's bytes of a rank, and milliseconds per iteration."""
    programs = find_programs(Path(load_library(arguments.library).path))
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-recompute-", dir="/dev/shm") as arena,
        tempfile.TemporaryDirectory(prefix="ckptengine-recompute-") as coordination,
    ):
        options = {
            "job": Path(arena).name,
            "arena_dir": arena,
            "coordination": coordination,
            "interface": "lo",
            "protection": protection,
            "ckptd": str(programs["ckptd"]),
            "library": str(programs["library"]),
        }
        settings = {
            "options": options,
            "ckptctl": str(programs["ckptctl"]),
            "width": arguments.width,
            "layers": arguments.layers,
            "iterations": arguments.iterations,
        }
        results = context.Queue()
        ranks = [context.Process(target=train, args=(settings, rank, results), daemon=True) for rank in range(RANKS)]
        try:
            for process in ranks:
                process.start()
            told = [results.get(timeout=DEADLINE_S) for _ in ranks]
            for process in ranks:
                process.join(DEADLINE_S)
        finally:
            for process in ranks:
                process.kill()
            for rank in range(RANKS):
                where = [
                    f"job={options['job']}",
                    f"node=node{rank}",
                    f"arena_dir={arena}",
                    f"coordination={coordination}",
                ]
                subprocess.run([programs["ckptctl"], "stop", *where], check=False, capture_output=True, timeout=30)
    figures = {name: sum(one[2][name] for one in told) / arguments.iterations for name in told[0][2]}
    return figures, told[0][1], 1e3 * statistics.mean(one[3] for one in told) / arguments.iterations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=20, help="iterations that count")
    parser.add_argument("--rounds", type=int, default=2, help="jobs of each kind, in turns")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    ours, theirs, state_bytes = [], [], 0
    for _ in range(arguments.rounds):
        for protection, into in (("recompute(2)", ours), ("copies(2)", theirs)):
            figures, state_bytes, ms = measure(arguments, protection)
            into.append(figures)
            print(
                f"{protection}: {figures['bytes_received'] / RANKS / 2**20:.1f} MiB received by an agent, "
                f"{1e3 * figures['cpu_s']:.0f} ms of both agents' processor time, {ms:.0f} ms, per iteration",
                flush=True,
            )
    total = {name: sum(figures[name] for figures in ours) for name in CHECKPOINTS}
    share = total["recomputed"] / sum(total.values())
    print(
        f"{state_bytes / 2**20:.0f} MiB of state in each rank; {100 * share:.1f} % of {arguments.rounds} x "
        f"{RANKS * arguments.iterations} shards came from a repeated update, "
        f"{total['recomputed_in_vain'] * arguments.iterations:.0f} updates were repeated in vain"
    )
    for name, key, unit, scale in (
        ("recompute_bytes", "bytes_received", "MiB", 2**-20),
        ("recompute_cpu", "cpu_s", "ms", 1e3),
    ):
        a, b = (scale * statistics.mean(figures[key] for figures in side) for side in (ours, theirs))
        print(f"ratio: {name} = {a / b:.3f} (ours {a:.2f}, theirs {b:.2f}, {unit})", flush=True)
    return subprocess.run([ROOT / "build" / "release" / "bench" / "bench_recompute"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
