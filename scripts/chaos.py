"""./dev chaos: strikes real processes and their network at random moments, restores, and compares every byte
(tests/chaos)."""

import argparse
import itertools
import os
import random
import re
import shutil
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "chaos"))

import netns  # noqa: E402
from campaign import Campaign, schedule  # noqa: E402
from chaos_settings import MODES, Settings, Violation  # noqa: E402
from directory import Directory  # noqa: E402
from etcd import Etcd, EtcdFailure  # noqa: E402
from faults import KINDS  # noqa: E402
from processes import has_ended, kill_agents  # noqa: E402

PREFIX = "ckptengine-chaos-"  # of a run's folders, followed by the number of its process
FAULTS_SHOWN = 20
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def above(least, kind):
    """Of an argument: a number of that kind, above `least`."""

    def parse(text):
        value = kind(text)
        if not least < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be a number above {least}, not {text}")
        return value

    parse.__name__ = "number"  # what argparse calls it where `kind` refuses
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--runs", type=above(0, int), help="faults to inject, each followed by a restore (default: 25)")
    parser.add_argument("--minutes", type=above(0, float), help="inject faults for so many minutes, instead of --runs")
    parser.add_argument("--seed", type=int, help="chooses faults, places and times (default: a random seed)")
    parser.add_argument("--nodes", type=above(1, int), default=4)
    parser.add_argument("--ranks-per-node", type=above(0, int), default=1)
    parser.add_argument("--copies", type=above(0, int), default=2, help="nodes that hold each shard")
    parser.add_argument("--mode", choices=MODES, default=MODES[0],
                        help="recompute: an optimizer updates the state, and nodes repeat updates. resize: likewise, "
                             "and ranks split the state and come back in another number. spread: all ranks have the "
                             "same state, fetch it from few nodes, and come back in another number (default: plain)")
    parser.add_argument("--mb", type=above(0, int), default=8,
                        help="state of each rank, or with --mode resize of the job, in MiB")
    parser.add_argument("--network", action=argparse.BooleanOptionalAction,
                        help="give each node a network namespace of its own, which needs root (default: if possible)")
    parser.add_argument("--coordinator", choices=["etcd", "directory"],
                        help="the coordination store (default: etcd with --network)")
    parser.add_argument("--standby", type=above(-1, int), metavar="K",
                        help="standby nodes (default: 1 with --network, else 0)")
    parser.add_argument("--only", action="append", default=[], choices=list(KINDS), help="only this kind of fault")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder to test")
    arguments = parser.parse_args()
    if arguments.seed is None:
        arguments.seed = random.randrange(1 << 32)
    if arguments.runs is None:
        arguments.runs = 25 if arguments.minutes is None else sys.maxsize
    if arguments.network is None:
        arguments.network = netns.why_not() is None
    if arguments.coordinator is None:
        arguments.coordinator = "etcd" if arguments.network else "directory"
    if arguments.standby is None:
        arguments.standby = 1 if arguments.network else 0
    return arguments


def settings_of(arguments):
    return Settings(build=arguments.build.resolve(), nodes=arguments.nodes, ranks_per_node=arguments.ranks_per_node,
                    copies=arguments.copies, megabytes=arguments.mb, network=arguments.network,
                    coordinator=arguments.coordinator, standbys=arguments.standby, mode=arguments.mode)


def show_logs(root):
    for log in [*sorted(root.glob("logs/*.log")), *root.glob("etcd/*/log"), *root.glob("etcd/*/output")]:
        print(f"---- the end of {log.name}")
        print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))


def replay_command(arguments, number):
    words = [f"--runs {number}", f"--seed {arguments.seed}", f"--nodes {arguments.nodes}"]
    words += [f"--mode {arguments.mode}", f"--ranks-per-node {arguments.ranks_per_node}"]
    words += [f"--copies {arguments.copies}", f"--mb {arguments.mb}"]
    words += ["--network" if arguments.network else "--no-network", f"--coordinator {arguments.coordinator}"]
    words += [f"--standby {arguments.standby}", f"--build {arguments.build}"]
    return " ".join(["./dev chaos", *words, *(f"--only {name}" for name in arguments.only)])


def run(arguments, root):
    settings = settings_of(arguments)
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
        show_logs(root)
        kept = shutil.copytree(root / "logs", ROOT / "build" / "chaos" / root.name)
        print(f"chaos: VIOLATION in run {number} ({name}): {violation}")
        for fault in campaign.job.watch.faults()[:FAULTS_SHOWN]:
            print(f"chaos: health: {fault}")
        print(f"chaos: all logs are in {kept}")
        print(f"chaos: replay with {replay_command(arguments, number)}")
    finally:
        campaign.close()
        print(f"chaos: {campaign.job.watch.line()}")
        print(campaign.tally.line(), flush=True)
    return status


def is_own(folder):
    """Nobody else's: what is in it is run, and removed."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def remove_orphans():
    """What runs that were killed have left behind: servers, agents, their memory, folders."""
    for root in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = re.fullmatch(rf"{PREFIX}(\d+)-.+", root.name)
        if owner and is_own(root) and has_ended(int(owner[1])):
            kill_agents(root.name)
            Etcd(root / "etcd").stop()
            Directory(root / "coordination").stop()
            memory = Path("/dev/shm") / root.name
            for folder in (root, *([memory] if memory.exists() and is_own(memory) else [])):
                shutil.rmtree(folder, ignore_errors=True)


def end(number, _):
    """Ends the run through its clean-up, which nothing shall interrupt."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    sys.exit(128 + number)


def main():
    arguments = parse_arguments()
    for number in ENDING:
        signal.signal(number, end)
    remove_orphans()
    root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        return run(arguments, root)
    except (netns.NetworkFailure, EtcdFailure) as failure:
        show_logs(root)
        print(f"chaos: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
