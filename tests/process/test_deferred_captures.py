"""Snapshots that find both slots of their rank in use: one has the last commit, the other is being replicated."""

from __future__ import annotations

import logging
import signal
import time

import pytest
from ckptengine import Stage, Status
from conftest import together
from processes import has_ended, kill_process
from small_job import DEADLINE_S, RANKS, Job, content
from test_last_checkpoint import committed
from test_own_slots import own_slots


def begin(cluster, **options) -> Job:
    job = Job(cluster, False, **options)
    job.start()
    job.restore()
    job.commit(0)
    return job


def offer(job: Job, rank: int, iteration: int):
    job.states[rank][:] = content(job.name(rank), iteration)
    ticket = job.engines[rank].snapshot(iteration)
    assert ticket.taken, ticket.message
    return ticket


def finish(job: Job, rank: int, ticket) -> None:
    assert ticket.wait(Stage.CAPTURING, DEADLINE_S * 1000), ticket.message
    assert job.engines[rank].before_update(), ticket.message


def use_both_slots(job: Job, rank: int) -> None:
    """The rank captures alone, so that nothing is committed."""
    finish(job, rank, offer(job, rank, 1))


def commit_next(job: Job, iteration: int) -> int:
    """Commits this iteration or a later one, and returns it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for rank, state in enumerate(job.states):
            state[:] = content(job.name(rank), iteration)
        tickets = [engine.snapshot(iteration) for engine in job.engines]
        for ticket, engine in zip(tickets, job.engines, strict=True):
            ticket.wait(Stage.CAPTURING, 500)
            engine.before_update()
        if all(ticket.taken and ticket.wait(Stage.COMMITTED, 2000) for ticket in tickets):
            return iteration
        assert time.monotonic() < deadline
        iteration += 1


@pytest.mark.parametrize("slots", [2, 3])
def test_two_slots_skip_no_iteration_if_replication_is_fast_enough(cluster, slots):
    """Each snapshot comes right after the capture of the one before, and its iteration lasts until there is a slot."""
    job = begin(cluster, own_slots=slots)
    iterations = 60

    def train(rank: int) -> None:
        for iteration in range(1, iterations):
            finish(job, rank, offer(job, rank, iteration))

    together(*(lambda rank=rank: train(rank) for rank in range(RANKS)))
    for rank, engine in enumerate(job.engines):
        assert engine.stats().skipped == 0
        assert own_slots(cluster, rank)["count"] == slots
        assert engine._wait(iterations - 1, Stage.COMMITTED, DEADLINE_S * 1000)[0] is Status.OK
    job.lose(1)
    job.start()
    job.assert_restored(iterations - 1)


def test_snapshot_without_a_slot_until_the_update_is_skipped_silently(cluster, caplog):
    job = begin(cluster)
    use_both_slots(job, 0)
    caplog.clear()
    with caplog.at_level(logging.INFO, "ckptengine"):
        ticket = offer(job, 0, 2)
        assert ticket.stage is Stage.NONE
        assert not job.engines[0].before_update()
    assert ticket.skipped and not ticket and "all their copies" in ticket.message
    assert not caplog.records
    assert job.engines[0].stats().skipped == 1


@pytest.mark.parametrize("strike", [signal.SIGSTOP, signal.SIGKILL])
def test_agent_that_stops_granting_slots_delays_nothing(cluster, strike):
    job = begin(cluster)
    use_both_slots(job, 0)
    ticket = offer(job, 0, 2)
    (pid,) = cluster.agents("n0")
    kill_process(pid, strike)
    deadline = time.monotonic() + DEADLINE_S
    while strike is signal.SIGKILL and not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert ticket.stage is Stage.NONE
    assert not job.engines[0].before_update() and ticket.skipped
    for iteration in range(3, 30):
        if job.engines[0].snapshot(iteration).taken:
            job.engines[0].before_update()
    if strike is signal.SIGSTOP:
        kill_process(pid, signal.SIGCONT)
    last = commit_next(job, 30)
    job.start()
    job.assert_restored(last)


def test_close_captures_and_commits_a_waiting_snapshot(cluster):
    job = begin(cluster)
    for rank in range(RANKS - 1):
        use_both_slots(job, rank)
        assert offer(job, rank, 2).stage is Stage.NONE
    use_both_slots(job, RANKS - 1)
    offer(job, RANKS - 1, 2)
    together(*(engine.close for engine in job.engines))
    assert committed(cluster) == 2
    cluster.engines.clear()
    job.engines = []
    job.start()
    job.assert_restored(2)


def test_last_snapshot_of_a_job_waits_for_its_slot(cluster):
    job = begin(cluster)
    last = RANKS - 1
    for rank in range(last):
        use_both_slots(job, rank)
        assert offer(job, rank, 2).stage is Stage.NONE
    late = offer(job, last, 1)

    def end(rank: int):
        if rank == last:
            finish(job, last, late)
        job.states[rank][:] = content(job.name(rank), 3)
        return job.engines[rank].snapshot(3, wait=True, timeout_ms=DEADLINE_S * 1000)

    tickets = together(*(lambda rank=rank: end(rank) for rank in range(RANKS)))
    assert [ticket.stage for ticket in tickets] == [Stage.COMMITTED] * RANKS
    job.start()
    job.assert_restored(3)
