"""Checks and measures the engine on a GPU. The parts are:

  copy      capture and restore, compared with the peak of the link
  exchange  copies from GPU to GPU, through a communicator of one rank
  parity    parity and digest kernels, compared with copies within the device
  kills     a hundred kill -9 in the middle of captures
  idle      idle time of a loop like a pipeline's, as the engine's marks see it and as CUDA events do; and the loop's
            iterations with captures in layers, with captures at once, and without
  training  a training step of PyTorch with a snapshot in every iteration: with little and with much staging, and with
            copies that fit into the iteration and copies that do not; in a loop that waits for the GPU, and in one
            that runs ahead of it
  beside    a matrix product beside a capture, compared with one alone
  pin       how fast the driver pins small and huge pages; needs root

If a part fails or takes too long, the others still run. At the end, the bench names the failed parts and ends with
status 1. Without a GPU, or with a driver older than the CUDA of the build, it says so, measures nothing and ends with
status 3. --test-double uses the test doubles of the driver and of NCCL, and the CPU for PyTorch. That only shows that
all parts run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "python" / "tests")]

from comm_words import CommWords
from gpu_driver import gpu_name, program_libraries, why_unusable

MIB = 1 << 20
ARENA = "/dev/shm"
SLOTS = 3  # slots that an arena has for a rank's state
UNUSABLE = 3


class LeftOut(Exception):
    """A part that cannot be measured here."""


@dataclass
class Bench:
    build: Path
    mib: int
    kills: int
    test_double: bool
    for_programs: dict[str, str]  # environments
    for_python: dict[str, str]

    def run(self, name: str, *arguments: object) -> None:
        """A program of the build, whose lines are shown as they come."""
        unbuffered = ["stdbuf", "-oL"] if shutil.which("stdbuf") else []
        command = [*unbuffered, self.build / "bench" / name, *map(str, arguments)]
        measure(name, command, self.for_programs)


def measure(name: str, command: list, environment: dict[str, str]) -> None:
    """Runs a command. Fails unless the command ends with status 0 and prints a ratio."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            ratios = 0
            for line in process.stdout:
                print(line, end="")
                ratios += line.startswith("ratio: ")
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"{name} ended with status {process.returncode}")
    if ratios == 0:
        raise RuntimeError(f"{name} measured nothing")


def need_arena(state_bytes: int) -> None:
    files = os.statvfs(ARENA)
    free, needed = files.f_bavail * files.f_frsize, SLOTS * state_bytes
    if free < needed:
        raise RuntimeError(
            f"{ARENA} has {free / 1e9:.2f} GB free and {needed / 1e9:.2f} GB are needed; mount it with more "
            f"(in Docker: --shm-size={needed // 1_000_000_000 + 2}g)"
        )


