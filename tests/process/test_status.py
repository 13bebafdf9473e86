"""What `ckptctl status` tells of tiers and of trainers that have stopped, and how it is watched."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from contextlib import contextmanager

import pytest
from chaos_settings import TIER_LOCAL, Settings
from ckptengine import Stage
from conftest import BUILD, build_file_of
from job import Job as ChaosJob
from processes import kill_process
from small_job import BYTES, RANKS, Job

DEADLINE_S = 60


def command(cluster, *options: str) -> list:
    return [build_file_of("ckptctl"), "status", *options, f"job={cluster.job}", f"arena_dir={cluster.arena}"]


def status(cluster, node: str) -> dict:
    asked = subprocess.run(command(cluster, "--json", f"node={node}"), capture_output=True, text=True, check=False,
                           timeout=DEADLINE_S)  # its exit status says whether the job is protected
    return json.loads(asked.stdout)["agents"][0]


def status_text(cluster, node: str) -> str:
    return subprocess.run(command(cluster, f"node={node}"), capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S).stdout


def eventually(what) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- What is wrong ----


def test_differing_replicas_are_reported_and_never_committed(cluster):
    # Not cut: all capture the whole. It never commits that, so closing need not wait for it.
    job = Job(cluster, shared=True, placement="group", close_timeout_ms=100)
    job.start()
    job.restore()
    job.commit(0)
    job.states[2][12_345] ^= 1  # one bit of one replica
    tickets = [engine.snapshot(1) for engine in job.engines]
    assert all(ticket.taken for ticket in tickets)
    assert all(engine.before_update() for engine in job.engines)
    alarm = "silent data corruption: shard model of iteration 1 differs between its ranks"
    for node in range(RANKS):
        (log,) = cluster.arena.glob(f"*/n{node}/ckptd.log")
        eventually(lambda log=log: alarm in log.read_text())
        assert alarm in status(cluster, f"n{node}")["alarm"]
    assert not any(ticket.stage >= Stage.COMMITTED for ticket in tickets)
    job.start()
    job.assert_restored(0)


# ---- Tiers ----


@pytest.mark.parametrize(("options", "lost", "expected"), [
    ({"copies": 2}, [], "local"),
    ({"copies": 2}, [1], "peer"),
    ({"protection": "xor(4)"}, [1], "decoded"),
    ({"copies": 1, "storage_every": 1}, [1], "persistent"),
])
def test_each_rank_reports_the_tier_it_restored_from(cluster, tmp_path, options, lost, expected):
    if "storage_every" in options:
        options = options | {"storage": tmp_path}
    job = Job(cluster, shared=False, **options)
    job.start()
    job.restore()
    assert status(cluster, "n1")["ranks"][0]["restored_from"] is None, "a fresh start comes from nowhere"
    job.commit(1)
    if expected == "persistent":
        eventually(lambda: (status(cluster, "n0")["tiers"]["stored"] or {}).get("iteration") == 1)
    job.lose(*lost)
    job.start()
    job.assert_restored(1)
    (rank,) = status(cluster, "n1")["ranks"]
    assert rank["restored_from"] == {"main": expected, "private": expected}
    assert f" {expected} " in status_text(cluster, "n1")
    assert status(cluster, "n0")["ranks"][0]["restored_from"] == {"main": "local", "private": "local"}


def test_status_reports_bytes_per_tier(cluster, tmp_path):
    job = Job(cluster, shared=False, protection="copies(2)+xor(4)", storage=tmp_path, storage_every=1)
    job.start()
    job.restore()
    tiers = status(cluster, "n0")["tiers"]
    assert tiers == {"captured_bytes": 0, "copies_bytes": 0, "parity_bytes": 0, "stored": None, "stored_here_bytes": 0}
    job.commit(1)
    for rank in range(RANKS):
        eventually(lambda node=f"n{rank}": (status(cluster, node)["tiers"]["stored"] or {}).get("iteration") == 1)
    told = [status(cluster, f"n{rank}")["tiers"] for rank in range(RANKS)]
    for tiers in told:
        assert BYTES <= tiers["captured_bytes"] < BYTES * 1.1
        assert BYTES <= tiers["copies_bytes"] < BYTES * 1.1
        assert BYTES / 3 <= tiers["parity_bytes"] < BYTES / 2
    stored = sum(tiers["stored_here_bytes"] for tiers in told)
    assert stored == sum(tiers["captured_bytes"] for tiers in told), "each piece is written once"
    size = r"\d+(\.\d)? KiB"
    assert re.search(f"  tiers: {size} captured here, {size} of copies, {size} of parity; "
                     f"on storage iteration 1 of incarnation 1, {size} of it from here\n", status_text(cluster, "n0"))


# ---- Watching ----


@contextmanager
def watching(words: list):
    """A queue of the lines that it prints until it is ended."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue = queue.Queue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in process.stdout])
    reader.start()
    try:
        yield lines
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        reader.join(DEADLINE_S)
        process.stdout.close()


