"""ckptctl trace and the schedule in ckptctl status, of agents that send between real communications."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from ckptengine import Stage
from conftest import LocalJob, build_file_of, together
from small_job import BYTES, Job

RANKS = 4  # of a small job
ITERATIONS_MAX = 200


def ckptctl(cluster, *words: object) -> subprocess.CompletedProcess:
    where = ["--arena-dir", cluster.arena, "--coordination", cluster.coordination]
    command = [build_file_of("ckptctl"), *words, *where]
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=60)


def iterate(job: Job, iteration: int) -> list:
    tickets = []
    for engine in job.engines:
        for _ in range(2):
            with engine.communication():
                pass
        engine.before_update()
        tickets.append(engine.snapshot(iteration))
    return tickets


def train(job: Job) -> tuple[int, int]:
    """Iterates until one is committed everywhere: that one, and how many iterations it took."""
    newest, tickets, offered = 0, [], []
    for iteration in range(ITERATIONS_MAX):
        before, offered = offered, iterate(job, iteration)
        if before and all(ticket.taken for ticket in before):
            newest, tickets = iteration - 1, before
        if tickets and all(together(*(lambda t=ticket: t.wait(Stage.COMMITTED, 50) for ticket in tickets))):
            return newest, iteration + 1
    raise AssertionError("nothing is committed")


def tracks(trace: dict) -> dict[str, dict[str, list[dict]]]:
    """What is shown, by node and track."""
    names = {
        (event["pid"], event.get("tid")): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    found: dict = defaultdict(lambda: defaultdict(list))
    for event in trace["traceEvents"]:
        if event["ph"] != "M":
            track = names[event["pid"], event["tid"]].split(" (")[0]
            found[names[event["pid"], None]][track].append(event)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job that trains until a checkpoint is committed: its trace, and what `ckptctl status` said before and after."""
    name = f"ckptengine-test-{uuid.uuid4().hex[:12]}"
    cluster = LocalJob(Path("/dev/shm") / name, Path("/tmp") / name)
    folder = tmp_path_factory.mktemp("trace")
    try:
        job = Job(cluster, shared=False, profile_iterations=2)
        job.start()
        job.restore()
        before = ckptctl(cluster, "status")
        committed, iterations = train(job)
        after = ckptctl(cluster, "status")
        iterate(job, iterations)  # ends the iteration in which it was committed
        output, plot = folder / "trace.json", folder / "trace.svg"
        ran = ckptctl(cluster, "trace", "--iterations", 1000, "--output", output, "--plot", plot)
        assert ran.returncode == 0, ran.stderr
        yield SimpleNamespace(
            job=cluster.job, said=ran.stdout, nodes=tracks(json.loads(output.read_text())), plot=plot.read_text(),
            committed=committed, iterations=iterations + 1, before=before, after=after)
    finally:
        cluster.close()


def test_trace_shows_events_of_every_agent(trained):
    assert f"of {RANKS} nodes" in trained.said and "ui.perfetto.dev" in trained.said
    assert list(trained.nodes) == [f"node n{rank} of job {trained.job}" for rank in range(RANKS)]
    for rank, shown in enumerate(trained.nodes.values()):
        # What is shown ends with an iteration of one rank: of others, one more or less is in it.
        assert abs(len(shown[f"rank {rank}: iterations"]) - trained.iterations) <= 1
        assert abs(len(shown[f"rank {rank}: communication"]) - 2 * (trained.iterations - 1)) <= 2
        assert shown[f"rank {rank}: idle spans"]
    for track in ("rank 0: communication", "rank 3: communication", "node n2"):
        assert track in trained.plot


def test_trace_shows_chunks_and_their_commit(trained):
    for shown in trained.nodes.values():
        chunks = [
            event
            for track, events in shown.items()
            if track.startswith("chunks to ")
            for event in events
            if event["args"]["iteration"] == trained.committed
        ]
        assert sum(chunk["args"]["bytes"] for chunk in chunks) >= BYTES
        commits = [event for event in shown["commits"] if event["args"]["iteration"] == trained.committed]
        assert len(commits) == 1
        assert all(chunk["ts"] <= commits[0]["ts"] for chunk in chunks)


def test_status_shows_the_schedule(trained):
    assert "schedule:" not in trained.before.stdout  # nothing was told of communication
    assert trained.after.returncode == 0, trained.after.stderr
    assert trained.after.stdout.count("  schedule: ") == RANKS
    for rank in range(RANKS):
        assert f"    rank {rank}: " in trained.after.stdout
