"""A rank of a torch job dies or hangs: the healthy processes stay, load nothing, and the losses go on bit for bit."""

from __future__ import annotations

import pytest
from jit_jobs import started_jobs
from processes import kill_process

pytest.importorskip("torch")


@pytest.fixture
def start(cluster, tmp_path):
    yield from started_jobs(cluster, tmp_path)


@pytest.mark.timeout(240)  # under ckptrun, with seven processes that import torch
def test_a_killed_a_stopped_and_a_spinning_rank_cost_no_other_process_and_no_finished_iteration(start):
    job = start()
    job.await_iteration(4)
    for rank, what, where in [(2, "kill", "backward"), (0, "stop", "backward"), (3, "spin", "forward")]:
        job.cause(rank, what, where)
        job.check_survivors(rank)
    job.check_losses("ddp")


@pytest.mark.timeout(240)  # likewise
def test_a_false_alarm_costs_no_process_and_a_survivor_that_cannot_stop_is_replaced_without_loss(start):
    job = start()
    job.await_iteration(4)
    job.cause(1, "late", "forward")
    job.check_survivors()
    live, number = job.begins(0)[-1].iteration, len(job.begins(0))
    assert live >= 4  # at most the minibatch was lost

    job.fault(1, "spin", "forward")  # it holds the interpreter lock, so only the engine's own thread can capture it
    job.await_fault(1)
    kill_process(job.pids()[2])
    job.await_begins(number + 1)
    job.check_survivors(1, 2)
    begun_s = job.begins(0)[number].at_s
    done = [int(line[0]) for line in job.lines("losses", 0) if float(line[2]) < begun_s]
    assert job.begins(0)[number].iteration == max(done)
    job.check_losses("ddp")
