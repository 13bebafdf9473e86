"""As test_jit.py, at every place of an iteration, and with replicas that are spread over ranks. Nightly."""

from __future__ import annotations

import pytest
from jit_jobs import started_jobs

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(290)


@pytest.fixture
def start(cluster, tmp_path):
    yield from started_jobs(cluster, tmp_path)


PLACES = [(1, "kill", "forward"), (2, "kill", "all_reduce"), (3, "stop", "forward"), (0, "stop", "all_reduce"),
          (1, "spin", "all_reduce")]


def test_faults_at_each_place_cost_no_other_process_and_no_finished_iteration(start):
    job = start()
    job.await_iteration(4)
    for rank, what, where in PLACES:
        job.cause(rank, what, where)
        job.check_survivors(rank)
    job.check_losses("ddp")


def test_a_rank_that_dies_after_it_has_joined_costs_no_other_process(start):
    """Some of the others may have got the result, and have updated: then some of them load."""
    job = start()
    job.await_iteration(4)
    for rank in (1, 2):
        job.cause(rank, "kill", "joined")
        job.check_survivors(rank, same_state=False)
    job.check_losses("ddp")


@pytest.mark.parametrize("kind", ["ddp", "hsdp"])
def test_a_rank_that_dies_within_its_update_costs_no_finished_iteration(start, kind):
    """The others have finished that update, and keep what they have."""
    job = start(kind=kind, capture="jit", capture_every=10)
    job.await_iteration(4)
    job.cause(1, "kill", "update")
    job.check_survivors(1)
    end = max(job.newest()) + 6
    lost = job.begins(1)[-1].iteration
    losses, expected = job.run_to_the_end(end), job.undisturbed(kind, end)
    assert lost not in losses[1]  # it died before it could write that down
    losses[1][lost] = expected[1][lost]
    assert losses == expected


def test_replicas_that_are_spread_over_ranks_stay(start):
    job = start(kind="hsdp")
    job.await_iteration(4)
    for rank, what in ((1, "kill"), (2, "stop")):
        job.cause(rank, what, "backward")
        job.check_survivors(rank)
    job.check_losses("hsdp")