@contextlib.contextmanager
def job(build: Path) -> Iterator[dict[str, str]]:
    """Options of a job of one rank; its agent is stopped at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-bench-", dir=ARENA) as arena,
        tempfile.TemporaryDirectory(prefix="ckptengine-bench-") as coordination,
    ):
        where = {"job": "gpu", "node": "n0", "arena_dir": arena, "coordination": coordination}
        programs = {"library": build / "lib" / "libckptengine.so", "ckptd": build / "bin" / "ckptd"}
        try:
            # A single node needs no network, and some sandboxes do not show network interfaces.
            alone = {"rank": 0, "world_size": 1, "copies": 1, "transport": "shm"}
            yield {key: str(value) for key, value in {**where, **programs, **alone}.items()}
        finally:
            tool = [build / "bin" / "ckptctl", "stop", *(f"{key}={value}" for key, value in where.items())]
            subprocess.run(tool, check=False, capture_output=True, timeout=60)


# ---- parts that are programs ----


def copy(bench: Bench) -> None:
    bench.run("bench_gpu", bench.mib, 1 if bench.test_double else 15, "copy")


def exchange(bench: Bench) -> None:
    bench.run("bench_gpu", bench.mib, 1 if bench.test_double else 15, "exchange")


def parity(bench: Bench) -> None:
    if bench.test_double:
        raise LeftOut("the test double runs none of these kernels")
    bench.run("bench_parity_cuda")


# ---- kills ----


class Trainer:
    """A training process that is killed at the end, if not before."""

    def __init__(self, options: dict[str, str], size_bytes: int, environment: dict[str, str]) -> None:
        script = Path(__file__).with_name("_gpu_trainer.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(options), str(size_bytes)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def says(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a training process ended by itself with status {self.process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def wait_until(capturing: bool, words: CommWords, trainer: Trainer) -> None:
    while words.is_capturing() != capturing:
        if trainer.process.poll() is not None:
            trainer.says()
        time.sleep(0)


def kill_in_a_capture(trainer: Trainer, words: CommWords, delay_s: float) -> bool:
    """Kills the trainer so long after a capture has begun. Returns whether that capture was still under way. Only the
    trainer writes the word that says so.
    """
    wait_until(False, words, trainer)
    wait_until(True, words, trainer)
    time.sleep(delay_s)
    trainer.kill()
    return words.is_capturing()


def check_start(trainer: Trainer, committed: int) -> None:
    start = trainer.says()
    if start["iteration"] < committed or not start["intact"]:
        raise RuntimeError(f"iteration {committed} was committed before a kill -9, and this came back: {start}")


def kills(bench: Bench) -> None:
    """Each incarnation must find what the one before it saw committed, or something newer, bit for bit."""
    chance = random.Random(1)
    committed, hits = -1, 0
    size_bytes = bench.mib * MIB // 4
    need_arena(size_bytes)
    with job(bench.build) as options:
        for count in range(bench.kills + 1):
            with Trainer(options, size_bytes, bench.for_python) as trainer:
                check_start(trainer, committed)
                if count == bench.kills:
                    break
                for _ in range(chance.randint(1, 4)):
                    told = trainer.says()
                committed = told["committed"]
                hits += kill_in_a_capture(trainer, CommWords(options), chance.uniform(0, told["capture_s"]))
            if count % 10 == 9:
                print(f"kill -9: {count + 1} of {bench.kills} times, {hits} in the middle of a capture")
    print(
        f"kill -9: {bench.kills} times, {hits} in the middle of a capture of {size_bytes / MIB:.0f} MiB; what came "
        f"back was always intact and never older than what was committed, last {committed}"
    )
    if hits == 0:
        raise RuntimeError("no kill met a capture")


# ---- training ----


def torch_device(bench: Bench) -> str:
    if importlib.util.find_spec("torch") is None:
        raise LeftOut("there is no PyTorch here")
    import torch

    if not (bench.test_double or torch.cuda.is_available()):
        raise LeftOut(f"PyTorch {torch.__version__} here has no CUDA")
    return "cpu" if bench.test_double else "cuda"


def idle(bench: Bench) -> None:
    device, size_bytes = torch_device(bench), bench.mib * MIB // 4
    need_arena(size_bytes)
    for how in ("layered", "immediate", "ahead"):
        with job(bench.build) as options:
            command = [sys.executable, Path(__file__).with_name("_gpu_idle.py"), json.dumps(options), how, device]
            measure(f"idle {how}", [*command, str(size_bytes)], bench.for_python)


def training(bench: Bench) -> None:
    device = torch_device(bench)
    if not bench.test_double:
        need_arena(3_200_000_000)
    script = Path(__file__).with_name("_gpu_training.py")
    for name, staging_bytes, batch, *loop in [
        ("fits", 128 * MIB, 64), ("fits_ahead", 128 * MIB, 64, "ahead"), ("fits_staged", 4096 * MIB, 64),
        ("too_short", 128 * MIB, 2), ("too_short_staged", 4096 * MIB, 2),
        ("too_short_staged_ahead", 4096 * MIB, 2, "ahead"),
    ]:  # fmt: skip
        with job(bench.build) as options:
            command = [sys.executable, script, json.dumps(options), str(staging_bytes), str(batch), name, device, *loop]
            measure(f"training {name}", command, bench.for_python)


# ---- probes ----


def beside(bench: Bench) -> None:
    if bench.test_double:
        raise LeftOut("the test double has no speed")
    if importlib.util.find_spec("torch") is None:
        raise LeftOut("there is no PyTorch here")
    need_arena(2048 * MIB)
    for name, staging_bytes in [("direct", 128 * MIB), ("staged", 2304 * MIB)]:
        with job(bench.build) as options:
            script = Path(__file__).with_name("_gpu_beside.py")
            measure(
                f"beside {name}", [sys.executable, script, json.dumps(options), str(staging_bytes), name],
                bench.for_python,
            )  # fmt: skip


def pin(bench: Bench) -> None:
    if bench.test_double:
        raise LeftOut("the test double pins nothing")
    if os.geteuid() != 0:
        raise LeftOut("mounting a tmpfs needs root")
    script = Path(__file__).with_name("pin.py")
    measure("pin", [sys.executable, script, "--gpu", "--mib", str(bench.mib), "--rounds", "3"], bench.for_python)


# ---- all of it ----

PARTS: dict[str, tuple[Callable[[Bench], None], int]] = {  # each with its limit in seconds
    "copy": (copy, 180),
    "exchange": (exchange, 180),
    "parity": (parity, 240),
    "kills": (kills, 570),
    "idle": (idle, 180),
    "training": (training, 570),
    "beside": (beside, 120),
    "pin": (pin, 120),
}


@contextlib.contextmanager
def deadline(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError(f"it did not end in {seconds} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_part(bench: Bench, name: str) -> str:
    """Returns why the part failed, "" if it did not."""
    part, seconds = PARTS[name]
    print(f"{name}: begins")
    begin = time.monotonic()
    outcome, failure = "done", ""
    try:
        with deadline(seconds):
            part(bench)
    except LeftOut as why:
        outcome = f"left out, as {why}"
    except Exception as error:  # after any failure, the other parts still run
        failure = str(error) or type(error).__name__
        outcome = f"failed: {failure}"
    print(f"{name}: {outcome} ({time.monotonic() - begin:.0f} s)")
    return failure


def run_parts(bench: Bench, names: list[str]) -> None:
    failures = {name: why for name in names if (why := run_part(bench, name))}
    if failures:
        sys.exit("gpu: failed: " + "; ".join(f"{name} ({why})" for name, why in failures.items()))


def names_of_parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no part '{unknown[0]}' (there are: {', '.join(PARTS)})")
    return names


@contextlib.contextmanager
def test_double(build: Path) -> Iterator[str]:
    folder = build / "tests" / "cuda_double"
    if not folder.is_dir():
        sys.exit(f"gpu: {folder} is not there; build it where there is CUDA's header")
    yield os.pathsep.join(filter(None, [str(folder), str(build / "lib"), os.environ.get("LD_LIBRARY_PATH")]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="folder with the programs")
    parser.add_argument(
        "--only", type=names_of_parts, default=list(PARTS), metavar="PART,...", help="run only these parts"
    )
    parser.add_argument("--mib", type=int, default=1024, help="MiB of state to copy")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--test-double", action="store_true", help="run on the test double of a driver, with little state"
    )
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    build = arguments.build.resolve()
    mib, count = arguments.mib, arguments.kills
    if arguments.test_double:
        mib, count = min(mib, 200), min(count, 3)
    else:
        name, why_not = gpu_name()
        if why_not:
            print(f"no GPU here, nothing is measured: {why_not}")
            return
        print(f"GPU: {name}")
        if why_not := why_unusable(build):
            print(f"nothing is measured: {why_not}")
            sys.exit(UNUSABLE)
    with test_double(build) if arguments.test_double else program_libraries(build) as library_path:
        for_programs = os.environ | {"LD_LIBRARY_PATH": library_path}
        for_python = (for_programs if arguments.test_double else dict(os.environ)) | {"PYTHONUNBUFFERED": "1"}
        run_parts(Bench(build, mib, count, arguments.test_double, for_programs, for_python), arguments.only)


if __name__ == "__main__":
    main()
