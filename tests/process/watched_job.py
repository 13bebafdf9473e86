"""A job of four ranks in processes of their own, each on a node of its own, whose agents watch them."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import time
from pathlib import Path

from conftest import BUILD, build_file_of
from fork_server import Processes
from processes import build_file, kill_process

DEADLINE_S = 60
RANKS = 4
FLOOR_MS = 1000


def train_rank(trainer: str, *settings) -> None:
    importlib.import_module(trainer).main(*settings)


class WatchedJob:
    """Runs main(folder, rank, ranks, options) of the module `trainer` on each node. `modules`: see fork_server."""

    def __init__(self, cluster, folder: Path, trainer: str, modules: tuple[str, ...] = (),
                 **options: object) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "meeting").write_bytes(bytes(8 * RANKS))
        self.trainers = []
        ranks = Processes(*modules)
        for rank in range(RANKS):
            given = cluster.options(rank, RANKS, hang_floor_ms=FLOOR_MS, **options)
            given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
            given["library"] = str(build_file(BUILD, "libckptengine.so"))
            self.trainers.append(ranks.Process(target=train_rank, args=(trainer, folder, rank, RANKS, given)))
            self.trainers[-1].start()

    def close(self) -> None:
        for trainer in self.trainers:
            kill_process(trainer.pid, signal.SIGCONT)
            trainer.kill()
        for trainer in self.trainers:
            trainer.join(DEADLINE_S)

    def signal(self, rank: int, number: signal.Signals) -> None:
        kill_process(self.trainers[rank].pid, number)

    def command(self, name: str, rank: int) -> Path:
        path = self.folder / f"{name}-{rank}"
        path.touch()
        return path

    def drop_after(self, iterations: int) -> Path:
        """All ranks drop packets from the begin of the same iteration on. So all wait in its first communication."""
        path, whole = self.folder / "drop", self.folder / "drop.new"
        whole.write_text(str(self.status(0)["ranks"][0]["attempted"] + iterations))
        whole.rename(path)
        return path

    def status(self, rank: int) -> dict:
        asked = subprocess.run(
            [build_file_of("ckptctl"), "status", "--json", f"node=n{rank}", f"job={self.cluster.job}",
             f"arena_dir={self.cluster.arena}"], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        agents = json.loads(asked.stdout).get("agents")
        return agents[0] if agents else {}

    def text(self, rank: int) -> str:
        return subprocess.run(
            [build_file_of("ckptctl"), "status", f"node=n{rank}", f"job={self.cluster.job}",
             f"arena_dir={self.cluster.arena}"], capture_output=True, text=True, check=False,
            timeout=DEADLINE_S).stdout

    def await_everywhere(self, is_so) -> None:
        deadline = time.monotonic() + DEADLINE_S
        for rank in range(RANKS):
            while not is_so(status := self.status(rank)):
                assert time.monotonic() < deadline, status
                time.sleep(0.05)

    def await_learned(self) -> None:
        self.await_everywhere(lambda status: status.get("ranks") and status["ranks"][0]["computing_ms"] > 0)

    def await_culprit(self, rank: int, trouble: str, words: str) -> dict:
        """Until every node names this rank alone, with these words. What the last one says."""
        told = {}

        def is_named(status: dict) -> bool:
            told.clear()
            told.update(status["suspicion"] or {})
            return bool(told) and words in told["text"] and [
                (each["rank"], each["node"], each["trouble"]) for each in told["culprits"]
            ] == [(rank, f"n{rank}", trouble)]

        self.await_everywhere(is_named)
        assert f"  SUSPECTED: rank {rank} on node n{rank} " in self.text(0)
        return told

    def await_nobody(self) -> None:
        self.await_everywhere(lambda status: status["suspicion"] is None)

    def await_progress(self, iterations: int) -> None:
        before = self.status(0)["ranks"][0]["attempted"]
        self.await_everywhere(lambda status: status["ranks"][0]["attempted"] > before + iterations)

    def logged(self) -> list[str]:
        """What the agents' logs say of suspicions."""
        logs = [path.read_text() for path in self.cluster.arena.glob("*/n*/ckptd.log")]
        assert len(logs) == RANKS
        return [line for log in logs for line in log.splitlines() if "suspicion: " in line]
