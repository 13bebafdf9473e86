"""ckptctl plan --job: a plan from what the agents of a running job measured."""

from __future__ import annotations

import json
import subprocess

from ckptengine import Stage
from conftest import build_file_of, together
from small_job import BYTES, Job
from test_trace import iterate

RANKS = 4  # of a small job
LEARNED_AFTER = 2
ITERATIONS_MAX = 200
COMMIT_MS = 1_000


def plan(cluster, *words: object) -> subprocess.CompletedProcess:
    where = ["--arena-dir", cluster.arena, "--coordination", cluster.coordination]
    command = [build_file_of("ckptctl"), "plan", "--json", *words, *where]
    return subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, timeout=60)


def train_until_committed(job: Job) -> None:
    for iteration in range(ITERATIONS_MAX):
        tickets = iterate(job, iteration)
        for engine in job.engines:
            engine.before_update()
        if all(together(*(lambda t=ticket: t.wait(Stage.COMMITTED, COMMIT_MS) for ticket in tickets))):
            return
    raise AssertionError("nothing is committed")


def plan_once_learned(cluster, job: Job) -> dict:
    """The agents learn the iteration from a few whole ones, which the job goes on to make."""
    for iteration in range(ITERATIONS_MAX, ITERATIONS_MAX + 100):
        iterate(job, iteration)
        ran = plan(cluster, "--job", cluster.job)
        assert ran.returncode == 0, ran.stderr
        shown = json.loads(ran.stdout)
        if any(line.startswith("iteration ") for line in shown["job"]["measured"]):
            return shown
    raise AssertionError("no agent has learned the iteration")


def test_takes_the_measured_values_of_a_running_job_and_says_what_it_would_change(cluster):
    job = Job(cluster, shared=False, profile_iterations=LEARNED_AFTER)
    job.start()
    job.restore()
    train_until_committed(job)
    shown = plan_once_learned(cluster, job)
    found, inputs = shown["job"], shown["inputs"]
    assert (found["job"], found["agents"], found["protection"]) == (cluster.job, RANKS, "copies(2)")
    assert (inputs["gpus"], inputs["nodes"], inputs["replicas"]) == (RANKS, RANKS, 1)
    assert RANKS * BYTES <= inputs["state_bytes"] < 2 * RANKS * BYTES
    assert 0 < inputs["iteration_s"] < 10
    assert {"restart", "detection"} <= set(found["assumed"])
    assert "storage_interval_s" in [change["option"] for change in found["changes"]]  # this job has no storage


def test_a_value_of_the_command_line_wins(cluster):
    job = Job(cluster, shared=False, profile_iterations=LEARNED_AFTER)
    job.start()
    job.restore()
    train_until_committed(job)
    shown = json.loads(plan(cluster, "--job", cluster.job, "--iteration", 7).stdout)
    assert shown["inputs"]["iteration_s"] == 7


def test_refuses_a_job_that_has_no_agent_here(cluster):
    ran = plan(cluster, "--job", "nobody")
    assert ran.returncode == 1
    assert ran.stderr.startswith("ckptctl: ") and ran.stderr.count("\n") == 1
