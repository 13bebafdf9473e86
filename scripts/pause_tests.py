"""Runs tests/process/test_pauses.py with pauses of 3 to 60 s at each stage of a restore.

Its parts run at the same time, because they wait more than they compute.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = "tests/process/test_pauses.py"
TEST_TIMEOUT_S = 400
DEADLINE_S = 3600  # of all of them
PARTS = ["of_all_agents_loses", "older_from_storage", "leader_alone and outlasts", "leader_alone and runs"]


def start(number, keywords, arguments):
    """The process that runs one part."""
    report = arguments.results / f"pauses-{number}-pytest.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--no-summary", "--rootdir", ".", "-k", keywords]
    command += ["--timeout", str(TEST_TIMEOUT_S), "-o", "junit_family=xunit1", f"--junit-xml={report}", FILE]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT / "python")]),
        "CKPTENGINE_BUILD_DIR": str(arguments.build.resolve()),
        "CKPTENGINE_TEST_LONG": "1",
    }
    with open(arguments.results / f"pauses-{number}.log", "w") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def await_end(number, process, deadline):
    try:
        return process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"pauses: part {number} was killed, because it took more than {DEADLINE_S} s", flush=True)
        process.send_signal(signal.SIGINT)  # it ends what it has started
        return process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where the programs are")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "test-results", help="where the reports go")
    arguments = parser.parse_args()
    arguments.results = arguments.results.resolve()
    arguments.results.mkdir(parents=True, exist_ok=True)
    rest = f"not ({' or '.join(f'({part})' for part in PARTS)})"
    begin = time.monotonic()
    running = [start(number, part, arguments) for number, part in enumerate([*PARTS, rest], 1)]
    statuses = []
    for number, process in enumerate(running, 1):
        statuses.append(await_end(number, process, begin + DEADLINE_S))
        if statuses[-1] != 0:
            (arguments.results / f"pauses-{number}-broken.txt").write_text(f"pauses: part {number} of {FILE}\n")
        print(f"pauses: part {number} of {len(running)} ended after {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
