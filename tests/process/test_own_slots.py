"""How many slots a rank has of its own: two, and a third where its captures wait for replication."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ckptengine import Stage
from conftest import BUILD, ROOT, build_file_of, nightly_but
from processes import has_ended, kill_process
from small_job import DEADLINE_S, RANKS, Job, content

LATE_CAPTURES = 8


def own_slots(cluster, rank: int) -> dict:
    where = ["--job", cluster.job, "--arena-dir", cluster.arena, "--node", f"n{rank}"]
    printed = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where], check=False, capture_output=True)
    [agent] = json.loads(printed.stdout)["agents"]
    [shown] = [shown for shown in agent["ranks"] if shown["rank"] == rank]
    return shown["own_slots"] | {"all": sum(segment["bytes"] for segment in agent["segments"])}


def begin(cluster, **options) -> Job:
    job = Job(cluster, False, **options)
    job.start()
    job.restore()
    job.commit(0)  # from now on one slot holds a committed checkpoint
    return job


def capture(job: Job, rank: int, iteration: int):
    """Rank `rank` alone captures: nothing is committed before the others do the same."""
    job.states[rank][:] = content(job.name(rank), iteration)
    ticket = job.engines[rank].snapshot(iteration)
    if ticket.taken and job.engines[rank].before_update():
        assert ticket.wait(Stage.CAPTURED, DEADLINE_S * 1000), ticket.message
    return ticket


def try_late(job: Job, iteration: int) -> bool:
    """Rank 0 is offered the next iteration before the others capture this one, so it finds no slot but a third one."""
    first = capture(job, 0, iteration)
    if first.taken and job.engines[0].snapshot(iteration + 1).taken:
        job.engines[0].before_update()
    # All ranks are offered the iteration. Where one has no slot back yet, the leader abandons the checkpoint.
    others = [capture(job, rank, iteration).taken for rank in range(1, RANKS)]
    return first.taken and all(others) and bool(first.wait(Stage.COMMITTED, DEADLINE_S * 1000))


def commit_late(job: Job, iteration: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not try_late(job, iteration):
        assert time.monotonic() < deadline
        iteration += 2


def commit_late_until(cluster, job: Job, is_so) -> dict:
    """Until the agent of rank 0 shows what is waited for; returns that."""
    for late in range(4 * LATE_CAPTURES):
        if is_so(shown := own_slots(cluster, 0)):
            return shown
        commit_late(job, 1 + 100 * late)
    return wait_for(cluster, 0, is_so)


def commit_next(job: Job, iteration: int) -> int:
    """Commits this iteration or a later one, and returns it. The leader may skip some for all ranks, because rank 0 has
    captured one alone."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        tickets = [capture(job, rank, iteration) for rank in range(RANKS)]
        if all(ticket.taken and ticket.wait(Stage.COMMITTED, 2000) for ticket in tickets):
            return iteration
        assert time.monotonic() < deadline
        iteration += 2


def wait_for(cluster, rank: int, is_so) -> dict:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so(shown := own_slots(cluster, rank)):
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
    return shown


def test_two_slots_and_four_times_the_state_suffice_for_fast_commits(cluster):
    job = begin(cluster)
    for iteration in range(1, 40):
        job.commit(iteration)
    for rank in range(RANKS):
        shown = own_slots(cluster, rank)
        assert shown["count"] == 2 and shown["refused"] == ""
        # The state, and small private shards with their room to grow.
        assert shown["all"] < 4 * (len(job.states[rank]) + 200_000)


def test_third_slot_ends_skips_caused_by_slow_replication(cluster):
    job = begin(cluster)
    commit_late_until(cluster, job, lambda shown: shown["count"] == 3)
    committed = commit_next(job, 5000)
    deadline = time.monotonic() + DEADLINE_S
    iteration, taken = committed, 0
    while taken < 2:  # nothing is committed meanwhile, so the second needs a third slot
        assert time.monotonic() < deadline
        iteration += 1
        taken += capture(job, 0, iteration).taken
    job.start()
    job.assert_restored(committed)


