"""As test_jit.py, at every place of an iteration, with other kinds of parallelism, and while other processes fail, too.
Nightly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import wipe
from jit_jobs import CAPTURE_EVERY, RANKS, started_jobs
from processes import kill_process

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(290)]


@pytest.fixture
def start(cluster, tmp_path):
    yield from started_jobs(cluster, tmp_path)


PLACES = [(1, "kill", "forward"), (2, "kill", "all_reduce"), (3, "stop", "forward"), (0, "stop", "all_reduce"),
          (1, "spin", "all_reduce")]


def test_fault_at_any_point_costs_no_other_process_and_no_finished_iteration(start):
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


def test_ranks_with_sharded_replicas_survive(start):
    job = start(kind="hsdp")
    job.await_iteration(4)
    for rank, what in ((1, "kill"), (2, "stop")):
        job.cause(rank, what, "backward")
        job.check_survivors(rank)
    job.check_losses("hsdp")


def test_pipeline_stages_with_data_parallel_ranks_survive(start):
    job = start(kind="pipeline")
    job.await_iteration(4)
    for rank, what, where in ((0, "kill", "forward"), (3, "kill", "backward"), (1, "stop", "backward")):
        job.cause(rank, what, where)
        job.check_survivors(rank)
    job.check_losses("pipeline")


@pytest.mark.parametrize("kind", ["hsdp", "fsdp", "tensor", "pipeline"])
def test_hung_rank_is_named_and_replaced_in_any_kind_of_parallelism(start, kind):
    """Full shards have no replica. So they are captured in every iteration, and all ranks load."""
    job = start(kind=kind, capture="auto")
    job.await_iteration(14)
    for rank, where in ((1, "forward"), (2, "backward")):
        job.cause(rank, "spin", where)
        job.check_survivors(rank, same_state=kind != "fsdp")
        job.await_iteration(job.begins(0)[-1].iteration + 10)
    job.check_losses(kind)


def test_false_alarm_costs_no_process_and_unstoppable_survivor_is_replaced(start):
    job = start()
    job.await_iteration(14)
    job.cause(1, "late", "forward")
    job.check_survivors()
    live, number = job.begins(0)[-1].iteration, len(job.begins(0))
    assert live >= 14  # at most the minibatch was lost

    job.fault(1, "spin", "forward")  # it holds the interpreter lock, so only the engine's own thread can capture it
    job.await_fault(1)
    kill_process(job.pids()[2])
    job.await_begins(number + 1)
    job.check_survivors(1, 2)
    begun_s = job.begins(0)[number].at_s
    done = [int(line[0]) for line in job.lines("losses", 0) if float(line[2]) < begun_s]
    assert job.begins(0)[number].iteration == max(done)
    job.check_losses("ddp")


# ---- Another process fails at each step of a recovery ----


def is_interrupted(job, rank):
    told = job.told_times("training is interrupted")
    return lambda: job.told_times("training is interrupted") > told


def is_started_anew(job, rank):
    told = job.told_times(f"rank {rank} starts anew")
    return lambda: job.told_times(f"rank {rank} starts anew") > told


def restores(job, rank):
    times = len(job.restores(rank))
    return lambda: len(job.restores(rank)) > times


STEPS = [is_interrupted, is_started_anew, restores]


def fail_until(job, rank: int, step) -> int:
    """A rank dies. Waits for the step, and returns the number of the next call of the training function."""
    number, is_so = len(job.begins(0)), step(job, rank)
    job.fault(rank, "kill", "backward")
    job.until(is_so)
    return number


def go_on(job, number: int, *failed: int) -> None:
    job.await_begins(number + 1)
    job.check_survivors(*failed)
    job.await_iteration(job.begins(0)[number].iteration + 5)


def test_agents_that_die_at_each_step_of_a_recovery_lose_nothing(start):
    job = start()
    job.await_iteration(4)
    for step in STEPS:
        leader = job.status("n0")["leader"]
        number = fail_until(job, 1, step)
        job.kill_agents(*{leader, "n3"})
        go_on(job, number, 1)
    job.check_losses("ddp")


def test_survivor_that_dies_at_any_step_of_a_recovery_is_replaced(start):
    job = start()
    job.await_iteration(4)
    for step in STEPS:
        number = fail_until(job, 1, step)
        kill_process(job.pids()[2])
        go_on(job, number, 1, 2)
    job.check_losses("ddp")


def test_a_newcomer_that_dies_while_it_restores_is_replaced(start):
    job = start()
    job.await_iteration(4)
    number = len(job.begins(0))
    job.fault(1, "kill", "forward")
    job.await_fault(1)
    job.fault(1, "kill", "restore")
    go_on(job, number, 1)
    assert len(set(job.restores(1))) == 3
    job.check_losses("ddp")


# ---- Nothing is live, or nothing is stored ----


def test_last_complete_capture_is_restored_if_all_replicas_die(start):
    job = start()
    job.await_iteration(24)
    number, newest = len(job.begins(0)), max(job.newest())
    for pid in job.pids():
        kill_process(pid)
    job.await_begins(number + 1)
    restored = {job.begins(rank)[number].iteration for rank in range(RANKS)}
    assert len(restored) == 1 and min(restored) >= newest - CAPTURE_EVERY
    job.await_iteration(min(restored) + 5)
    job.check_losses("ddp")


def test_storage_is_restored_if_all_memory_is_lost(start, tmp_path):
    (tmp_path / "storage").mkdir()
    job = start(storage=tmp_path / "storage", storage_every=1)
    job.until(lambda: ((job.status("n0").get("storage") or {}).get("stored") or {"iteration": -1})["iteration"] >= 20)
    number = len(job.begins(0))
    for pid in job.pids():
        kill_process(pid)
    job.kill_agents(*(f"n{rank}" for rank in range(RANKS)))
    wipe(job.cluster.arena / job.cluster.job)
    job.await_begins(number + 1)
    # Whoever comes late may get parts from a node that has read them already.
    assert "PERSISTENT" in (tiers := {job.begins(rank)[number].tier for rank in range(RANKS)}) and tiers <= {
        "PERSISTENT", "PEER"}
    restored = {job.begins(rank)[number].iteration for rank in range(RANKS)}
    assert len(restored) == 1 and min(restored) >= 20
    job.await_iteration(min(restored) + 5)
    job.check_losses("ddp")


def test_all_ranks_restart_if_one_dies_before_the_first_checkpoint(start):
    job = start(first=(1, "kill", "backward"))
    job.await_iteration(4)
    assert job.told_times("so all ranks start anew") >= 1
    assert [len(set(job.restores(rank))) > 1 for rank in range(RANKS)] == [True] * RANKS
    job.check_losses("ddp")


# ---- Nothing has failed ----


def test_slow_rank_and_announced_pause_do_not_halt_the_job(start):
    job = start()
    job.await_iteration(14)
    job.fault(2, "slow", "begin")
    job.until(lambda: "computes" in ((job.status("n0").get("suspicion") or {}).get("text") or ""))
    job.await_fault(2)
    job.await_iteration(max(job.newest()) + 20)
    job.fault(3, "pause", "begin")
    job.await_fault(3)
    job.await_iteration(max(job.newest()) + 5)
    assert [len(job.begins(rank)) for rank in range(RANKS)] == [1] * RANKS, job.told()
    job.check_losses("ddp")


def resources(pids: list[int]) -> list[tuple[int, int, int]]:
    """Open files, threads and MiB of memory of each process."""
    return [(len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task")),
             int(Path(f"/proc/{pid}/statm").read_text().split()[1]) // 256) for pid in pids]


def test_fifty_interruptions_leave_nothing_behind(start):
    job = start()
    job.await_iteration(14)
    pids, before = job.pids(), []
    for count in range(50):
        number = len(job.begins(0))
        job.fault(count % RANKS, "trouble", "begin")
        job.await_begins(number + 1)
        job.until(lambda: min(job.newest()) > job.begins(0)[number].iteration + 2)  # noqa: B023
        if count == 9:
            before = resources(pids)
    assert job.pids() == pids
    for first, last in zip(before, resources(pids), strict=True):
        assert last[0] <= first[0] + 4 and last[1] <= first[1] + 4 and last[2] <= first[2] + 32, (first, last)
    job.check_losses("ddp")
