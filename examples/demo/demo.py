"""A training job loses a machine and carries on from its peer's memory.

Trains a small character-level GPT on several "nodes" of this machine, twice: undisturbed, and with a snapshot in every
iteration and one node that is killed at a random moment - agent, trainers and memory. An empty node takes its place,
every rank calls restore(), and the losses must go on as if nothing had happened, bit for bit. With --kill-all every
node is killed, and the job resumes from the newest checkpoint that had reached storage; with --protection, nodes hold
parity of their peers' state, from which what was lost is decoded.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import corpus
import numpy as np
from ckptengine import load_library
from cluster import Cluster, DemoFailure, Held
from report import Progress, draw_losses, mib, table
from run import Run, find_programs

TIERS = ["local", "peer", "decoded", "persistent"]
LENGTH = 64
STANDBY = "standby"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4, metavar="N", help="machines (default 4, at least 2)")
    parser.add_argument("--ranks-per-node", type=int, default=1, metavar="N", help="trainers on each (default 1)")
    parser.add_argument("--iterations", type=int, default=50, metavar="N", help="of each run (default 50)")
    parser.add_argument("--batch", type=int, default=12, metavar="N", help="texts per rank and iteration (default 12)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="what to train on (default: Python's library)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of model, data and dropout (default 1)")
    parser.add_argument("--kill-at", type=int, metavar="K", help="iteration in which a node dies (default: random)")
    parser.add_argument("--kill-node", type=int, metavar="I", help="which one (default: random)")
    parser.add_argument("--kill-all", action="store_true", help="kill every node: only storage is left")
    parser.add_argument("--standby", action="store_true", help="a node stands by and takes the place of the dead one")
    parser.add_argument("--storage-every", type=int, default=5, metavar="K", help="with --kill-all (default 5)")
    parser.add_argument("--protection", default="copies(2)", metavar="P", help="xor:4, rs:4,2, ... (default copies(2))")
    parser.add_argument(
        "--coordinator", choices=["directory", "etcd"], default="directory", help="how nodes meet (default directory)"
    )
    parser.add_argument("--transport", default="tcp", help="between agents, as UCX_TLS names it (default tcp)")
    parser.add_argument("--arena-root", type=Path, default=Path("/dev/shm"), metavar="DIR", help="a tmpfs")
    parser.add_argument("--output", type=Path, default=Path("demo-out"), metavar="DIR", help="for picture and logs")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="losses, as .png, .svg or .pdf (default: losses.png in --output)"
    )
    parser.add_argument("--library", type=Path, metavar="FILE", help="libckptengine.so (default: the release build)")
    arguments = parser.parse_args()
    if arguments.nodes < 2:
        parser.error("--nodes must be at least 2: with one machine there is no peer whose memory survives")
    if arguments.ranks_per_node < 1:
        parser.error("--ranks-per-node must be at least 1")
    if arguments.iterations < 10:
        parser.error("--iterations must be at least 10")
    if arguments.storage_every < 1:
        parser.error("--storage-every must be at least 1")
    if arguments.kill_all and arguments.kill_node is not None:
        parser.error("--kill-all leaves no choice of --kill-node")
    if arguments.kill_all and arguments.standby:
        parser.error("--standby takes the place of one node, and --kill-all leaves none")
    if arguments.kill_at is not None and not 2 <= arguments.kill_at < arguments.iterations:
        parser.error(f"--kill-at must be from 2 to {arguments.iterations - 1}")
    if arguments.kill_node is not None and not 0 <= arguments.kill_node < arguments.nodes:
        parser.error(f"--kill-node must be from 0 to {arguments.nodes - 1}")
    return arguments


def demo(arguments: argparse.Namespace) -> bool:
    """True when all ranks were restored and the losses are identical."""
    progress = Progress()
    logs = arguments.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.log"):
        old.unlink()
    programs = find_programs(Path(load_library(arguments.library).path))
    chance = random.Random()
    killed_at = arguments.kill_at or chance.randint(arguments.iterations // 3, arguments.iterations * 2 // 3)
    victim = arguments.kill_node if arguments.kill_node is not None else chance.randrange(arguments.nodes)

    options = {
        "transport": arguments.transport,
        "interface": "lo",
        "protection": arguments.protection,
        "profile_iterations": max(1, killed_at // 4),  # so that checkpoints are committed before the node dies
    }
    with Cluster("demo", programs, logs.resolve(), arguments.arena_root, options, arguments.coordinator) as cluster:
        text = corpus.encode(corpus.read_text(arguments.text))
        np.save(cluster.scratch / "text.npy", text)
        ranks = arguments.nodes * arguments.ranks_per_node
        settings = {
            "text": str(cluster.scratch / "text.npy"),
            "characters": corpus.CHARACTERS_MAX,
            "length": LENGTH,
            "layers": ranks,  # of 20.3 MiB of state each: so much, or more, is on every rank alone
            "batch": arguments.batch,
            "iterations": arguments.iterations,
            "seed": arguments.seed,
        }
        names = [f"node{i}" for i in range(arguments.nodes)]
        if arguments.kill_all:
            storage = cluster.scratch / "storage"
            storage.mkdir()
            cluster.agent_options |= {"storage": storage, "storage_every": arguments.storage_every}
        for name in names:  # before anything is trained: they have the last word on the options
            cluster.add_node(name)
        if arguments.standby:
            cluster.add_node(STANDBY, standby="true")
        check_protection(cluster.status(names[0]), arguments.kill_all)
        progress.say(
            f"{ranks} ranks on {arguments.nodes} nodes train a GPT of {ranks} layers on {len(text):,} characters, "
            f"{arguments.iterations} iterations"
        )

        undisturbed = Run(cluster, settings | {"name": "undisturbed"}, progress)
        undisturbed.live({rank: None for rank in range(ranks)})
        progress.say(f"undisturbed: loss {undisturbed.first_loss():.3f} -> {undisturbed.last_loss():.3f}")

        protected = Run(cluster, settings | {"name": "protected"}, progress)
        victims = range(arguments.nodes) if arguments.kill_all else [victim]
        dead = [names[i] for i in victims]
        protected.live(placement(names, arguments.ranks_per_node), kill=(killed_at, dead, chance.uniform(0.05, 0.95)))
        gone = "agents, trainers and memory" if arguments.kill_all else "agent, trainers and memory"
        progress.say(f"{', '.join(dead)} killed in iteration {killed_at}: {gone} are gone")
        if arguments.standby:
            cluster.await_replacement(STANDBY, names[victim])
            protected.reach("its place taken, copies made again", time.monotonic())
            names[victim] = STANDBY
            replacement = f"{STANDBY} has its place and what it held"
        elif arguments.kill_all:
            replacement = "new nodes take their places, empty"
        else:
            replacement = f"node{arguments.nodes} takes its place, empty"
        for i in [] if arguments.standby else victims:
            names[i] = f"node{arguments.nodes + i if arguments.kill_all else arguments.nodes}"
            cluster.add_node(names[i])
            protected.reach(f"agent of {names[i]} started", time.monotonic())
        progress.say(f"{replacement}; all trainers start again")
        protected.live(placement(names, arguments.ranks_per_node))
        progress.say(f"with snapshots: loss {protected.first_loss():.3f} -> {protected.last_loss():.3f}\n")
        reach_what_agents_did(protected, cluster, dead)
        agents, counted, held = cluster.status(names[0]), cluster.counted(), cluster.held()

    show_costs(undisturbed, protected, agents, counted, held)
    return show(arguments, undisturbed, protected, killed_at)


def reach_what_agents_did(run: Run, cluster: Cluster, dead: list[str]) -> None:
    """As far as anybody was left to do it."""
    incarnation = max(event["incarnation"] for event in run.restored().values())
    for what, at_s in (
        (
            "node declared lost" if len(dead) == 1 else "nodes declared lost",
            cluster.declared_lost_at_s(dead, run.killed_at_s),
        ),
        ("decided what to restore", cluster.decided_at_s(incarnation, run.killed_at_s)),
    ):
        if at_s is not None:
            run.reach(what, at_s)


def check_protection(agent: dict[str, Any], kill_all: bool) -> None:
    if agent["copies"] == 1 and agent["parity"] == 0 and not kill_all:
        raise DemoFailure(
            f"{agent['protection']} survives the loss of no node; take copies(2), xor(4) or rs(4,2), or --kill-all, "
            "after which storage has everything"
        )


def placement(names: list[str], ranks_per_node: int) -> dict[int, str | None]:
    return {i * ranks_per_node + r: name for i, name in enumerate(names) for r in range(ranks_per_node)}


def show_costs(undisturbed: Run, protected: Run, agent: dict[str, Any], counted: Counter[str], held: Held) -> None:
    """What snapshots took of time, network and memory. `agent` tells what the job is protected by."""
    ways = ["replication"] * (agent["copies"] > 1) + ["encoding"] * (agent["parity"] > 0)
    rows = [
        ("iteration, undisturbed", undisturbed.values("ms")),
        ("iteration, with snapshots", protected.values("ms")),
        ("stall", protected.values("stall_ms")),
        ("capture, beside training", protected.values("capture_ms")),
        (" and ".join(ways) or "waiting for all ranks", protected.values("protection_ms")),
        ("commit latency, both", protected.values("commit_ms")),
    ]
    print(table(rows))
    taken, skipped = protected.count_snapshots()
    moved = [f"{mib(protected.bytes_captured())} captured", f"{mib(counted['bytes_received'])} sent between nodes"]
    if agent["parity"] > 0:
        moved.append(f"{mib(counted['bytes_made'])} encoded or decoded")
    print(f"\nsnapshots: {taken} taken, {skipped} skipped; {', '.join(moved)}")
    for failure in protected.failed_snapshots():
        print(f"  {failure}")
    print(memory_sentence(agent, held))


def memory_sentence(agent: dict[str, Any], held: Held) -> str:
    """What protection takes of memory, and what copies would take instead."""
    parts = [f"{mib(size)} of {name}" for name, size in (("copies", held.copies), ("parity", held.parity)) if size]
    text = f"{agent['protection']} holds {' and '.join(parts) or 'nothing'} beside a checkpoint of {mib(held.captured)}"
    rows = agent["parity_now"]  # fewer than asked for where there are too few nodes
    if rows == 0:
        return text
    if agent["copies"] > 1:
        return f"{text}; one more copy would take {mib(held.captured)}"
    return f"{text}; copies({rows + 1}), which survive as many losses, would take {mib(rows * held.captured)}"


def show(arguments: argparse.Namespace, undisturbed: Run, protected: Run, killed_at: int) -> bool:
    """Origins, picture and verdict."""
    restored = protected.restored()
    print("\nrank  state from     bytes       fetch        load  restore() in all")
    for rank, event in sorted(restored.items()):
        times = f"{event['fetch_ms']:>9.1f} ms{event['load_ms']:>9.1f} ms{event['ms']:>15.1f} ms"
        print(f"{rank:>4}  {event['main']:<10}{mib(event['bytes']):>10}{times}")
        if event["message"]:
            print(f"      {event['message']}")

    print(f"\n{'from the kill on':<38}{'part':>9}  {'since':>9}")
    for part, seconds, since_s in protected.recovery():
        print(f"  {part:<36}{seconds:>9.3f} s{since_s:>9.3f} s")

    picture = (arguments.picture or arguments.output / "losses.png").resolve()
    draw_losses(picture, undisturbed.mean_losses(), protected.mean_losses_by_incarnation(), killed_at)
    print(f"\npicture: {picture}")

    ranks = arguments.nodes * arguments.ranks_per_node
    found = [event for event in restored.values() if event["found"]]
    checkpoints = {event["iteration"] for event in found}
    differing = protected.differences(undisturbed)
    for difference in differing[:5]:
        print(difference)
    counts = {tier: sum(event["main"] == tier for event in found) for tier in TIERS}
    origins = ", ".join(f"{count} {tier}" for tier, count in counts.items() if count)
    checkpoint = checkpoints.pop() if len(checkpoints) == 1 else "?"
    print(
        f"restored iteration {checkpoint} on {len(found)} of {ranks} ranks ({origins or 'none'}); "
        f"losses identical: {'no' if differing else 'yes'}"
    )
    return checkpoint != "?" and len(found) == ranks and not differing


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
