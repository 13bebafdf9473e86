"""The agents name the rank that holds a real DDP job up, and nobody in an undisturbed one."""

from __future__ import annotations

import signal
import time

import pytest
from fork_server import TORCH
from watched_job import DEADLINE_S, FLOOR_MS, RANKS, WatchedJob

pytest.importorskip("torch")


@pytest.fixture
def job(cluster, tmp_path):
    job = WatchedJob(cluster, tmp_path, "watched_ddp_trainer", TORCH)
    yield job
    job.close()


def test_no_rank_is_suspected_in_an_undisturbed_run_or_a_pause(job):
    job.await_learned()
    job.await_progress(30)
    pause = job.command("pause", 1)
    deadline = time.monotonic() + DEADLINE_S
    while job.status(1)["ranks"][0]["paused"] != "eval":
        assert time.monotonic() < deadline
    time.sleep(3 * FLOOR_MS / 1000)
    pause.unlink()
    job.await_progress(10)
    assert job.logged() == []


def test_a_killed_rank_is_named_as_dead(job):
    job.await_learned()
    job.signal(2, signal.SIGKILL)
    job.await_culprit(2, "dead", "its process has ended")


@pytest.mark.nightly
def test_stopped_rank_is_named_until_it_continues(job):
    job.await_learned()
    job.signal(1, signal.SIGSTOP)
    job.await_culprit(1, "stopped", "its process is stopped (SIGSTOP)")
    job.signal(1, signal.SIGCONT)
    job.await_nobody()
    job.await_progress(3)


@pytest.mark.nightly
def test_a_rank_that_spins_in_the_forward_pass_is_named(job):
    job.await_learned()
    job.command("spin", 3)
    told = job.await_culprit(3, "computing", "has not joined communication ")
    assert told["culprits"][0]["process"] == "R"
    assert told["awaited"]["ranks_waiting"] == RANKS - 1


def test_a_rank_that_spins_in_the_backward_pass_is_named(job):
    """Its earlier buckets are under way, so it counts as communicating. The others have left that communication."""
    job.await_learned()
    job.command("spin_backward", 0)
    job.await_everywhere(
        lambda status: status["suspicion"] and [each["rank"] for each in status["suspicion"]["culprits"]] == [0])
    assert all("suspicion: rank 0 on node n0 " in line for line in job.logged())


@pytest.mark.nightly
def test_a_slow_rank_is_a_straggler(job):
    job.await_learned()
    job.command("slow", 2)
    job.await_culprit(2, "slow", " in an iteration, other ranks ")
    assert all("rank 2 on node n2 computes " in line for line in job.logged())


def test_hung_network_is_not_blamed_on_a_rank(job):
    job.await_learned()
    drop = job.drop_after(20)
    job.await_everywhere(
        lambda status: status["suspicion"] and status["suspicion"]["everybody_waits"]
        and "the network or the communication library hangs" in status["suspicion"]["text"])
    drop.unlink()
    job.await_nobody()
    job.await_progress(3)
