"""The agents notice ranks that hang, die or are slow, and name who holds the others up."""

from __future__ import annotations

import signal
import time

import pytest
from processes import kill_process
from watched_job import DEADLINE_S, FLOOR_MS, RANKS, WatchedJob


@pytest.fixture
def job(cluster, tmp_path):
    job = WatchedJob(cluster, tmp_path, "watched_trainer")
    yield job
    job.close()


def test_stopped_rank_is_named_until_it_continues(job):
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


def test_announced_pause_is_no_hang(job):
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


def test_agent_that_was_stopped_suspects_no_rank(job):
    job.await_learned()
    (agent,) = job.cluster.agents("n1")
    kill_process(agent, signal.SIGSTOP)
    time.sleep(3 * FLOOR_MS / 1000)
    kill_process(agent, signal.SIGCONT)
    job.await_progress(10)
    assert job.logged() == []


def test_ranks_that_close_their_engines_are_not_suspected(job):
    job.await_learned()
    last = job.status(0)["ranks"][0]["attempted"] + 50  # far enough that no rank is there yet
    whole = job.folder / "end.new"
    whole.write_text(str(last))
    whole.rename(job.folder / "end")
    for trainer in job.trainers:
        trainer.join(DEADLINE_S)
    assert [trainer.exitcode for trainer in job.trainers] == [0] * RANKS
    assert job.logged() == []
