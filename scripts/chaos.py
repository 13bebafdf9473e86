"""./dev chaos: kills real processes at random moments, restores, and compares every byte (tests/chaos)."""

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "chaos"))

from campaign import Campaign, schedule  # noqa: E402
from faults import KINDS  # noqa: E402
from job import Settings, Violation  # noqa: E402


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--runs", type=int, help="faults to inject, each followed by a restore (default: 25)")
    parser.add_argument("--minutes", type=float, help="inject faults for so long instead")
    parser.add_argument("--seed", type=int, help="decides which faults, where and when (default: a random one)")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--copies", type=int, default=2, help="nodes that hold each shard")
    parser.add_argument("--mb", type=int, default=8, help="state of each rank, in MiB")
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS), help="only this kind of fault")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder to test")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.randrange(1 << 32)
    if arguments.runs is None:
        arguments.runs = 25 if arguments.minutes is None else sys.maxsize
    return arguments


def show_logs(logs):
    for log in sorted(logs.glob("*.log")):
        print(f"---- the end of {log.name}")
        print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))


def replay_command(arguments):
    words = [f"--runs {arguments.runs}", f"--seed {arguments.seed}", f"--nodes {arguments.nodes}"]
    words += [f"--ranks-per-node {arguments.ranks_per_node}", f"--copies {arguments.copies}", f"--mb {arguments.mb}"]
    return " ".join(["./dev chaos", *words, *(f"--only {name}" for name in arguments.only)])


def run(arguments, root):
    settings = Settings(arguments.build.resolve(), arguments.nodes, arguments.ranks_per_node, arguments.copies,
                        arguments.mb)
    campaign = Campaign(settings, arguments.seed, root, root.name, say=lambda line: print(line, flush=True))
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    status = 0
    number, name = 0, "the first start"
    try:
        campaign.begin()
        kinds = schedule(settings, arguments.seed, arguments.only)
        for number, name in zip(itertools.count(1), kinds):
            if number > arguments.runs or time.monotonic() > end:
                break
            campaign.run(number, name)
    except Violation as violation:
        status = 1
        show_logs(campaign.job.logs)
        print(f"chaos: VIOLATION in run {number} ({name}): {violation}")
        print(f"chaos: replay with {replay_command(arguments)}")
    finally:
        campaign.close()
    print(campaign.tally.line())
    return status


def main():
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = Path(tempfile.mkdtemp(prefix=f"ckptengine-chaos-{os.getpid()}-"))
    try:
        return run(arguments, root)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
