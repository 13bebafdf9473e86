"""What a run that ends leaves behind."""

from __future__ import annotations

import json
import subprocess
import time

from ckptengine import Protection, Stage
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


def test_close_does_not_wait_for_a_commit_that_is_not_in_sight(cluster):
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
