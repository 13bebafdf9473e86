"""What a run that ends leaves behind."""

from __future__ import annotations

import json
import logging
import subprocess
import time

import pytest
from ckptengine import NotProtected, Protection, Stage
from conftest import build_file_of, together
from small_job import RANKS, Job, content


def committed(cluster) -> set[int]:
    told = subprocess.run([build_file_of("ckptctl"), "health", "--json", f"job={cluster.job}",
                           f"arena_dir={cluster.arena}"], capture_output=True, text=True, check=False)
    return json.loads(told.stdout)["committed"]["iteration"]


def capture(job: Job, iteration: int) -> None:
    for rank, (engine, state) in enumerate(zip(job.engines, job.states, strict=True)):
        state[:] = content(job.name(rank), iteration)
        assert engine.snapshot(iteration).taken


def test_the_last_snapshot_is_committed_when_close_returns(cluster):
    job = Job(cluster, False)
    job.start()
    job.restore()
    job.commit(1)
    capture(job, 2)
    together(*(engine.close for engine in job.engines))
    assert committed(cluster) == 2
    cluster.engines.clear()
    job.engines = []
    job.lose(0)
    job.start()
    job.assert_restored(2)


def test_close_does_not_wait_for_a_commit_that_cannot_come(cluster):
    """Nobody but rank 0 takes snapshots, so that nothing commits."""
    job = Job(cluster, False, unprotected_after_ms=200, close_timeout_ms=60_000)
    job.start()
    job.restore()
    job.commit(1)
    engine = job.engines[0]
    assert engine.snapshot(2).taken
    assert engine.before_update()
    deadline = time.monotonic() + 30
    while engine.health().state is not Protection.NOT_PROTECTED:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert engine.stage(2) is Stage.CAPTURED
    begun = time.monotonic()
    engine.close()
    assert time.monotonic() - begun < 30
    assert len(job.engines) == RANKS


def test_waiting_snapshot_is_committed_instead_of_skipped(cluster):
    job = Job(cluster, False)
    job.start()
    job.restore()
    for iteration in range(1, 6):  # with nothing between them, others would be skipped
        for rank, state in enumerate(job.states):
            state[:] = content(job.name(rank), iteration)
        tickets = together(*(
            lambda engine=engine, k=iteration: engine.snapshot(k, wait=True) for engine in job.engines))
        assert [ticket.stage for ticket in tickets] == [Stage.COMMITTED] * RANKS
    job.lose(2)
    job.start()
    job.assert_restored(5)


def test_engine_that_requires_protection_raises_without_it(cluster):
    job = Job(cluster, False, unprotected_after_ms=1500, require_protected=True)
    job.start()
    job.restore()
    job.commit(1)
    engine, iteration = job.engines[0], 1
    deadline = time.monotonic() + 30
    with pytest.raises(NotProtected) as raised:  # the other ranks have stopped
        while time.monotonic() < deadline:
            iteration += 1
            engine.snapshot(iteration)
            engine.before_update()
            time.sleep(0.02)
    assert raised.value.health.state is Protection.NOT_PROTECTED
    assert str(raised.value).startswith("the job is not protected: ") and raised.value.health.advice


def test_a_job_whose_restore_was_slow_has_time_to_commit_before_protection_is_required(cluster):
    job = Job(cluster, False, unprotected_after_ms=1500, require_protected=True)
    job.start()

    def restore_late():
        while job.engines[0].health().state is not Protection.NOT_PROTECTED:
            time.sleep(0.01)
        return job.engines[1].restore()

    together(job.engines[0].restore, restore_late, *(engine.restore for engine in job.engines[2:]))
    assert job.engines[0].health().state is Protection.NOT_PROTECTED
    assert job.engines[0].snapshot(0).taken


def test_restore_says_in_one_line_of_the_log_where_the_state_came_from(cluster, caplog):
    caplog.set_level(logging.INFO, "ckptengine")
    job = Job(cluster, False)
    job.start()
    assert str(job.restore()[0]) == "nothing is stored: a fresh start at iteration 0"
    job.commit(1)
    job.lose(1)
    job.start()
    job.assert_restored(1)
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("restored iteration 1")]
    assert len(lines) == RANKS and sum("from a peer's memory: 0.6 MiB in" in line for line in lines) == 1
