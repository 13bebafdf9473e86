"""A rank that stays in its process when the job is halted: rejoin_trainer.py FOLDER RANK RANKS OPTIONS (JSON).

It trains as halt_trainer.py does, and obeys `die` and `stop`. A thread waits for a halt, and then interrupts the
training thread, which rejoins and restores. Each restore appends a line to FOLDER/restored-RANK: pid, tier of the main
shard, bytes, incarnation, iteration. Before it rejoins, it waits while there is a file FOLDER/hold, and afterwards it
adds a line to FOLDER/rejoined-RANK. The rank ends at the iteration that FOLDER/end names."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import halt_trainer
import numpy as np
from ckptengine import Capture, Engine, Halted

REJOIN_S = 60


class Interrupted(Exception):
    """The job was halted while this rank communicated."""


class Group(halt_trainer.Group):
    """One incarnation's group, which another thread can interrupt."""

    def __init__(self, folder: Path, incarnation: int, rank: int, ranks: int) -> None:
        path = folder / f"group-{incarnation}"
        with path.open("ab") as file:
            file.truncate(halt_trainer.group_bytes(ranks))
        super().__init__(path, rank, ranks)
        self.interrupted = threading.Event()

    def meet(self) -> None:
        self.counts[self.rank] += 1
        while (self.counts < self.counts[self.rank]).any():
            if self.interrupted.wait(0.001):
                raise Interrupted
            halt_trainer.end_with_parent()


class Rank:
    def __init__(self, folder: Path, rank: int, ranks: int, engine: Engine) -> None:
        self.folder, self.rank, self.ranks, self.engine = folder, rank, ranks, engine
        self.parameters = np.linspace(-1, 1, halt_trainer.PARAMETERS)
        self.generator = np.array([rank + 1], np.uint64)
        engine.register("parameters", self.parameters)
        engine.register("generator", self.generator, capture=Capture.SYNCHRONOUS)

    def has(self, command: str) -> bool:
        return (self.folder / f"{command}-{self.rank}").exists()

    def run(self) -> None:
        while True:
            start = self.engine.restore()
            with (self.folder / f"restored-{self.rank}").open("a") as file:
                tier = start.main_tier.name
                file.write(f"{os.getpid()} {tier} {start.bytes} {start.incarnation} {start.iteration}\n")
            group = Group(self.folder, start.incarnation, self.rank, self.ranks)
            has_ended = threading.Event()
            watch = threading.Thread(target=self.watch, args=(group, has_ended))
            watch.start()
            try:
                return self.train(group, start.next_iteration)
            except (Interrupted, Halted):
                assert self.engine.wait_halt(REJOIN_S), "interrupted, but not halted"
            finally:
                has_ended.set()
                watch.join()
            while (self.folder / "hold").exists():
                time.sleep(0.005)
                halt_trainer.end_with_parent()
            self.engine.rejoin()
            with (self.folder / f"rejoined-{self.rank}").open("a") as file:
                file.write(f"{os.getpid()}\n")

    def watch(self, group: Group, has_ended: threading.Event) -> None:
        while not has_ended.is_set():
            if self.engine.wait_halt(0.2):
                return group.interrupted.set()

    def train(self, group: Group, iteration: int) -> None:
        losses, end = (self.folder / f"losses-{self.rank}").open("a", buffering=1), self.folder / "end"
        while not end.exists() or iteration < int(end.read_text()):
            self.generator[0] = self.generator[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            time.sleep(halt_trainer.COMPUTING_S)
            noise = float(self.generator[0] >> np.uint64(11)) / 2**53
            if self.has("die"):
                (self.folder / f"die-{self.rank}").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.has("stop"):
                (self.folder / f"stop-{self.rank}").unlink()
                os.kill(os.getpid(), signal.SIGSTOP)
            gradient = group.sum(self.engine, self.parameters[:halt_trainer.GRADIENTS] * (1 + noise))
            self.engine.before_update()
            self.parameters *= 1 - 1e-3
            self.parameters[:halt_trainer.GRADIENTS] -= 1e-3 * gradient
            self.engine.snapshot(iteration)
            losses.write(f"{iteration} {(self.parameters.sum() + noise).hex()}\n")
            iteration += 1


def main() -> None:
    np.seterr(over="ignore")
    folder, rank, ranks, options = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
    with Engine(shard="model", **options) as engine:
        Rank(folder, rank, ranks, engine).run()
