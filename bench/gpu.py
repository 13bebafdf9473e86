"""What a GPU has to show, one after the other: capture and restore against the peak of the link, the way from GPU to
GPU through a communicator of one rank, parity and digest kernels against copies within the device, a hundred kill -9 in
the middle of captures, and a training step of PyTorch with a snapshot in every iteration, with little and with much
staging, where the copy fits into the iteration and where not.

Says so, and measures nothing, where there is no GPU. --stand-in takes the tests' stand-ins for a driver and for NCCL
instead: that shows that all of this runs, and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_driver import driver_folder, gpu_name, nccl_folder

MIB = 1 << 20


@contextlib.contextmanager
def job(build: Path) -> Iterator[dict[str, str]]:
    """Options of a job of one rank whose arena is in /dev/shm; its agent is stopped at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-bench-", dir="/dev/shm") as arena,
        tempfile.TemporaryDirectory(prefix="ckptengine-bench-") as coordination,
    ):
        where = {"job": "gpu", "node": "n0", "arena_dir": arena, "coordination": coordination}
        programs = {"library": build / "lib" / "libckptengine.so", "ckptd": build / "bin" / "ckptd"}
        try:
            # One node needs no network, and not every sandbox shows its interfaces.
            alone = {"rank": 0, "world_size": 1, "copies": 1, "transport": "shm"}
            yield {key: str(value) for key, value in {**where, **programs, **alone}.items()}
        finally:
            tool = [build / "bin" / "ckptctl", "stop", *(f"{key}={value}" for key, value in where.items())]
            subprocess.run(tool, check=False, capture_output=True, timeout=60)


class Trainer:
    def __init__(self, options: dict[str, str], size_bytes: int, environment: dict[str, str]) -> None:
        script = Path(__file__).with_name("_gpu_trainer.py")
        self.process = subprocess.Popen(
            [sys.executable, script, json.dumps(options), str(size_bytes)],
            env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"gpu: a training process ended by itself with status {self.process.wait()}")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


def kill_loop(build: Path, kills: int, size_bytes: int, environment: dict[str, str]) -> None:
    """Each life must find what the one before it saw committed, or something newer, bit for bit."""
    chance = random.Random(1)
    committed = -1
    with job(build) as options:
        for _ in range(kills):
            trainer = Trainer(options, size_bytes, environment)
            start = trainer.says()
            if start["iteration"] < committed or not start["intact"]:
                sys.exit(f"gpu: after kill -9, iteration {committed} was committed and this came back: {start}")
            for _ in range(chance.randint(1, 4)):
                committed = trainer.says()["committed"]
            time.sleep(chance.uniform(0, 0.02))  # into the next capture
            trainer.kill()
    print(f"kill -9: {kills} times in the middle of work, {size_bytes / MIB:.0f} MiB; always intact, last {committed}")


def why_no_training() -> str:
    if importlib.util.find_spec("torch") is None:
        return "there is no PyTorch here"
    import torch

    return "" if torch.cuda.is_available() else f"PyTorch {torch.__version__} here has no CUDA"


def train(build: Path, environment: dict[str, str]) -> None:
    script = Path(__file__).with_name("_gpu_training.py")
    for name, staging_bytes, batch in [
        ("fits", 128 * MIB, 64), ("fits_staged", 4096 * MIB, 64), ("too_short", 128 * MIB, 2),
        ("too_short_staged", 4096 * MIB, 2),
    ]:  # fmt: skip
        with job(build) as options:
            command = [sys.executable, script, json.dumps(options), str(staging_bytes), str(batch), name]
            subprocess.run(command, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="where the programs are")
    parser.add_argument("--mib", type=int, default=1024, help="of state that is copied")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--stand-in", action="store_true", help="run on the stand-in for a driver, with little state")
    arguments = parser.parse_args()
    build = arguments.build.resolve()
    environment = dict(os.environ)
    if arguments.stand_in:
        folders = [str(build / "tests" / "cuda_double")]
        if not os.path.isdir(folders[0]):
            sys.exit("gpu: the stand-in is part of a build and not of a bundle; "
                     "run `./dev bench gpu -- --stand-in` in the sources")
        arguments.mib, arguments.kills = min(arguments.mib, 200), min(arguments.kills, 3)
    else:
        name, why_not = gpu_name()
        if why_not:
            print(f"no GPU here, nothing is measured: {why_not}")
            return
        folders = [driver_folder(), nccl_folder()]
        print(f"GPU: {name}")
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")]))
    rounds = ["1"] if arguments.stand_in else []
    subprocess.run([build / "bench" / "bench_gpu", str(arguments.mib), *rounds], env=environment, check=True)
    if not arguments.stand_in:
        subprocess.run([build / "bench" / "bench_parity_cuda"], env=environment, check=True)
    kill_loop(build, arguments.kills, arguments.mib * MIB // 4, environment)
    why_not = "the stand-in is none for PyTorch" if arguments.stand_in else why_no_training()
    if why_not:
        print(f"the training step is not measured: {why_not}")
    else:
        train(build, environment)


if __name__ == "__main__":
    main()
