"""A rank of a job that may be halted: halt_trainer.py FOLDER RANK RANKS OPTIONS (JSON).

All ranks have the same parameters, as in data parallelism. Each has a random generator of its own, which changes in the
forward pass. They sum their gradients in shared memory. A rank appends each iteration and its loss to
FOLDER/losses-RANK, and the restored iteration to FOLDER/restored-RANK.

A file FOLDER/COMMAND-RANK changes what it does in the forward pass: `spin` computes without end and holds the
interpreter lock, `sleep` waits until there is a file FOLDER/wake, `die` and `stop` send the process a signal. `update`
stops it within its next update. With a file FOLDER/notice the others notice a death at once, and raise. It ends with
the iteration that FOLDER/end names. Halted, it ends with status 17 and writes FOLDER/halted-RANK."""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
from ckptengine import Capture, Engine, Halted

COMPUTING_S = 0.03
PARAMETERS = 50_000  # several digest leaves for each part
GRADIENTS = 16

parent = os.getppid()


def end_with_parent() -> None:
    if os.getppid() != parent:
        os._exit(1)


class Group:
    """Ranks that wait for each other and sum vectors, in a file that all of them map."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.folder = path.parent
        file = path.open("r+b")
        memory = mmap.mmap(file.fileno(), 0)
        self.counts = np.frombuffer(memory, np.uint64, ranks)
        self.values = np.frombuffer(memory, np.float64, ranks * GRADIENTS, 8 * ranks).reshape(ranks, GRADIENTS)
        self.rank = rank

    def meet(self) -> None:
        self.counts[self.rank] += 1
        while (self.counts < self.counts[self.rank]).any():
            time.sleep(0.001)
            end_with_parent()
            if (self.folder / "notice").exists() and any(self.folder.glob("died-*")):
                raise ConnectionError("a peer has gone")  # as communication libraries say it

    def sum(self, engine: Engine, vector: np.ndarray) -> np.ndarray:
        with engine.communication():
            self.values[self.rank] = vector
            self.meet()
            total = self.values.sum(axis=0)
            self.meet()
        return total


def group_bytes(ranks: int) -> int:
    return 8 * ranks * (1 + GRADIENTS)


def main() -> int:
    np.seterr(over="ignore")
    folder, rank, ranks, options = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    has = lambda command: (folder / f"{command}-{rank}").exists()  # noqa: E731
    group = Group(folder / "group", rank, ranks)
    parameters = np.linspace(-1, 1, PARAMETERS)
    generator = np.array([rank + 1], np.uint64)
    with Engine(shard="model", **options) as engine:
        engine.register("parameters", parameters)
        engine.register("generator", generator, capture=Capture.SYNCHRONOUS)
        start = engine.restore()
        (folder / f"restored-{rank}").open("a").write(f"{start.iteration}\n")
        losses = (folder / f"losses-{rank}").open("a", buffering=1)
        iteration, end = start.next_iteration, folder / "end"
        try:
            while not end.exists() or iteration < int(end.read_text()):
                generator[0] = generator[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                if has("spin"):
                    re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread in
                if has("sleep"):
                    (folder / f"sleep-{rank}").unlink()
                    while not (folder / "wake").exists():
                        time.sleep(0.01)
                        end_with_parent()
                if has("die"):
                    for other in range(ranks):  # whose updates have ended, too
                        while f"\n{iteration - 1} " not in (folder / f"losses-{other}").read_text():
                            time.sleep(0.001)
                    (folder / f"died-{rank}").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                if has("stop"):
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(COMPUTING_S)
                noise = float(generator[0] >> np.uint64(11)) / 2**53
                gradient = group.sum(engine, parameters[:GRADIENTS] * (1 + noise))
                engine.before_update()
                if has("update"):
                    os.kill(os.getpid(), signal.SIGSTOP)
                parameters *= 1 - 1e-3
                parameters[:GRADIENTS] -= 1e-3 * gradient
                engine.snapshot(iteration)
                losses.write(f"{iteration} {(parameters.sum() + noise).hex()}\n")
                iteration += 1
        except Halted as halted:
            (folder / f"halted-{rank}").write_text(str(halted))
            return 17
    return 0
