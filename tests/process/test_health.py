"""Whether a job is protected: one verdict, told by ckptctl, the doctor, trainers and their engines."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid

import pytest
from conftest import BUILD, build_file_of
from job import Job as ChaosJob
from job import Settings
from processes import agent_pids, kill_process

DEADLINE_S = 60
AFTER_MS = 2000


class Trainers(ChaosJob):
    """Ranks that are processes of their own and train in lockstep."""

    def options(self, node):
        return super().options(node) | {"unprotected_after_ms": AFTER_MS}

    def health(self, node: str | None = None) -> tuple[int, dict]:
        return ask_health(self.name, self.arena, node)

    def await_health(self, is_so, what: str, node: str | None = None) -> dict:
        seen = [0, {}]

        def is_told():
            seen[:] = self.health(node)
            return is_so(seen[1])

        try:
            self.wait_until(is_told, what, DEADLINE_S)
        except Exception as failure:
            raise AssertionError(f"{what}: {seen}") from failure
        assert seen[0] == {"protected": 0, "degraded": 1, "not protected": 2}[seen[1]["state"]]
        return seen[1]


def ask_health(job: str, arena, node: str | None = None) -> tuple[int, dict]:
    words = [build_file_of("ckptctl"), "health", "--json", f"job={job}", f"arena_dir={arena}"]
    words += [f"node={node}"] if node else []
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def job(tmp_path):
    job = Trainers(Settings(BUILD, nodes=3, megabytes=1), tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    yield job
    job.close()


def train_until_protected(job) -> None:
    job.start_life()
    job.await_restored()
    job.train_until_commit()

    def is_protected():
        job.train_until_commit()
        return job.health()[1]["state"] == "protected"

    deadline = time.monotonic() + DEADLINE_S
    while not is_protected():
        assert time.monotonic() < deadline, job.health()


def test_a_stopped_trainer_is_named_and_the_job_is_not_protected(job):
    train_until_protected(job)
    victim = job.trainers[1]
    kill_process(victim.process.pid, signal.SIGSTOP)
    for node in job.nodes:
        told = job.await_health(lambda told: told["state"] == "not protected" and told["reason"] == "rank_stopped",
                                "word of the stopped trainer", node)
        assert told["held_up_by"] == {"node": victim.node, "rank": victim.rank}
    kill_process(victim.process.pid, signal.SIGCONT)
    job.train_until_commit()
    job.await_health(lambda told: told["state"] != "not protected", "an end of it")
