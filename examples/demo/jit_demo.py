"""Training processes fail, one after the other, and the healthy ones stay.

Four ranks on four "nodes" of this machine train a small GPT with DDP under ckptrun. One rank is killed in the backward
pass, one is stopped (SIGSTOP), one spins and holds Python's interpreter lock, and a node dies. Each time the job is
halted, the survivors keep their processes and rejoin, and a spare process takes the failed rank's place. Then the same
job trains undisturbed, without the engine: the losses must be the same, bit for bit.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from ckptengine import load_library
from cluster import DemoFailure
from jit_job import CAPTURE_EVERY, JitJob
from jit_recovery import PHASES, Recovery, strike
from report import Progress
from run import find_programs

RANKS = 4
FAULTS = {  # rank, what it does, where
    "kill": (1, "kill", "backward"),
    "stop": (2, "stop", "backward"),
    "spin": (3, "spin", "forward"),
    "node": (1, "node", ""),
}
TEXTS = {
    "kill": "rank 1 is killed in the backward pass",
    "stop": "rank 2 is stopped (SIGSTOP) in the backward pass",
    "spin": "rank 3 computes without end in the forward pass, and holds the interpreter lock",
    "node": "the node of rank 1 dies: launcher, agent, trainer and memory; a standby node takes its place",
}
MORE = 8  # iterations after the last fault


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo --jit", description=__doc__.splitlines()[0])
    names = ",".join(FAULTS)
    parser.add_argument("--faults", default=names, metavar="A,B", help=f"which ones, in this order (default {names})")
    parser.add_argument("--layers", type=int, default=2, metavar="N", help="of the GPT (default 2)")
    parser.add_argument("--arena-root", type=Path, default=Path("/dev/shm"), metavar="DIR", help="a tmpfs")
    parser.add_argument("--output", type=Path, default=Path("demo-out"), metavar="DIR", help="for picture and logs")
    parser.add_argument("--library", type=Path, metavar="FILE", help="libckptengine.so (default: the release build)")
    arguments = parser.parse_args()
    arguments.faults = arguments.faults.split(",")
    for fault in arguments.faults:
        if fault not in FAULTS:
            parser.error(f"there is no fault '{fault}' (there are: {' '.join(FAULTS)})")
    if arguments.faults.count("node") > 1:
        parser.error("--faults may have 'node' once: there is one standby node")
    return arguments


Losses = dict[int, dict[int, str]]  # by rank and iteration


def demo(arguments: argparse.Namespace) -> bool:
    """True if the losses are identical and no healthy process has ended."""
    progress = Progress()
    logs = (arguments.output / "jit-logs").resolve()
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("*.log"):
        old.unlink()
    programs = find_programs(Path(load_library(arguments.library).path))
    options = {"on_suspicion": "halt", "capture_every": CAPTURE_EVERY}
    common = {"ranks": RANKS, "layers": arguments.layers, "progress": progress}
    progress.say(
        f"{RANKS} ranks on {RANKS} nodes train a GPT of {arguments.layers} layers with DDP under ckptrun, which has a "
        "spare process on each node\nstarting ..."
    )
    recoveries: list[Recovery] = []
    standby = "node" in arguments.faults
    with JitJob("jit", programs, logs, arguments.arena_root, options=options, standby=standby, **common) as job:
        job.until(lambda: job.reached() >= 0, "train")
        job.await_spares()
        for fault in arguments.faults:
            job.await_learned()
            progress.say(f"\n{TEXTS[fault]} ...")
            recoveries.append(strike(job, *FAULTS[fault]))
            progress.say(story(recoveries[-1]))
        end = job.end(MORE)
        progress.say(f"\nthe job has ended after {end} iterations; the same without faults and without the engine ...")
        disturbed = {rank: job.losses(rank) for rank in range(RANKS)}
    with JitJob("plain", programs, logs, arguments.arena_root, options={}, standby=False, spares=0, way="plain",
                end=end, **common) as plain:  # fmt: skip
        plain.until(lambda: all(told.of("done") for told in plain.told), "end")
        undisturbed = {rank: plain.losses(rank) for rank in range(RANKS)}
    return show(arguments, recoveries, undisturbed, disturbed)


def story(recovery: Recovery) -> str:
    kept = ", ".join(f"{rank}: {pid}" for rank, pid in recovery.kept.items())
    tiers: dict[str, list[str]] = {}
    for rank, tier in recovery.tiers.items():
        tiers.setdefault(tier, []).append(str(rank))
    origins = "; ".join(f"{tier}: rank {', '.join(ranks)}" for tier, ranks in tiers.items())
    lost = f", {recovery.lost_iterations} done again" if recovery.lost_iterations else ""
    return (
        f"  all ranks train again after {recovery.seconds:.2f} s, from iteration {recovery.iteration}{lost}\n"
        f"  processes that stayed ({kept}); state from ({origins})"
    )


def table(recoveries: list[Recovery]) -> str:
    lines = ["from the fault on, in s ".ljust(24) + "".join(f"{phase:>15}" for phase in PHASES) + f"{'in all':>9}"]
    for recovery in recoveries:
        row = "".join(f"{recovery.phases[phase]:>15.2f}" for phase in PHASES)
        lines.append(f"{recovery.fault:<24}{row}{recovery.seconds:>9.2f}")
    return "\n".join(lines)


def differences(undisturbed: Losses, disturbed: Losses) -> list[str]:
    found = []
    for rank, losses in undisturbed.items():
        if not losses or losses.keys() != disturbed[rank].keys():
            found.append(f"rank {rank} has other iterations: {len(disturbed[rank])}, undisturbed {len(losses)}")
        for k, loss in losses.items():
            other = disturbed[rank].get(k, loss)
            if other != loss:
                found.append(f"rank {rank}, iteration {k}: loss {other}, undisturbed {loss}")
    return found


def show(arguments: argparse.Namespace, recoveries: list[Recovery], undisturbed: Losses, disturbed: Losses) -> bool:
    """Table, picture and verdict."""
    print(f"\n{table(recoveries)}")
    picture = (arguments.output / "jit.png").resolve()
    draw(picture, recoveries, undisturbed, disturbed)
    print(f"\npicture: {picture}")
    differing = differences(undisturbed, disturbed)
    for difference in differing[:5]:
        print(difference)
    ended = [f"{recovery.fault}: rank {rank}, process {pid}" for recovery in recoveries
             for rank, pid in recovery.ended.items()]  # fmt: skip
    for text in ended:
        print(f"a healthy process has ended: {text}")
    missing = [fault for fault in FAULTS if fault not in arguments.faults]
    if missing:
        print(f"not shown: {', '.join(missing)}")
    slowest_ms = 1000 * max(recovery.seconds for recovery in recoveries)
    print(
        f"jit: faults={len(recoveries)} healthy_ended={len(ended)} slowest_ms={slowest_ms:.0f}; "
        f"losses identical: {'no' if differing else 'yes'}"
    )
    return not differing and not ended


def mean(losses: Losses) -> tuple[list[int], list[float]]:
    common = sorted(set.intersection(*(set(each) for each in losses.values())))
    return common, [statistics.mean(float.fromhex(each[k]) for each in losses.values()) for k in common]


def draw(path: Path, recoveries: list[Recovery], undisturbed: Losses, disturbed: Losses) -> None:
    """Both loss curves, and below where the time of each recovery went."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (curves, bars) = pyplot.subplots(2, figsize=(9, 7), layout="constrained", height_ratios=(3, 2))
    curves.plot(*mean(undisturbed), color="#9aa5b1", linewidth=5, label="undisturbed")
    curves.plot(*mean(disturbed), color="#1f6feb", linewidth=1.5, label="with faults")
    for recovery in recoveries:
        k = recovery.iteration + 1
        curves.axvline(k, color="#57606a", linestyle=":")
        curves.annotate(recovery.fault, (k, 1), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=8)
    curves.set(xlabel="iteration", ylabel="loss", title="Processes fail, the others stay, and training goes on")
    curves.legend(frameon=False)
    names = [f"{recovery.fault} (rank {recovery.failed})" for recovery in recoveries]
    left = [0.0] * len(names)
    for phase in PHASES:
        seconds = [recovery.phases[phase] for recovery in recoveries]
        bars.barh(names, seconds, left=left, label=phase)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    bars.invert_yaxis()
    bars.set(xlabel="seconds from the fault to the next iteration of all ranks")
    bars.legend(frameon=False, fontsize=8, ncols=len(PHASES), loc="lower center", bbox_to_anchor=(0.4, 1))
    for axes in (curves, bars):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        return 0 if demo(arguments) else 1
    except KeyboardInterrupt:
        print("\ninterrupted; launchers, agents, trainers and arenas are gone", file=sys.stderr)
        return 130
    except (DemoFailure, OSError, ValueError) as failure:
        print(f"\ndemo: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
