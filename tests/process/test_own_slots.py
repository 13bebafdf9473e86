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
from conftest import BUILD, ROOT, build_file_of
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
    if ticket.taken:
        assert job.engines[rank].before_update()
        assert ticket.wait(Stage.CAPTURED, DEADLINE_S * 1000), ticket.message
    return ticket


def commit_late(job: Job, iteration: int) -> None:
    """A checkpoint that is not committed before rank 0 is offered the next iteration."""
    first = capture(job, 0, iteration)
    deadline = time.monotonic() + DEADLINE_S
    while not first.taken:  # its slot is on its way back
        assert time.monotonic() < deadline, first.message
        iteration += 1
        first = capture(job, 0, iteration)
    assert job.engines[0].snapshot(iteration + 1).skipped
    for rank in range(1, RANKS):
        assert capture(job, rank, iteration).taken
    assert first.wait(Stage.COMMITTED, DEADLINE_S * 1000), first.message


def wait_for(cluster, rank: int, is_so) -> dict:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so(shown := own_slots(cluster, rank)):
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
    return shown


def test_two_slots_and_four_times_the_state_suffice_where_each_checkpoint_is_committed_before_the_next(cluster):
    job = begin(cluster)
    for iteration in range(1, 40):
        job.commit(iteration)
    for rank in range(RANKS):
        shown = own_slots(cluster, rank)
        assert shown["count"] == 2 and shown["refused"] == ""
        # The state, and small private shards with their room to grow.
        assert shown["all"] < 4 * (len(job.states[rank]) + 200_000)


def test_a_third_slot_is_added_where_captures_wait_for_replication_and_ends_the_skips(cluster):
    job = begin(cluster)
    for late in range(LATE_CAPTURES + 1):
        commit_late(job, 1 + 100 * late)
    wait_for(cluster, 0, lambda shown: shown["count"] == 3)
    job.commit(5000)
    assert capture(job, 0, 5001).taken
    deadline = time.monotonic() + DEADLINE_S
    iteration = 5002  # nothing is committed meanwhile, so only a third slot can be free
    while not capture(job, 0, iteration).taken:
        assert time.monotonic() < deadline
        iteration += 1
    job.start()
    job.assert_restored(5000)


def test_a_third_slot_for_which_there_is_no_memory_is_told_and_checkpoints_go_on(cluster):
    job = begin(cluster, arena_bytes="3584KiB")
    for late in range(LATE_CAPTURES + 1):
        commit_late(job, 1 + 100 * late)
    shown = wait_for(cluster, 0, lambda shown: shown["refused"])
    assert shown["count"] == 2 and "arena_bytes" in shown["refused"]
    commit_late(job, 2000)
    job.commit(3000)
    job.start()
    job.assert_restored(3000)


def test_a_third_slot_is_found_again_by_the_next_agent(cluster):
    job = begin(cluster)
    for late in range(LATE_CAPTURES + 1):
        commit_late(job, 1 + 100 * late)
    wait_for(cluster, 0, lambda shown: shown["count"] == 3)
    job.commit(2000)
    cluster.kill_agents()
    job.start()
    job.assert_restored(2000)
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


@pytest.mark.parametrize("commits", [LATE_CAPTURES - 1, LATE_CAPTURES, LATE_CAPTURES + 1])
@pytest.mark.parametrize("lost", ["trainers", "agent", "node"])
def test_whoever_is_killed_while_a_third_slot_is_added_the_newest_commit_is_restored(cluster, lost, commits):
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
