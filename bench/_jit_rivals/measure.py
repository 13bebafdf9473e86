"""How long other ways take from a kill until all ranks train again, with the job of ./dev demo --jit."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus
import numpy as np
from _rivals.catalog import WAYS
from _rivals.environments import python_of
from cluster import DemoFailure, stop_processes, tail
from jit_job import HERE, PRELOAD, PYTHON, JitJob, Told, free_port
from jit_recovery import RECOVERY_S

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "build" / "rivals" / "venvs"
FAILS = 1  # rank
ITERATIONS = 12
LIGHTHOUSE_S = 20


def python_for(name: str) -> Path:
    """The interpreter of that way's environment. Raises NotInstalled."""
    return python_of(next(entry for entry in WAYS if entry.name == name), ENVIRONMENTS)


def again_s(told: list[Told], ranks: list[int], since_s: float) -> float | None:
    """When all these ranks had finished an iteration that began after the fault. None: they have not yet."""
    ends = []
    for rank in ranks:
        after = [each["at_s"] for each in told[rank].of("iteration") if each["at_s"] > since_s]
        if not after:
            return None
        ends.append(after[0])
    return max(ends)


@contextlib.contextmanager
def lighthouse(python: Path, log: Path) -> Iterator[str]:
    """torchft's server, which tells replicas of each other. It ends with the block."""
    code = (
        "import sys; from torchft.coordination import LighthouseServer; "
        "server = LighthouseServer('127.0.0.1:0', 4); print(server.address(), flush=True); sys.stdin.read()"
    )
    with open(log, "a") as errors:
        process = subprocess.Popen(
            [str(python), "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise DemoFailure(f"torchft's lighthouse did not start\n{tail(log)}")
        port = address.rpartition(":")[2]
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_processes([process])


def torchft(python: Path, programs: dict[str, Path], logs: Path, layers: int) -> float:
    script = Path(__file__).with_name("torchft_rank.py")
    with (
        lighthouse(python, logs / "lighthouse.log") as address,
        JitJob("torchft", programs, logs, Path("/dev/shm"), options={}, standby=False, layers=layers, script=script,
               python=python, preload=f"{PRELOAD},torchft", environment={"TORCHFT_LIGHTHOUSE": address}) as job,
    ):  # fmt: skip
        job.until(lambda: job.reached() >= ITERATIONS, "train")
        job.await_spares()
        job.command(FAILS, "kill", "backward")
        job.until(lambda: job.told[FAILS].of("fault"), "fail")
        at_s = job.told[FAILS].of("fault")[-1]["at_s"]
        ranks = list(range(job.ranks))
        job.until(lambda: again_s(job.told, ranks, at_s), "go on", RECOVERY_S)
        return again_s(job.told, ranks, at_s) - at_s


def nvrx(python: Path, programs: dict[str, Path], logs: Path, layers: int) -> float:
    with NvrxJob(python, logs, layers) as job:
        job.until(lambda: all(job.told[rank].since_begin >= ITERATIONS for rank in range(4)), "train")
        (job.folder / f"do-{FAILS}").write_text("kill backward 0")
        job.until(lambda: job.told[FAILS].of("fault"), "fail")
        at_s = job.told[FAILS].of("fault")[-1]["at_s"]
        ranks = [rank for rank in range(job.ranks) if rank != FAILS]
        job.until(lambda: again_s(job.told, ranks, at_s), "go on")
        return again_s(job.told, ranks, at_s) - at_s


class NvrxJob:
    """Five processes, of which four train."""

    ranks = 5

    def __init__(self, python: Path, logs: Path, layers: int) -> None:
        self._closing = contextlib.ExitStack()
        self.folder = Path(self._closing.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-nvrx-")))
        memory = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-nvrx-", dir="/dev/shm"))
        np.save(self.folder / "text.npy", corpus.encode(corpus.read_text(None)))
        ports = [free_port() for _ in range(2)]
        settings = {
            "folder": str(self.folder), "text": str(self.folder / "text.npy"), "state": f"{memory}/state",
            "characters": corpus.CHARACTERS_MAX, "length": 64, "layers": layers, "batch": 2,
            "port": ports[0], "second_port": ports[1],
        }  # fmt: skip
        path = self.folder / "settings.json"
        path.write_text(json.dumps(settings))
        self.told = [Told(self.folder / f"told-{rank}") for rank in range(self.ranks)]
        self.logs = logs
        self.processes: list[subprocess.Popen] = []
        code = f"import torch.distributed as d, sys; s = d.TCPStore('127.0.0.1', {ports[1]}, is_master=True, " \
               "wait_for_workers=False); sys.stdin.read()"  # fmt: skip
        self._start([str(python), "-c", code], "store", {}, stdin=subprocess.PIPE)
        for rank in range(self.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks)}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
            script = Path(__file__).with_name("nvrx_rank.py")
            self._start([str(python), str(script), str(path)], f"nvrx{rank}", own, stdin=subprocess.DEVNULL)

    def _start(self, command: list[str], name: str, own: dict[str, str], stdin: int) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CKPTENGINE_")}
        environment = kept | own | {
            "PYTHONPATH": os.pathsep.join(map(str, (PYTHON, HERE))), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        with open(self.logs / f"{name}.log", "a") as output:
            self.processes.append(
                subprocess.Popen(command, env=environment, stdin=stdin, stdout=output, stderr=subprocess.STDOUT)
            )

    def __enter__(self) -> NvrxJob:
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            for process in self.processes:
                process.kill()
            for process in self.processes:
                process.wait()

    def until(self, is_so: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + RECOVERY_S
        while True:
            for told in self.told:
                told.read()
            if is_so():
                return
            if time.monotonic() > deadline:
                raise DemoFailure(f"NVRx's job did not {what} in {RECOVERY_S} s\n{tail(self.logs / 'nvrx0.log')}")
            time.sleep(0.01)


RIVALS = {"nvrx": nvrx, "torchft": torchft}
