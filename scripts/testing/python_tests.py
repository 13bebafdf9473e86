"""Runs the Python tests with pytest. Their results go to RESULTS/PRESET-pytest.xml as JUnit XML."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from stack_watch import StackWatch

FOLDERS = ["python/tests", "tests/process"]
QUICK = ["python/tests/test_engine.py", "python/tests/test_python_state.py", "python/tests/test_split.py",
         "tests/process/test_package.py", "tests/process/test_removed_arena.py"]  # for --fast
TEST_TIMEOUT_S = 120  # of one test
DEADLINE_S = {"change": 1800, "quick": 300, "all": 10800}  # of all tests
JOBS = 3  # most tests wait more than they compute
NO_TESTS = 5  # pytest's status


def choice_of(scope: str, only: str, files: list[str]) -> list[str]:
    """pytest's arguments for a scope, or for the tests whose name contains `only`."""
    if only:
        return ["-p", "only_containing", "--only-containing", only, *FOLDERS]
    marker = [] if scope == "all" else ["-m", "not nightly"]
    tests = [*QUICK, *files] if scope == "quick" else FOLDERS
    return [*marker, "-n", str(JOBS), "--dist", "loadscope", "-p", "files_in_turn", *tests]


def run(preset: str, scope: str, choice: list[str], results: Path) -> int:
    """Runs the tests of pytest's arguments `choice`, and returns pytest's status."""
    report = results / f"{preset}-pytest.xml"
    command = [sys.executable, "-m", "pytest", "-q", "--no-summary", "--rootdir", ".", "--timeout", str(TEST_TIMEOUT_S)]
    command += ["-o", "junit_family=xunit1", f"--junit-xml={report}", *choice]
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent), str(Path("python").resolve()), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CKPTENGINE_BUILD_DIR": str(Path("build", preset).resolve()),
    }
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    with StackWatch(child.pid, {tuple(command): DEADLINE_S[scope]}, results / f"{preset}-pytest-stacks.txt"):
        try:
            return child.wait(DEADLINE_S[scope])
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"pytest was killed: it did not end in {DEADLINE_S[scope]} s")
            return child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--scope", choices=DEADLINE_S, default="all")
    parser.add_argument("--files", nargs="+", default=[], help="more files, besides those of the scope quick")
    arguments = parser.parse_args()
    choice = choice_of(arguments.scope, arguments.only, arguments.files)
    status = run(arguments.preset, arguments.scope, choice, arguments.results)
    return 0 if status == NO_TESTS else status


if __name__ == "__main__":
    sys.exit(main())
