"""Ranks that stay in their processes when another one dies go on with the iteration that was live."""

from __future__ import annotations

import time

import pytest
from test_halt import DEADLINE_S, END, RANKS, HaltingJob, undisturbed  # noqa: F401


class RejoiningJob(HaltingJob):
    program = "rejoin_trainer.py"

    def replace(self, rank: int) -> None:
        """Starts the rank again, as a launcher does that restarts only what died."""
        self.trainers[rank].wait(DEADLINE_S)
        self.trainers[rank] = self.start_rank(rank)

    def restores(self, rank: int) -> list[list[str]]:
        path = self.folder / f"restored-{rank}"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def await_incarnation(self, incarnation: int) -> None:
        """Until every rank has restored in it."""
        deadline = time.monotonic() + DEADLINE_S
        while any(not (found := self.restores(rank)) or int(found[-1][3]) < incarnation for rank in range(RANKS)):
            assert time.monotonic() < deadline, [self.restores(rank) for rank in range(RANKS)]
            time.sleep(0.01)

    def pids(self) -> list[int]:
        return [trainer.pid for trainer in self.trainers]


@pytest.fixture
def job(cluster, tmp_path):
    job = RejoiningJob(cluster, tmp_path / "job")
    yield job
    job.kill()


def test_the_ranks_that_are_left_keep_their_processes_when_one_is_killed(job, undisturbed):  # noqa: F811
    job.start()
    job.await_iteration(12)
    pids = job.pids()
    job.command("die", 1)
    job.replace(1)
    live = job.newest()
    job.await_incarnation(2)
    job.run_to_the_end()
    assert len(set(live)) == 1, live
    for rank in range(RANKS):
        *_, (pid, _, _, incarnation, iteration) = job.restores(rank)
        assert (int(iteration), int(incarnation)) == (live[0], 2)
        assert (int(pid) == pids[rank]) == (rank != 1)
    assert {rank: job.losses(rank) for rank in range(RANKS)} == undisturbed
