"""The agents notice ranks that hang, die or are slow, and name who holds the others up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BUILD, build_file_of
from processes import build_file, kill_process

DEADLINE_S = 60
RANKS = 4
FLOOR_MS = 1000


class WatchedJob:
    """Four trainers in processes of their own, each on a node of its own."""

    def __init__(self, cluster, folder: Path, **options: object) -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "meeting").write_bytes(bytes(8 * RANKS))
        trainer = Path(__file__).with_name("watched_trainer.py")
        self.trainers = []
        for rank in range(RANKS):
            given = cluster.options(rank, RANKS, hang_floor_ms=FLOOR_MS, **options)
            given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
            given["library"] = str(build_file(BUILD, "libckptengine.so"))
            self.trainers.append(subprocess.Popen(
                [sys.executable, trainer, folder, str(rank), str(RANKS), json.dumps(given)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}))

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.kill()
        for trainer in self.trainers:
            trainer.wait(DEADLINE_S)

    def signal(self, rank: int, number: signal.Signals) -> None:
        kill_process(self.trainers[rank].pid, number)

    def command(self, name: str, rank: int) -> Path:
        path = self.folder / f"{name}-{rank}"
        path.touch()
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


@pytest.fixture
def job(cluster, tmp_path):
    job = WatchedJob(cluster, tmp_path)
    yield job
    for trainer in job.trainers:
        kill_process(trainer.pid, signal.SIGCONT)
    job.close()


def test_a_stopped_rank_is_named_until_it_goes_on(job):
    job.await_learned()
    job.signal(2, signal.SIGSTOP)
    told = job.await_culprit(2, "stopped", "has not joined communication ")
    assert told["culprits"][0]["process"] == "T"
    assert told["text"].endswith("its process is stopped (SIGSTOP)")
    assert told["awaited"]["communication"] in (1, 2, 3)
    job.signal(2, signal.SIGCONT)
    job.await_nobody()
    job.await_progress(3)
    assert len(job.logged()) <= 2 * RANKS, "each change is logged once"


def test_a_killed_rank_is_named_as_dead(job):
    job.await_learned()
    job.signal(1, signal.SIGKILL)
    job.await_culprit(1, "dead", "its process has ended")


def test_a_rank_that_spins_with_the_interpreter_lock_is_named(job):
    job.await_learned()
    job.command("spin", 3)
    told = job.await_culprit(3, "computing", "has not joined communication ")
    assert told["culprits"][0]["process"] == "R"


def test_a_slow_rank_is_a_straggler_and_no_hang(job):
    job.await_learned()
    job.command("slow", 0)
    job.await_culprit(0, "slow", " in an iteration, other ranks ")
    assert all(" computes " in line for line in job.logged())


def test_a_pause_is_no_hang(job):
    job.await_learned()
    pause = job.command("pause", 0)
    deadline = time.monotonic() + DEADLINE_S
    while job.status(0)["ranks"][0]["paused"] != "eval":
        assert time.monotonic() < deadline
    time.sleep(3 * FLOOR_MS / 1000)
    assert "paused (eval)" in job.text(0)
    pause.unlink()
    job.await_progress(10)
    assert job.logged() == []


def test_an_agent_that_was_stopped_suspects_nobody(job):
    job.await_learned()
    (agent,) = job.cluster.agents("n1")
    kill_process(agent, signal.SIGSTOP)
    time.sleep(3 * FLOOR_MS / 1000)
    kill_process(agent, signal.SIGCONT)
    job.await_progress(10)
    assert job.logged() == []


def test_ranks_that_close_their_engines_are_not_suspected(job):
    job.await_learned()
    last = job.status(0)["ranks"][0]["attempted"] + 100  # far enough that no rank is there yet
    whole = job.folder / "end.new"
    whole.write_text(str(last))
    whole.rename(job.folder / "end")
    assert [trainer.wait(DEADLINE_S) for trainer in job.trainers] == [0] * RANKS
    assert job.logged() == []
