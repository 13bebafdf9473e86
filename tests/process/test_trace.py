"""ckptctl trace and the schedule in ckptctl status, of agents that send between real communications."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict

from ckptengine import Stage
from conftest import build_file_of, together
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


def test_trace_shows_events_of_every_agent(cluster, tmp_path):
    job = Job(cluster, shared=False, profile_iterations=2)
    job.start()
    job.restore()
    _, iterations = train(job)
    output, plot = tmp_path / "trace.json", tmp_path / "trace.svg"
    ran = ckptctl(cluster, "trace", "--iterations", 1000, "--output", output, "--plot", plot)
    assert ran.returncode == 0, ran.stderr
    assert f"of {RANKS} nodes" in ran.stdout and "ui.perfetto.dev" in ran.stdout
    nodes = tracks(json.loads(output.read_text()))
    assert list(nodes) == [f"node n{rank} of job {cluster.job}" for rank in range(RANKS)]
    for rank, shown in enumerate(nodes.values()):
        # What is shown ends with an iteration of one rank: of others, one more or less is in it.
        assert abs(len(shown[f"rank {rank}: iterations"]) - iterations) <= 1
        assert abs(len(shown[f"rank {rank}: communication"]) - 2 * (iterations - 1)) <= 2
        assert shown[f"rank {rank}: idle spans"]
    svg = plot.read_text()
    for track in ("rank 0: communication", "rank 3: communication", "node n2"):
        assert track in svg


def test_trace_shows_chunks_and_their_commit(cluster, tmp_path):
    job = Job(cluster, shared=False, profile_iterations=2)
    job.start()
    job.restore()
    committed, iterations = train(job)
    iterate(job, iterations)  # ends the iteration in which it was committed
    output = tmp_path / "trace.json"
    ran = ckptctl(cluster, "trace", "--iterations", 1000, "--output", output)
    assert ran.returncode == 0, ran.stderr
    for shown in tracks(json.loads(output.read_text())).values():
        chunks = [
            event
            for track, events in shown.items()
            if track.startswith("chunks to ")
            for event in events
            if event["args"]["iteration"] == committed
        ]
        assert sum(chunk["args"]["bytes"] for chunk in chunks) >= BYTES
        commits = [event for event in shown["commits"] if event["args"]["iteration"] == committed]
        assert len(commits) == 1
        assert all(chunk["ts"] <= commits[0]["ts"] for chunk in chunks)


def test_status_shows_the_schedule(cluster):
    job = Job(cluster, shared=False, profile_iterations=2)
    job.start()
    job.restore()
    assert "schedule:" not in ckptctl(cluster, "status").stdout  # nothing was told of communication
    train(job)
    status = ckptctl(cluster, "status")
    assert status.returncode == 0, status.stderr
    assert status.stdout.count("  schedule: ") == RANKS
    for rank in range(RANKS):
        assert f"    rank {rank}: " in status.stdout