def test_missing_memory_for_a_third_slot_is_reported_and_checkpoints_continue(cluster):
    job = begin(cluster, arena_bytes="3584KiB")
    shown = commit_late_until(cluster, job, lambda shown: shown["refused"])
    assert shown["count"] == 2 and "arena_bytes" in shown["refused"]
    committed = commit_next(job, 6000)
    job.start()
    job.assert_restored(committed)


def test_a_third_slot_is_found_again_by_the_next_agent(cluster):
    job = begin(cluster)
    commit_late_until(cluster, job, lambda shown: shown["count"] == 3)
    committed = commit_next(job, 6000)
    cluster.kill_agents()
    job.start()
    job.assert_restored(committed)
    assert own_slots(cluster, 0)["count"] == 3


# Every other iteration is offered while the one before it is replicated, so that its rank soon gets a third slot.
TRAINER = """
import json, sys
from ckptengine import Engine, Stage
from small_job import BYTES, content
rank, options = int(sys.argv[1]), json.loads(sys.argv[2])
state = bytearray(BYTES)
with Engine(**options) as engine:
    engine.register("state", state)
    start = engine.restore()
    assert not start.found or state == content(f"rank{rank}", start.iteration)
    print(start.iteration, flush=True)
    iteration = start.next_iteration
    while True:
        state[:] = content(f"rank{rank}", iteration)
        ticket = engine.snapshot(iteration)
        engine.before_update()
        engine.snapshot(iteration + 1)
        engine.discard()
        if ticket.taken and ticket.wait(Stage.COMMITTED, 2000):
            print(iteration, flush=True)
        iteration += 2
"""


class Trainers:
    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.processes: list[subprocess.Popen] = []

    def start(self) -> list[int]:
        """The iterations that they restored."""
        path = os.pathsep.join(str(ROOT / folder) for folder in ("python", "tests/process", "tests/chaos", "scripts"))
        environment = os.environ | {"PYTHONPATH": path, "CKPTENGINE_BUILD_DIR": str(BUILD)}
        for rank in range(2):
            options = self.cluster.options(rank, 2, library=build_file_of("libckptengine.so"), shard=f"rank{rank}")
            words = [sys.executable, "-c", TRAINER, str(rank), json.dumps(options, default=str)]
            self.processes.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment))
        return [int(process.stdout.readline()) for process in self.processes]

    def commits(self, count: int) -> int:
        """The iteration of rank 0's commit number `count` from now on."""
        for _ in range(count):
            line = self.processes[0].stdout.readline()
        return int(line)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        self.processes.clear()


def lose_agent(cluster, with_memory: bool) -> None:
    [pid] = cluster.agents("n0")
    kill_process(pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE_S
    while not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for file in cluster.arena.glob("*/n0/*") if with_memory else []:
        Path(file).unlink()


KILLS = [(lost, LATE_CAPTURES + more) for lost in ("trainers", "agent", "node") for more in (-1, 0, 1)]
KILLS_OF_EACH_CHANGE = [("agent", LATE_CAPTURES), ("node", LATE_CAPTURES + 1)]


@pytest.mark.parametrize(("lost", "commits"), nightly_but(KILLS_OF_EACH_CHANGE, KILLS))
def test_newest_commit_is_restored_after_a_kill_while_a_third_slot_is_added(cluster, lost, commits):
    trainers = Trainers(cluster)
    try:
        assert trainers.start() == [-1, -1]
        committed = trainers.commits(commits)
        if lost != "trainers":
            lose_agent(cluster, with_memory=lost == "node")
        trainers.kill()
        restored = trainers.start()
        assert restored[0] == restored[1] >= committed
        assert trainers.commits(1) > restored[0]
    finally:
        trainers.kill()
