"""Runs everything there is for a machine with a GPU, in the order of its value, within a budget of time:

  conformance, device, timestamps, engine      what is taken for granted about the driver; capture and restore
  copy, parity, training, beside, idle         the first figures
  nccl, exchange_test, replicator, trainers    from GPU to GPU; real trainers and agents
  gpu_to_gpu                                   the same between two trainers that share the GPU
  optimizer, recompute                         updates of torch on the GPU, repeated bit for bit on the CPU
  exchange, kills, pin                         more figures; kill -9 in the middle of captures
  sanitizer                                    the kernels under memcheck and racecheck

The folder --out gets gpu.log with all output, and gpu.json with the device, and each step's result and figures.
--resume runs only the steps of that folder that have no result yet. --stand-in uses the test doubles of driver and
NCCL, which shows that all steps run.

The last line is "gpu: passed=N failed=N skipped=N not_run=N", in steps. A step that the budget did not reach or cut off
is not run. Ends with status 1 if a step failed, and with 3 if there is nothing to run on.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_driver import driver_file, driver_of, gpu_name, nccl_file, program_libraries, why_unusable

ROOT = Path(__file__).resolve().parents[1]
NOTHING_TO_RUN = 3
SKIPPED = 3  # the status with which a step says so
SECONDS_MIN = 5  # less is not worth a start


@dataclass(frozen=True)
class Step:
    name: str
    command: list[Any]
    limit_s: int
    environment: dict[str, str] | None = None  # None: this process's
    why_skipped: str = ""


@dataclass
class Run:
    """The folder with the results."""

    folder: Path
    device: str
    results: dict[str, dict[str, Any]]

    @classmethod
    def begin(cls, folder: Path, device: str, *, resume: bool) -> Run:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "gpu.json"
        earlier = json.loads(file.read_text()) if resume and file.exists() else {}
        results = earlier.get("steps", {}) if earlier.get("device") == device else {}
        run = cls(folder, device, {name: result for name, result in results.items() if result["result"] != "not_run"})
        if not run.results:
            (folder / "gpu.log").write_text("")
        return run

    def note(self, name: str, result: str, **more: Any) -> None:
        self.results[name] = {"result": result, **more}
        date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        text = json.dumps({"device": self.device, "date": date, "steps": self.results}, indent=1)
        new = self.folder / "gpu.json.new"
        new.write_text(text + "\n")
        new.replace(self.folder / "gpu.json")

    def log(self, line: str) -> None:
        print(line)
        with (self.folder / "gpu.log").open("a") as log:
            log.write(line + "\n")

    def summary(self) -> str:
        counts = dict.fromkeys(("passed", "failed", "skipped", "not_run"), 0)
        for result in self.results.values():
            counts[result["result"]] += 1
        return "gpu: " + " ".join(f"{key}={count}" for key, count in counts.items())


def run_step(run: Run, step: Step, budget_s: float) -> None:
    """Runs a command, and ends it with all its children after its limit or the budget."""
    run.log(f"{step.name}: begins")
    begin, figures, left_out = time.monotonic(), [], ""
    is_cut_off = threading.Event()
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(
        [str(word) for word in step.command], env=step.environment, start_new_session=True, **pipe
    ) as process:

        def cut_off() -> None:
            is_cut_off.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(min(step.limit_s, budget_s), cut_off)
        timer.start()
        for line in process.stdout or ():
            run.log(line.rstrip("\n"))
            if line.startswith("ratio: "):
                figures.append(line.removeprefix("ratio: ").strip())
            elif ": left out, as " in line:
                left_out = line.split(": left out, as ")[1].strip()
        status = process.wait()
        timer.cancel()
    seconds = round(time.monotonic() - begin, 1)
    if status in (0, SKIPPED):
        result, why = ("skipped", left_out) if left_out or status == SKIPPED else ("passed", "")
    elif is_cut_off.is_set() and budget_s <= step.limit_s:
        result, why = "not_run", "the budget cut it off"
    elif is_cut_off.is_set():
        result, why = "failed", f"it did not end in {step.limit_s} s"
    else:
        result, why = "failed", f"it ended with status {status}"
    run.note(step.name, result, why=why, seconds=seconds, figures=figures)
    run.log(f"{step.name}: {result}" + (f", {why}" if why else "") + f" ({seconds} s)")


def run_all(run: Run, steps: list[Step], budget_s: float) -> int:
    """Runs the steps that have no result yet. Returns the exit status."""
    end = time.monotonic() + budget_s
    for step in steps:
        left_s = end - time.monotonic()
        if step.name in run.results:
            run.log(f"{step.name}: {run.results[step.name]['result']} in an earlier run")
        elif step.why_skipped:
            run.note(step.name, "skipped", why=step.why_skipped)
            run.log(f"{step.name}: skipped, {step.why_skipped}")
        elif left_s < SECONDS_MIN:
            run.note(step.name, "not_run", why="the budget was used up")
            run.log(f"{step.name}: not run, the budget was used up")
        else:
            run_step(run, step, left_s)
    run.log(run.summary())
    return 1 if any(result["result"] == "failed" for result in run.results.values()) else 0


def missing_modules(*names: str) -> str:
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return f"these Python packages are not here: {', '.join(missing)}" if missing else ""


def all_steps(build: Path, libraries: str, *, on_double: bool) -> list[Step]:
    programs = os.environ | {"LD_LIBRARY_PATH": libraries}
    trainers = os.environ | {"PYTHONPATH": str(ROOT / "python"), "CKPTENGINE_BUILD_DIR": str(build)}
    if not on_double:
        trainers["CKPTENGINE_TEST_GPU"] = "real"
    no_nccl = "" if on_double or nccl_file() else "there is no NCCL here"

    def program(name: str, file: str, why_skipped: str = "") -> Step:
        return Step(name, [build / "tests" / file], 240, programs, why_skipped)

    def bench(part: str, limit_s: int, *more: object) -> Step:
        double = ["--test-double"] if on_double else []
        script = ROOT / "bench" / "gpu.py"
        return Step(part, [sys.executable, script, "--build", build, "--only", part, *double, *more], limit_s)

    pytest = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    process = ROOT / "tests" / "process"
    sanitize = [sys.executable, ROOT / "scripts" / "gpu_tests.py", "--build", build, "--sanitize"]
    return [
        program("conformance", "cuda_conformance_test"),
        program("device", "cuda_device_test"),
        program("timestamps", "cuda_timestamps_test"),
        program("engine", "cuda_engine_test"),
        bench("copy", 180),
        bench("parity", 240),
        bench("training", 570),
        bench("beside", 120),
        bench("idle", 180),
        program("nccl", "nccl_conformance_test", no_nccl),
        program("exchange_test", "cuda_exchange_test", no_nccl),
        program("replicator", "cuda_replicator_test", no_nccl),
        Step("trainers", [*pytest, ROOT / "python" / "tests" / "test_cuda.py"], 300, trainers,
             missing_modules("pytest", "torch")),
        Step("gpu_to_gpu", [*pytest, process / "test_gpu_replication.py"], 120, trainers,
             no_nccl or missing_modules("pytest")),
        Step("optimizer", [*pytest, process / "test_optimizer.py", "-k", "cuda"], 120, trainers,
             "the test double does not run torch" if on_double else missing_modules("pytest", "torch")),
        Step("recompute", [*pytest, process / "test_recompute_gpu.py"], 240, trainers,
             missing_modules("pytest", *([] if on_double else ["torch"]))),
        bench("exchange", 180),
        bench("kills", 570, "--kills", 30),
        bench("pin", 120),
        Step("sanitizer", sanitize, 600, None, "the test double has no kernels of a GPU" if on_double else ""),
    ]  # fmt: skip


@contextlib.contextmanager
def libraries_of(build: Path, *, on_double: bool) -> Iterator[str]:
    if not on_double:
        with program_libraries(build) as path:
            yield path
        return
    doubles = build / "tests" / "cuda_double"  # also NCCL's
    if not doubles.is_dir():
        sys.exit(f"gpu: {doubles} is not there; build it where there is CUDA's header")
    yield os.pathsep.join(filter(None, [str(doubles), str(build / "lib"), os.environ.get("LD_LIBRARY_PATH")]))


def device_of(build: Path, *, on_double: bool) -> tuple[str, str]:
    """The name of what the steps run on, or why they cannot."""
    if on_double:
        return "test double", ""
    name, why_not = gpu_name()
    return name, why_not or why_unusable(build)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where the programs are")
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="for all steps (540)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where gpu.json and gpu.log go")
    parser.add_argument("--resume", action="store_true", help="only what has no result in DIR yet")
    doubles = "on the test doubles of driver and NCCL"
    parser.add_argument("--stand-in", dest="on_double", action="store_true", help=doubles)
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    build = arguments.build.resolve()
    device, why_not = device_of(build, on_double=arguments.on_double)
    if why_not:
        print(f"gpu: nothing was run: {why_not}")
        return NOTHING_TO_RUN
    with libraries_of(build, on_double=arguments.on_double) as libraries:
        loaded = None if arguments.on_double else driver_of(build / "tests" / "cuda_device_test", libraries)
        if loaded is not None and loaded != driver_file().resolve():
            print("gpu: nothing was run: the tests would load another driver than this machine's")
            return NOTHING_TO_RUN
        run = Run.begin(arguments.out, device, resume=arguments.resume)
        run.log(f"device: {device}")
        return run_all(run, all_steps(build, libraries, on_double=arguments.on_double), arguments.budget)


if __name__ == "__main__":
    sys.exit(main())
