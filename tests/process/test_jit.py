"""A rank of a torch job dies or hangs: the healthy processes stay, load nothing, and the losses go on bit for bit."""

from __future__ import annotations

import pytest
from jit_jobs import started_jobs

pytest.importorskip("torch")


@pytest.fixture
def start(cluster, tmp_path):
    yield from started_jobs(cluster, tmp_path)


KILL, STOP, SPIN = (2, "kill", "backward"), (0, "stop", "backward"), (3, "spin", "forward")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("faults", [[KILL, SPIN], pytest.param([KILL, STOP, SPIN], marks=pytest.mark.nightly)])
def test_failed_ranks_cost_no_other_process_and_no_finished_iteration(start, faults):
    job = start()
    job.await_iteration(4)
    for rank, what, where in faults:
        job.cause(rank, what, where)
        job.check_survivors(rank)
    job.check_losses("ddp")
