"""./dev chaos --jit: lets ranks of a DDP job fail at random moments. The healthy ones must keep their processes, and
losses must be those of an undisturbed run, bit for bit (examples/demo/jit_job.py). A node is lost with its launcher,
rank, agent and memory, and a launcher that stands by takes its place."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples" / "demo")]

from cluster import DemoFailure  # noqa: E402
from jit_job import CAPTURE_EVERY, JitJob, signal_all  # noqa: E402
from jit_recovery import first_iteration, has_gone_on  # noqa: E402
from report import Progress  # noqa: E402
from run import find_programs  # noqa: E402

RANKS = 4
KINDS = ["kill", "stop", "spin", "late", "agent", "node"]
HANG_FLOOR_MS = 1000
LATE_S = 2.0  # longer than the deadline, shorter than what the launcher grants
GRACE_S = 4.0
LEARNED = 9  # iterations until an agent has deadlines
GO_ON_S = 90
OPTIONS = {"on_suspicion": "halt", "capture_every": CAPTURE_EVERY, "hang_floor_ms": HANG_FLOOR_MS}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Violation(Exception):
    """The job did something that it must not do."""


@dataclass
class Tally:
    faults: int = 0
    redone: int = 0  # iterations
    unreported: int = 0  # losses of finished iterations that a rank did not live to report
    slowest_ms: float = 0
    wrong: int = 0
    healthy_ended: int = 0

    def line(self) -> str:
        return (
            f"chaos: faults={self.faults} redone_iterations={self.redone} slowest_ms={self.slowest_ms:.0f} "
            f"wrong={self.wrong} healthy_ended={self.healthy_ended}"
        )


def schedule(seed: int, only: list[str]):
    """The kinds of faults, without end: each once, then at random. The same for the same seed."""
    rng = random.Random(f"schedule {seed}")
    names = [name for name in KINDS if not only or name in only]
    rng.shuffle(names)
    yield from names
    while True:
        yield rng.choice(names)


class Campaign:
    def __init__(self, job: JitJob, seed: int, tally: Tally) -> None:
        self.job, self.seed, self.tally = job, seed, tally
        self.restored: set[int] = set()  # iterations from which the job has gone on

    def run(self, number: int, kind: str) -> str:
        """One fault, until all ranks train again. Returns what happened."""
        job, rng = self.job, random.Random(f"run {self.seed} {number}")
        iterations = LEARNED + rng.randrange(10)
        job.until(lambda: min(map(job.since_begin, range(RANKS))) >= iterations, f"do {iterations} iterations", GO_ON_S)
        time.sleep(rng.uniform(0, 0.3))
        job.read()
        pids, incarnation, newest = job.pids(), self.incarnation(), job.reached()
        rank = rng.randrange(1 if kind == "node" else 0, RANKS)  # launcher 0 decides for all, and cannot be lost
        what, at_s = self.strike(kind, rank, rng)
        self.tally.faults += 1
        if kind == "node":
            job.launch(f"standby{number}", "--standby")
        outcome = self.await_training(kind, rank, incarnation, newest, at_s)
        self.judge(kind, rank, pids)
        return f"{what}: {outcome}"

    def incarnation(self) -> int:
        return max(told.of("restored")[-1]["incarnation"] for told in self.job.told)

    def strike(self, kind: str, rank: int, rng: random.Random) -> tuple[str, float]:
        job = self.job
        if kind == "agent":
            node = job.node_of(rank)
            signal_all(job.agents(node), signal.SIGKILL)
            return f"agent of {node} killed", time.monotonic()
        if kind == "node":
            node = job.node_of(rank)
            return f"{node} with rank {rank} lost", job.kill_node(node)
        if kind in ("kill", "stop") and rng.random() < 0.5:
            signal_all([job.pids()[rank]], signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            return f"{kind} of rank {rank} at any moment", time.monotonic()
        place = rng.choice(["forward", "backward", "update"] if kind == "kill" else ["forward", "backward"])
        known = len(job.told[rank].of("fault"))
        job.command(rank, kind, place, LATE_S)
        job.until(lambda: len(job.told[rank].of("fault")) > known, f"let rank {rank} fail", GO_ON_S)
        return f"{kind} of rank {rank} in {place}", job.told[rank].of("fault")[-1]["at_s"]

    def await_training(self, kind: str, rank: int, incarnation: int, newest: int, at_s: float) -> str:
        job = self.job
        everybody = range(RANKS)
        may_go_on_so = kind in ("late", "agent")

        def is_unharmed() -> bool:
            return job.reached() >= newest + LEARNED and self.incarnation() == incarnation

        def is_again() -> bool:
            return all(has_gone_on(job, each, incarnation) for each in everybody)

        job.until(lambda: is_again() or (may_go_on_so and is_unharmed()), f"go on after {kind} of rank {rank}", GO_ON_S)
        if not is_again():
            return "training went on"
        restored = {told.of("restored")[-1]["iteration"] for told in job.told}
        if len(restored) != 1:
            self.tally.wrong += 1
            raise Violation(f"ranks restored different iterations: {sorted(restored)}")
        self.restored |= restored
        redone = max(0, newest - min(restored))
        # A lost node takes what it alone has. So the capture before the last may be the newest that is whole.
        if redone > CAPTURE_EVERY * (2 if kind == "node" else 1):
            raise Violation(f"iteration {newest} was done by all, and {min(restored)} was restored")
        seconds = max(first_iteration(job, each) for each in everybody) - at_s
        self.tally.redone += redone
        self.tally.slowest_ms = max(self.tally.slowest_ms, 1000 * seconds)
        return f"all train again after {seconds:.2f} s from iteration {min(restored)}, {redone} done again"

    def judge(self, kind: str, rank: int, before: list[int]) -> None:
        now = self.job.pids()
        ended = [each for each in range(RANKS) if now[each] != before[each]]
        failed = {rank} if kind in ("kill", "stop", "spin", "node") else set()
        if healthy := sorted(set(ended) - failed):
            self.tally.healthy_ended += len(healthy)
            raise Violation(f"healthy processes have ended: ranks {healthy}")
        for each in range(RANKS):
            self.losses(self.job, each)

    def losses(self, job: JitJob, rank: int) -> dict[int, str]:
        try:
            return job.losses(rank)
        except DemoFailure as failure:
            self.tally.wrong += 1
            raise Violation(str(failure)) from None

    def compare(self, undisturbed: JitJob) -> None:
        """A rank reports its training loss after the update. If it fails or is interrupted between update and report,
        it never reports this loss, and the job goes on from this iteration. Only such losses may be missing."""
        for rank in range(RANKS):
            ours, theirs = self.losses(self.job, rank), undisturbed.losses(rank)
            differing = {k for k in theirs if ours.get(k) != theirs[k]}
            unreported = {k for k in differing if k in self.restored and k not in ours}
            self.tally.unreported += len(unreported)
            if wrong := sorted(differing - unreported):
                self.tally.wrong += len(wrong)
                some = ", ".join(f"{k}: {ours.get(k, 'none')} instead of {theirs[k]}" for k in wrong[:5])
                raise Violation(f"rank {rank} has other losses than the undisturbed run, {len(wrong)} in all: {some}")
            if not theirs:
                raise Violation(f"the undisturbed run has no losses of rank {rank}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos --jit", description=__doc__)
    parser.add_argument("--runs", type=int, metavar="N", help="faults (default: 10)")
    parser.add_argument("--minutes", type=float, metavar="N", help="inject faults for so long instead")
    parser.add_argument("--seed", type=int, help="decides which faults, where and when (default: a random one)")
    parser.add_argument("--only", action="append", default=[], choices=KINDS, help="only this kind of fault")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder to test")
    arguments = parser.parse_args()
    if (arguments.runs or 1) < 1 or (arguments.minutes or 1) <= 0:
        parser.error("--runs and --minutes must be above 0")
    if arguments.seed is None:
        arguments.seed = random.randrange(1 << 32)
    if arguments.runs is None:
        arguments.runs = 10 if arguments.minutes is None else sys.maxsize
    return arguments


def run(arguments: argparse.Namespace, logs: Path, tally: Tally) -> None:
    progress = Progress()
    programs = find_programs(arguments.build / "lib" / "libckptengine.so")
    common = {"ranks": RANKS, "layers": 1, "batch": 1, "progress": progress}
    stop_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    print(f"chaos: seed {arguments.seed}; {RANKS} ranks on {RANKS} nodes start", flush=True)
    with JitJob("jit-chaos", programs, logs, Path("/dev/shm"), options=OPTIONS, halt_grace_s=GRACE_S,
                standby="node" in (arguments.only or KINDS), **common) as job:  # fmt: skip
        campaign = Campaign(job, arguments.seed, tally)
        job.until(lambda: job.reached() >= 0, "train", GO_ON_S)
        for number, kind in enumerate(schedule(arguments.seed, arguments.only), 1):
            if number > arguments.runs or time.monotonic() > stop_s:
                break
            try:
                progress.say(f"run {number}: {campaign.run(number, kind)}")
            except (Violation, DemoFailure) as violation:
                raise Violation(f"run {number} ({kind}): {violation}") from violation
        end = job.end(5)
        progress.say(f"the same {end} iterations without faults and without the engine ...")
        with JitJob("plain", programs, logs, Path("/dev/shm"), options={}, spares=0, way="plain", end=end,
                    standby=False, **common) as plain:  # fmt: skip
            plain.until(lambda: all(told.of("done") for told in plain.told), "end", 60 + end)
            campaign.compare(plain)
        progress.say(f"all training losses are those of the run without faults; {tally.unreported} losses are missing, "
                     "because their rank failed or was interrupted after the update and before its report")  # fmt: skip


def interrupted(number: int, _: object) -> None:
    """Ends the run through its clean-up, which nothing shall interrupt."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> int:
    arguments = parse_arguments()
    for number in ENDING:
        signal.signal(number, interrupted)
    tally, status = Tally(), 0
    with tempfile.TemporaryDirectory(prefix="ckptengine-jit-chaos-logs-") as folder:
        try:
            run(arguments, Path(folder), tally)
        except (Violation, DemoFailure) as violation:
            status = 1
            kept = ROOT / "build" / "chaos" / f"jit-{os.getpid()}"
            shutil.copytree(folder, kept)
            only = "".join(f" --only {name}" for name in arguments.only)
            print(f"chaos: VIOLATION: {violation}")
            print(f"chaos: all logs are in {kept}")
            print(f"chaos: replay with ./dev chaos --jit --runs {tally.faults or 1} --seed {arguments.seed}{only}")
        finally:
            print(tally.line(), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
