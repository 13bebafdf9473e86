"""Jobs of real agents whose trainers tell when they communicate: when checkpoints leave, and that they do."""

from __future__ import annotations

import json
import subprocess
import threading
import time

import pytest
from ckptengine import Engine, Stage, Ticket
from conftest import build_file_of, together

BYTES = 900_000
RANKS = 2


class Job:
    """Two ranks on two nodes that iterate in step, as training does."""

    def __init__(self, cluster, **options) -> None:
        self.cluster = cluster
        self.options = {"profile_iterations": 4, "chunk_bytes": 65536} | options
        self.iteration = 0
        self.engines: list[Engine] = []
        self.tickets: list[Ticket] = []  # of the last iteration

    def start(self) -> None:
        self.cluster.close_engines()
        self.engines = together(*(
            lambda rank=rank: self.cluster.engine(rank, RANKS, **self.options) for rank in range(RANKS)))
        self.states = [bytearray(BYTES) for _ in self.engines]
        for engine, state in zip(self.engines, self.states, strict=True):
            engine.register("state", state)
        starts = together(*(engine.restore for engine in self.engines))
        self.iteration = starts[0].next_iteration

    def iterate(self, count: int, communicate: bool = True) -> None:
        for _ in range(count):
            for _ in range(2 if communicate else 0):
                for engine in self.engines:
                    engine.comm_begin()
                time.sleep(0.004)
                for engine in self.engines:
                    engine.comm_end()
                time.sleep(0.008)
            self.tickets = []
            for engine, state in zip(self.engines, self.states, strict=True):
                engine.before_update()
                state[:8] = self.iteration.to_bytes(8, "little")
                self.tickets.append(engine.snapshot(self.iteration))
            for engine in self.engines:
                engine.before_update()
            self.iteration += 1

    def committed(self) -> int:
        return min(engine.stats().committed_iteration for engine in self.engines)

    def iterate_until_committed(self, iteration: int) -> None:
        deadline = time.monotonic() + 60
        while self.committed() < iteration:
            assert time.monotonic() < deadline, f"iteration {iteration} is not committed, only {self.committed()} is"
            self.iterate(1)

    def ctl(self, *words: object) -> str:
        where = [f"--arena-dir={self.cluster.arena}", f"--coordination={self.cluster.coordination}",
                 f"--job={self.cluster.job}"]
        command = [str(word) for word in [build_file_of("ckptctl"), *words, *where]]
        is_status = words[0] == "status"  # which says with its exit status whether the job is protected
        return subprocess.run(command, capture_output=True, text=True, check=not is_status, timeout=30).stdout

    def schedules(self) -> list[dict]:
        return [agent["schedule"] for agent in json.loads(self.ctl("status", "--json"))["agents"]]


@pytest.fixture
def job(cluster):
    return Job(cluster)


def traced(job: Job, folder) -> list[dict]:
    path = folder / "trace.json"
    job.ctl("trace", "--iterations", 1000, "--output", path)
    return json.loads(path.read_text())["traceEvents"]


def extents(events: list[dict], node: int, what: str) -> list[tuple[float, float]]:
    """Of all events in the tracks of a node's process that are named so."""
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    nodes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    return [(event["ts"], event["ts"] + event["dur"]) for event in events
            if event["ph"] == "X" and f"n{node}" in nodes[event["pid"]].split()
            and what in names[event["pid"], event["tid"]]]


def test_a_communication_of_training_meets_one_chunk_at_most(job, tmp_path):
    job.start()
    job.iterate_until_committed(12)
    job.iterate_until_committed(job.committed() + 10)
    events = traced(job, tmp_path)
    for node in range(RANKS):
        chunks, communications = extents(events, node, "chunks"), extents(events, node, "communication")
        assert len(chunks) > 20
        assert len(communications) > 20
        for begin, end in communications:
            assert sum(first < end and last > begin for first, last in chunks) <= 1


def test_checkpoints_are_committed_while_the_first_profile_is_learned(job):
    job.options["profile_iterations"] = 500
    job.start()
    job.iterate_until_committed(3)
    assert [schedule["state"] for schedule in job.schedules()] == ["learning"] * RANKS


def test_a_profile_is_learned_beside_checkpoint_traffic(job):
    job.options["profile_iterations"] = 8
    job.start()
    job.iterate_until_committed(9)
    job.iterate(4)
    for schedule in job.schedules():
        assert schedule["state"] == "idle spans"
        assert [len(rank["spans"]) for rank in schedule["ranks"]] == [3]
        assert schedule["plan"] is None or schedule["plan"]["bytes"] >= BYTES


def test_a_profile_is_there_for_the_next_incarnation(job):
    job.start()
    job.iterate_until_committed(6)
    job.start()
    assert job.iteration > 6
    job.iterate(1)
    assert [schedule["state"] for schedule in job.schedules()] == ["idle spans"] * RANKS
    job.iterate_until_committed(job.iteration)


def test_trainer_without_marks_is_served_immediately(job):
    job.start()
    job.iterate(1, communicate=False)
    assert all(ticket.wait(Stage.COMMITTED, 20_000) for ticket in job.tickets)
    assert [schedule for schedule in job.schedules()] == [None] * RANKS


def test_trainer_that_ends_in_a_communication_blocks_no_other(job):
    job.start()
    job.iterate_until_committed(6)
    for engine in job.engines:
        engine.comm_begin()
    job.start()
    committed = job.iteration - 1
    assert committed >= 6
    job.iterate_until_committed(committed + 3)


def test_communication_without_a_gap_does_not_starve_checkpoints(job):
    job.start()
    job.iterate_until_committed(6)
    stop = threading.Event()

    def communicate() -> None:
        stream = 1
        for engine in job.engines:
            engine.comm_begin(stream)
        while not stop.wait(0.005):
            for engine in job.engines:
                engine.comm_begin(3 - stream)
                engine.comm_end(stream)
            stream = 3 - stream
        for engine in job.engines:
            engine.comm_end(stream)

    thread = threading.Thread(target=communicate)
    thread.start()
    try:
        job.iterate_until_committed(job.committed() + 2)
    finally:
        stop.set()
        thread.join()
    assert any(schedule["forced"] > 0 for schedule in job.schedules())
