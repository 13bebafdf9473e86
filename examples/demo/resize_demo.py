"""A job whose state is split over its ranks comes back with another number of ranks, from memory.

FSDP2 splits a small GPT and its optimizer over N ranks, each on a "node" of this machine. The job is killed, and comes
back with M ranks. If M is smaller, the last node has died with its memory. Every new rank gets its ranges of each
tensor from what the old ranks captured. As the control, M ranks without the engine load what
torch.distributed.checkpoint (DCP) has saved of the same iteration. The losses of all ranks must be the same, bit for
bit.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import corpus
import numpy as np
from ckptengine import load_library
from cluster import Cluster, DemoFailure
from report import Progress, mib
from run import Run, find_programs

RANKS_MAX = 16
LENGTH = 32


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.splitlines()[0])
    parser.add_argument("--resize", required=True, metavar="N:M", help="from N ranks to M ranks, e.g. 4:3")
    parser.add_argument("--iterations", type=int, default=8, metavar="N", help="of the whole job (default 8)")
    parser.add_argument("--kill-at", type=int, default=4, metavar="K", help="iteration after which it ends (default 4)")
    parser.add_argument("--layers", type=int, default=1, metavar="N", help="of the GPT (default 1)")
    parser.add_argument("--batch", type=int, default=2, metavar="N", help="texts per rank and iteration (default 2)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of model and data (default 1)")
    parser.add_argument("--arena-root", type=Path, default=Path("/dev/shm"), metavar="DIR", help="a tmpfs")
    parser.add_argument("--output", type=Path, default=Path("demo-out"), metavar="DIR", help="for logs")
    parser.add_argument("--library", type=Path, metavar="FILE", help="libckptengine.so (default: the release build)")
    arguments = parser.parse_args(words)
    numbers = re.fullmatch(r"(\d{1,4}):(\d{1,4})", arguments.resize)
    if numbers is None:
        parser.error(f"--resize is '{arguments.resize}', but must name two numbers of ranks, e.g. --resize 4:3")
    arguments.before, arguments.after = int(numbers[1]), int(numbers[2])
    if not (1 <= arguments.before <= RANKS_MAX and 1 <= arguments.after <= RANKS_MAX):
        parser.error(f"--resize is {arguments.resize}, but both numbers must be from 1 to {RANKS_MAX}")
    if arguments.before == arguments.after:
        parser.error(f"--resize is {arguments.resize}, but the two numbers must differ")
    if not 1 <= arguments.kill_at < arguments.iterations - 1:
        parser.error("--kill-at must be at least 1, and at least 2 less than --iterations")
    if arguments.layers < 1 or arguments.batch < 1:
        parser.error("--layers and --batch must be at least 1")
    return arguments


def demo(arguments: argparse.Namespace) -> bool:
    """True if all ranks went on from memory, with the losses of the control."""
    progress = Progress()
    logs = arguments.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.log"):
        old.unlink()
    programs = find_programs(Path(load_library(arguments.library).path))
    before, after = arguments.before, arguments.after
    options = {"transport": "tcp", "interface": "lo", "protection": "copies(2)", "profile_iterations": 1}
    with Cluster("resize", programs, logs.resolve(), arguments.arena_root, options) as cluster:
        text = corpus.encode(corpus.read_text(None))
        np.save(cluster.scratch / "text.npy", text)
        (cluster.scratch / "dcp").mkdir()
        settings = {
            "program": "resize_trainer.py",
            "text": str(cluster.scratch / "text.npy"),
            "characters": corpus.CHARACTERS_MAX,
            "length": LENGTH,
            "layers": arguments.layers,
            "batch": arguments.batch,
            "iterations": arguments.iterations,
            "seed": arguments.seed,
            "dcp": str(cluster.scratch / "dcp"),
            "begin": None,
        }
        names = [f"node{rank}" for rank in range(max(before, after))]
        for name in names[:before]:
            cluster.add_node(name)
        progress.say(f"{before} ranks train a GPT that FSDP2 splits over them")
        job = Run(cluster, settings | {"name": "job"}, progress)
        dead = [names[before - 1]] if after < before else []
        job.live(dict(enumerate(names[:before])), kill=(arguments.kill_at + 1, dead, 0.5))
        lost = f"{dead[0]} is gone with its memory" if dead else "all nodes are left"
        progress.say(f"killed in iteration {arguments.kill_at + 1}: {lost}; {after} ranks begin")
        for name in names[before:after]:
            cluster.add_node(name)
        job.live(dict(enumerate(names[:after])))
        iteration = job.restored()[0]["iteration"] if job.restored() else -1
        if iteration < 0:
            raise DemoFailure(f"the new ranks found no checkpoint in memory; see {logs}")
        progress.say(f"control: {after} ranks without the engine load iteration {iteration} with DCP")
        control = Run(cluster, settings | {"name": "control", "begin": iteration}, progress)
        control.live(dict.fromkeys(range(after)))
    return show(arguments, job, control)


def show(arguments: argparse.Namespace, job: Run, control: Run) -> bool:
    """Origins and verdict."""
    before, after = arguments.before, arguments.after
    print("\nrank  restored   from          bytes")
    restored = job.restored()
    for rank, event in sorted(restored.items()):
        print(f"{rank:>4}  {event['iteration']:>8}   {event['main']:<8}{mib(event['bytes']):>11}  {event['message']}")
    differing = differences(losses_of(job), losses_of(control), after)
    starts = {(event["iteration"], event["stored"]) for event in restored.values()}
    if len(restored) != after or len(starts) != 1 or starts.pop()[1] != before:
        differing.insert(0, f"not all {after} ranks restored one checkpoint of {before} ranks")
    for difference in differing[:5]:
        print(difference)
    print(f"resized {before} -> {after}; losses as after a DCP load: {'no' if differing else 'yes'}")
    return not differing


def losses_of(run: Run) -> dict[int, dict[int, str]]:
    """By rank and iteration, in the last incarnation."""
    told = run.incarnations[-1].iterations
    return {rank: {event["k"]: event["loss"] for event in events} for rank, events in told.items()}


def differences(ours: dict[int, dict[int, str]], control: dict[int, dict[int, str]], ranks: int) -> list[str]:
    """Where a loss is not that of the control, or where either has none."""
    found = []
    for rank in range(ranks):
        mine, theirs = ours.get(rank, {}), control.get(rank, {})
        if not theirs:
            found.append(f"rank {rank} of the control has trained nothing")
        for k in sorted(mine.keys() | theirs.keys()):
            if mine.get(k) != theirs.get(k):
                found.append(f"rank {rank}, iteration {k}: loss {mine.get(k)} instead of {theirs.get(k)}")
    return found


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        return 0 if demo(arguments) else 1
    except KeyboardInterrupt:
        print("\ninterrupted; agents, trainers and arenas are gone", file=sys.stderr)
        return 130
    except (DemoFailure, OSError, ValueError) as failure:
        print(f"\ndemo: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
