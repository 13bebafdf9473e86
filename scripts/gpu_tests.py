"""Runs the tests of what has to do with a GPU against this machine's real driver: what is taken for granted about one,
the device, its timeline and the engine in front of it; where there is NCCL, the way from GPU to GPU; and, where there
are pytest and PyTorch, real trainers and agents. Tests that need a driver to fail on command are left out.

With --sanitize, nothing but the kernels, under memcheck and racecheck of compute-sanitizer.

The last line is "N passed, N failed". Where nothing can be tested (no GPU, a driver older than the build's CUDA, no
compute-sanitizer) it says so in a sentence and ends with status 3.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from pathlib import Path

from gpu_driver import driver_file, driver_of, gpu_name, nccl_file, program_libraries, why_unusable

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ["cuda_conformance_test", "cuda_device_test", "cuda_timestamps_test", "cuda_engine_test"]
NCCL_PROGRAMS = ["nccl_conformance_test", "cuda_exchange_test", "cuda_replicator_test"]
TEST_DEADLINE_S, SANITIZER_DEADLINE_S = 240, 290  # of a program; less than the ten minutes that many a machine gives
SUCCESS = ("[       OK ]", "[  SKIPPED ]", "[-----", "[=====", "[  PASSED  ]", "Running main()")
NOTHING_TESTED = 3


def run(name: str, command: list, environment: dict[str, str], deadline_s: int = TEST_DEADLINE_S) -> bool:
    """Whether a command succeeded, with its output shown as it comes; of GoogleTest's, what is not about success."""
    print(f"{name}: running")
    begin, test = time.monotonic(), ""
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipe) as process:
        timer = threading.Timer(deadline_s, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        for line in process.stdout:
            if line.startswith("[ RUN "):
                test = line.split("]")[1].strip()
            elif line.strip() and not line.startswith(SUCCESS):
                print(line, end="")
        timer.cancel()
    after_s = time.monotonic() - begin
    if process.returncode < 0:
        in_test = f" in {test}" if test else ""
        print(f"{name}: died of {signal.Signals(-process.returncode).name}{in_test} after {after_s:.0f} s")
    else:
        print(f"{name}: ended with status {process.returncode} after {after_s:.0f} s")
    return process.returncode == 0


def count(report: Path) -> tuple[int, int, int]:
    """Passed, failed and left out. A program that left no report has failed."""
    if not report.exists():
        return 0, 1, 0
    passed = failed = left_out = 0
    for case in xml.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is not None or case.get("result") == "skipped":
            left_out += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
    return passed, failed, left_out


def run_programs(build: Path, environment: dict[str, str], folder: Path) -> list[Path]:
    if not nccl_file():
        print("tests of GPU replication are left out, because this machine has no NCCL")
    reports = []
    for name in PROGRAMS + (NCCL_PROGRAMS if nccl_file() else []):
        reports.append(folder / f"{name}.xml")
        run(name, [build / "tests" / name, f"--gtest_output=xml:{reports[-1]}"], environment)
    return reports


def run_trainers(build: Path, folder: Path) -> list[Path]:
    missing = [module for module in ("pytest", "torch") if importlib.util.find_spec(module) is None]
    if missing:
        print(f"tests of real trainers and agents are left out, because these are missing: {', '.join(missing)}")
        return []
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "python"),
        "CKPTENGINE_BUILD_DIR": str(build),
        "CKPTENGINE_TEST_GPU": "real",
    }
    report = folder / "pytest.xml"
    tests = ROOT / "python" / "tests" / "test_cuda.py"
    run("pytest", [sys.executable, "-m", "pytest", "-q", "-rs", f"--junit-xml={report}", tests], environment)
    return [report]


def test(build: Path, environment: dict[str, str]) -> int:
    with tempfile.TemporaryDirectory(prefix="ckptengine-test-") as name:
        folder = Path(name)
        reports = run_programs(build, environment, folder) + run_trainers(build, folder)
        counts = [count(report) for report in reports]
    passed, failed, left_out = (sum(column) for column in zip(*counts, strict=True))
    print(f"{left_out} tests were left out: they need the test double of a driver, or something that is missing here")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def sanitizer() -> list[str]:
    """compute-sanitizer with its own options, or nothing where it is not installed."""
    toolkits = [str(folder) for folder in sorted(Path("/usr/local").glob("cuda*/bin"), reverse=True)]
    program = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *toolkits]))
    if not program:
        return []
    # As PyPI packs it, it does not find its own libraries.
    libraries = Path(program).resolve().parents[1] / "lib"
    own = ["--injection-path", str(libraries)] if (libraries / "libsanitizer-collection.so").exists() else []
    # Tests make calls that fail on purpose.
    return [program, *own, "--report-api-errors", "no", "--error-exitcode", "9"]


def accepts(program: Path, option: str, environment: dict[str, str]) -> bool:
    try:
        help_text = subprocess.run(
            [program, "--help"], env=environment, check=False, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return False
    return option in help_text.stdout + help_text.stderr


def sanitize(build: Path, environment: dict[str, str]) -> int:
    checker = sanitizer()
    if not checker:
        print("nothing was tested: compute-sanitizer is not on the PATH; it is a part of the CUDA toolkit")
        return NOTHING_TESTED
    commands = [[build / "tests" / "cuda_device_test"]]
    parity = build / "bench" / "bench_parity_cuda"
    if accepts(parity, "--check", environment):
        commands.append([parity, "--check"])
    else:
        print("the parity and digest kernels are left out, because this bench_parity_cuda has no option --check")
    passed = [
        run(f"{command[0].name} under {tool}", [*checker, "--tool", tool, *command], environment, SANITIZER_DEADLINE_S)
        for tool in ("memcheck", "racecheck")
        for command in commands
    ]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where the programs are")
    parser.add_argument("--sanitize", action="store_true", help="the kernels under compute-sanitizer, nothing else")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # in order with what the tests print
    build = arguments.build.resolve()
    name, why_not = gpu_name()
    if why_not:
        print(f"nothing was tested, because there is no usable GPU: {why_not}")
        return NOTHING_TESTED
    print(f"GPU: {name}")
    if why_not := why_unusable(build):
        print(f"nothing was tested: {why_not}")
        return NOTHING_TESTED
    with program_libraries(build) as library_path:
        loaded = driver_of(build / "tests" / PROGRAMS[0], library_path)
        if loaded != driver_file().resolve():
            print(f"nothing was tested: the tests would load {loaded} instead of the driver {driver_file()}")
            return NOTHING_TESTED
        environment = os.environ | {"LD_LIBRARY_PATH": library_path}
        return sanitize(build, environment) if arguments.sanitize else test(build, environment)


if __name__ == "__main__":
    sys.exit(main())
