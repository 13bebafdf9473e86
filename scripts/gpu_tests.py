"""Runs the tests of what has to do with a GPU against this machine's real driver: what is taken for granted about one,
the device, its timeline and the engine in front of it; where there is NCCL, the way from GPU to GPU; and, where there
are pytest and PyTorch, real trainers and agents. Tests that need a driver to fail on command are left out.

The last line is "N passed, N failed". Without a GPU it says so and ends with status 3: nothing was tested.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

from gpu_driver import driver_folder, gpu_name, nccl_folder

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ["cuda_conformance_test", "cuda_device_test", "cuda_timeline_test", "cuda_engine_test"]
NCCL_PROGRAMS = ["nccl_conformance_test", "cuda_exchange_test", "cuda_path_test"]
DEADLINE_S = 600
NO_GPU = 3


def run(command: list, environment: dict[str, str]) -> None:
    try:
        subprocess.run(command, env=environment, check=False, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        print(f"{command[0]} was killed: it did not end in {DEADLINE_S} s")


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where the programs are")
    arguments = parser.parse_args()
    name, why_not = gpu_name()
    if why_not:
        print(f"no GPU here, nothing was tested: {why_not}")
        return NO_GPU
    print(f"GPU: {name}")
    build = arguments.build.resolve()
    nccl = nccl_folder()
    if not nccl:
        print("tests of the way from GPU to GPU are left out, as there is no NCCL here")
    libraries = [driver_folder(), nccl, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = os.environ | {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
        "PYTHONPATH": str(ROOT / "python"),
        "CKPTENGINE_BUILD_DIR": str(build),
        "CKPTENGINE_TEST_GPU": "real",
    }
    with tempfile.TemporaryDirectory(prefix="ckptengine-test-") as folder:
        reports = []
        for program in PROGRAMS + (NCCL_PROGRAMS if nccl else []):
            reports.append(Path(folder) / f"{program}.xml")
            run([build / "tests" / program, "--gtest_brief=1", f"--gtest_output=xml:{reports[-1]}"], environment)
        missing = [module for module in ("pytest", "torch") if importlib.util.find_spec(module) is None]
        if missing:
            print(f"tests of real trainers and agents are left out, as these are not here: {', '.join(missing)}")
        else:
            reports.append(Path(folder) / "pytest.xml")
            tests = ROOT / "python" / "tests" / "test_cuda.py"
            run([sys.executable, "-m", "pytest", "-q", f"--junit-xml={reports[-1]}", tests], environment)
        counts = [count(report) for report in reports]
    passed, failed, left_out = (sum(column) for column in zip(*counts, strict=True))
    print(f"{left_out} need a driver that fails on command, and were left out")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