def find(lines: queue.Queue, is_it) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_it(lines.get(timeout=max(0.1, deadline - time.monotonic()))):
        pass


def test_a_watched_status_follows_the_job(cluster):
    job = Job(cluster, shared=False)
    with watching(command(cluster, "--watch", "node=n0")) as lines:
        find(lines, lambda line: "arena" in line)  # says that there is none, and goes on
        job.start()
        job.restore()
        for iteration in (1, 2):
            job.commit(iteration)
            find(lines, lambda line, k=iteration: f"committed: iteration {k} of incarnation 1" in line)


def test_a_watched_status_in_json_is_one_document_in_each_line(cluster):
    job = Job(cluster, shared=False)
    with watching(command(cluster, "--watch", "--json", "node=n0")) as lines:
        find(lines, lambda line: "arena" in json.loads(line)["error"])
        job.start()
        job.restore()
        for iteration in (1, 2):
            job.commit(iteration)

            def tells_of_it(line, k=iteration):
                agents = json.loads(line).get("agents")
                return agents and agents[0]["committed"] == {"incarnation": 1, "iteration": k}

            find(lines, tells_of_it)


# ---- Trainers that have stopped ----


@pytest.fixture
def trainers(tmp_path):
    """Two nodes with a rank each, whose trainers are processes of their own."""
    job = ChaosJob(Settings(BUILD, nodes=2, megabytes=1), tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    yield job
    job.close()


def test_a_stopped_trainer_is_a_software_failure_and_state_stays_local(trainers):
    job = trainers
    job.start_incarnation()
    job.await_restored()
    job.train_until_commit()
    victim = job.trainers[0]

    def rank_of(agent):
        return agent["ranks"][0]

    for _ in range(2):
        kill_process(victim.process.pid, signal.SIGSTOP)
        job.await_status(
            victim.node, lambda agent: rank_of(agent)["stopped"] and rank_of(agent)["progress_age_ms"] > 500,
            "word of a stopped trainer")
        assert "stopped (SIGSTOP)" in job.run(victim.node, "ckptctl", "status", f"job={job.name}",
                                              f"arena_dir={job.arena}", f"node={victim.node}")
        agents = [job.status(node) for node in job.nodes]
        assert [rank_of(agent)["stopped"] for agent in agents] == [True, False]
        assert [agent["lost"] for agent in agents] == [[], []], "no node is taken for lost"
        went_on_at_s = time.monotonic()
        kill_process(victim.process.pid, signal.SIGCONT)
        job.await_status(victim.node, lambda agent: not rank_of(agent)["stopped"], "word of a trainer that goes on")
        job.train_until_commit()
        age_ms = rank_of(job.status(victim.node))["progress_age_ms"]
        assert age_ms <= (time.monotonic() - went_on_at_s) * 1000

    kill_process(victim.process.pid, signal.SIGSTOP)
    victim.doomed = True
    floor = job.floor
    job.trainers[1].kill()
    job.wait_until(lambda: job.trainers[1].ended, "the end of the other trainer")
    job.start_incarnation()  # whoever claims the rank of a stopped trainer has it killed
    job.await_restored()
    job.wait_until(lambda: victim.ended, "the end of the stopped trainer")
    for trainer in job.trainers:
        assert trainer.restored["wrong"] == 0 and trainer.restored["iteration"] >= floor
        assert (trainer.restored["main_tier"], trainer.restored["private_tier"]) == (TIER_LOCAL, TIER_LOCAL)
