"""A rank of a torch job dies or hangs: the healthy processes stay, load nothing, and the losses go on bit for bit."""

from __future__ import annotations

import pytest
from jit_job import RANKS, JitJob

pytest.importorskip("torch")

@pytest.fixture
def start(cluster, tmp_path):
    jobs = []

    def make(**options) -> JitJob:
        jobs.append(JitJob(cluster, tmp_path / "job", **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


FAULTS = [(1, "kill", "forward"), (2, "kill", "backward"), (3, "kill", "all_reduce"), (1, "kill", "joined"),
          (0, "stop", "backward"), (2, "spin", "forward")]


def check_survivors(job: JitJob, failed: int, *, same_state: bool = True) -> None:
    """After the last fault the failed rank has another process, the others have the same, and their tensors."""
    begin = len(job.begins(0)) - 1
    restored = {job.begins(rank)[begin].iteration for rank in range(RANKS)}
    assert len(restored) == 1
    for rank in range(RANKS):
        before, after = job.begins(rank)[begin - 1], job.begins(rank)[begin]
        assert (before.pid == after.pid) == (rank != failed)
        if rank != failed and same_state:
            assert after.tier == "LIVE"


def check_losses(job: JitJob, kind: str) -> None:
    end = max(job.newest()) + 6
    assert job.run_to_the_end(end) == job.undisturbed(kind, end)


def test_faults_in_a_pass_cost_no_other_process_and_no_finished_iteration(start):
    job = start()
    job.await_iteration(4)
    for rank, what, where in FAULTS:
        job.cause(rank, what, where)
        check_survivors(job, rank, same_state=where != "joined")
    check_losses(job, "ddp")
