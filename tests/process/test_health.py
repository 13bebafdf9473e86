"""Whether a job is protected: one verdict, told by ckptctl, the doctor, trainers' logs and their engines."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import time
import uuid

import pytest
from chaos_settings import Settings
from ckptengine import Protection, Status
from conftest import BUILD, build_file_of, together, wipe
from job import Job as ChaosJob
from processes import kill_process

DEADLINE_S = 60
AFTER_MS = 1000
EXIT = {"protected": 0, "degraded": 1, "not protected": 2}


def ckptctl(job: str, arena, command: str, *words: str) -> subprocess.CompletedProcess:
    line = [build_file_of("ckptctl"), command, *words, f"job={job}", f"arena_dir={arena}"]
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=DEADLINE_S)


def health(job: str, arena, *words: str) -> dict:
    done = ckptctl(job, arena, "health", "--json", *words)
    told = json.loads(done.stdout)
    assert done.returncode == EXIT[told["state"]], done
    return told


def await_health(ask, is_so, meanwhile=lambda: None) -> dict:
    """Until what is told is so."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so(told := ask()):
        assert time.monotonic() < deadline, told
        meanwhile()
        time.sleep(0.02)
    return told


class Ranks:
    """Engines in this process, each with an agent of its own; they take snapshots in turn."""

    def __init__(self, cluster, *options: dict, sizes: tuple[int, ...] = (), **common: object) -> None:
        self.cluster = cluster
        count = len(options)
        common = {"unprotected_after_ms": AFTER_MS} | common
        self.engines = [cluster.engine(rank, count, **(common | own)) for rank, own in enumerate(options)]
        for rank, engine in enumerate(self.engines):
            engine.register("state", bytearray(sizes[rank] if sizes else 100_000))
        self.iteration = 0

    def restore(self) -> Ranks:
        together(*(engine.restore for engine in self.engines))
        return self

    def train(self, seconds: float = 0.05) -> list:
        tickets = [engine.snapshot(self.iteration) for engine in self.engines]
        for engine in self.engines:
            engine.before_update()
        self.iteration += 1
        time.sleep(seconds)
        return tickets

    def health(self, *words: str) -> dict:
        return health(self.cluster.job, self.cluster.arena, *words)

    def await_health(self, is_so, *words: str, training: bool = True) -> dict:
        return await_health(lambda: self.health(*words), is_so, self.train if training else lambda: None)

    def await_protected(self) -> None:
        self.await_health(lambda told: told["state"] == "protected")


def is_unprotected(reason: str):
    return lambda told: told["state"] == "not protected" and told["reason"] == reason


def warnings(caplog, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records
            if record.name == "ckptengine" and record.levelno == logging.WARNING and word in record.getMessage()]


def await_warning(caplog, *words: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not all(warnings(caplog, word) for word in words):
        assert time.monotonic() < deadline, [record.getMessage() for record in caplog.records]
        time.sleep(0.02)


# ---- What is told where ----


def test_a_job_that_commits_is_protected_everywhere(cluster, caplog):
    ranks = Ranks(cluster, {}, {}, unprotected_after_ms=60_000).restore()
    ranks.await_protected()
    text = ckptctl(cluster.job, cluster.arena, "health").stdout
    assert text.startswith("protected: job ") and "copies: 2 of 2" in text
    ranks.train()
    assert ckptctl(cluster.job, cluster.arena, "status").stdout.startswith(("protected", "degraded"))
    for engine in ranks.engines:
        told = await_health(engine.health, lambda told: told.state is Protection.PROTECTED, ranks.train)
        assert told.copies_now == told.copies_wanted == 2 and told.committed_iteration >= 0
    assert not warnings(caplog, "not protected")


def test_job_without_commits_is_reported_everywhere_while_it_lasts(cluster, caplog):
    caplog.set_level(logging.INFO, "ckptengine")
    ranks = Ranks(cluster, {}, {}).restore()
    ranks.await_protected()
    told = ranks.await_health(is_unprotected("no_snapshots"), training=False)
    assert told["at_risk_ms"] > told["allowed_ms"] >= AFTER_MS and told["since"] and told["advice"]
    for node in ("n0", "n1"):
        ranks.await_health(is_unprotected("no_snapshots"), f"node={node}", training=False)
    status = ckptctl(cluster.job, cluster.arena, "status")
    assert status.stdout.startswith("not protected: ") and status.returncode == 2, status
    assert ckptctl(cluster.job, cluster.arena, "health").stdout.startswith("not protected: ")
    doctor = ckptctl(cluster.job, cluster.arena, "doctor", f"coordination={cluster.coordination}")
    assert doctor.returncode == 1 and "BAD" in doctor.stdout and "no rank calls snapshot()" in doctor.stdout
    await_warning(caplog, "the job is not protected: no rank calls snapshot()")
    for engine in ranks.engines:
        await_health(engine.health, lambda told: told.state is Protection.NOT_PROTECTED)
        assert engine.health().reason == "no_snapshots"
    ranks.await_protected()
    for engine in ranks.engines:
        await_health(engine.health, lambda told: told.state is Protection.PROTECTED, ranks.train)


@pytest.mark.parametrize("words", [["--job", "nobody"], ["--job"], ["--nonsense"]])
def test_unknown_job_is_not_reported_as_protected(cluster, words):
    line = [build_file_of("ckptctl"), "health", *words, f"arena_dir={cluster.arena}"]
    done = subprocess.run(line, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 2
    if words == ["--job", "nobody"]:
        assert done.stdout.startswith("not protected: job nobody: no agent of job nobody answers on this machine")


# ---- Who holds commits up ----


def test_copies_that_do_not_fit_are_reported_with_the_full_node(cluster, caplog):
    ranks = Ranks(cluster, {}, {"arena_bytes": "12MiB"}, sizes=(8 << 20, 100_000)).restore()
    told = ranks.await_health(is_unprotected("copies_do_not_fit"))
    assert told["held_up_by"]["node"] == "n1" and told["committed"] is None
    await_warning(caplog, "node n1 has no memory for the copies")
    await_health(ranks.engines[0].health, lambda told: told.node == "n1", ranks.train)


def test_trainers_whose_snapshots_fail_each_time_are_named(cluster, caplog):
    ranks = Ranks(cluster, {}, {"arena_bytes": "2MiB"}, sizes=(100_000, 4 << 20)).restore()
    told = ranks.await_health(is_unprotected("rank_fails"))
    assert ranks.train()[1].status is Status.NO_SPACE
    assert told["held_up_by"] == {"node": "n1", "rank": 1} and "does not fit" in told["text"]
    await_warning(caplog, "snapshots of rank 1 on node n1 fail")


def test_agent_with_a_wrong_token_is_named_with_the_cause(cluster, tmp_path):
    right, wrong = (tmp_path / name for name in ("right", "wrong"))
    for file in (right, wrong):
        subprocess.run([build_file_of("ckptctl"), "token", file], check=True, capture_output=True, timeout=DEADLINE_S)
    ranks = Ranks(cluster, {}, {"token_file": wrong}, {}, token_file=right)
    for node in ("n0", "n1", "n2"):
        told = ranks.await_health(is_unprotected("wrong_token"), f"node={node}", training=False)
        assert told["held_up_by"]["node"] == "n1", (node, told)
        assert "token_file" in told["advice"]
    await_health(ranks.engines[0].health, lambda told: told.reason == "wrong_token")
    doctor = ckptctl(cluster.job, cluster.arena, "doctor", f"coordination={cluster.coordination}")
    assert doctor.returncode == 1 and "another token" in doctor.stdout


def test_returned_member_with_a_wrong_token_is_not_reported_as_slow(cluster, tmp_path):
    right, wrong = (tmp_path / name for name in ("right", "wrong"))
    for file in (right, wrong):
        subprocess.run([build_file_of("ckptctl"), "token", file], check=True, capture_output=True, timeout=DEADLINE_S)
    ranks = Ranks(cluster, {}, {}, {}, token_file=right).restore()
    ranks.await_protected()
    leader = ranks.health()["leader"]
    victim = next(node for node in ("n1", "n2") if node != leader)
    ckptctl(cluster.job, cluster.arena, "stop", f"node={victim}")
    options = cluster.options(1, 3, node=victim, token_file=wrong, unprotected_after_ms=AFTER_MS)
    agent_options = [f"{key}={value}" for key, value in options.items()]
    subprocess.run([build_file_of("ckptd"), "--detach", *agent_options], check=True, timeout=DEADLINE_S)
    told = ranks.await_health(is_unprotected("wrong_token"), f"node={leader}")
    assert told["held_up_by"]["node"] == victim
    (log,) = cluster.arena.glob(f"*/{leader}/ckptd.log")
    assert "too slow, or was away" not in log.read_text()


def test_frozen_agent_is_reported_by_ckptctl_other_agents_and_its_trainer(cluster, caplog):
    ranks = Ranks(cluster, {}, {}).restore()
    ranks.await_protected()
    (frozen,) = cluster.agents("n1")
    kill_process(frozen, signal.SIGSTOP)
    asked_at_s = time.monotonic()
    told = ranks.health("node=n1")
    assert told["state"] == "not protected" and told["reason"] == "agent_silent" and told["held_up_by"]["node"] == "n1"
    assert time.monotonic() - asked_at_s < DEADLINE_S / 2, "it has a deadline of its own"
    assert ckptctl(cluster.job, cluster.arena, "health", "node=n1").stdout.startswith("not protected: ")
    told = ranks.await_health(is_unprotected("node_silent"), "node=n0")
    assert told["held_up_by"]["node"] == "n1"
    # Nobody tells the trainer beside the frozen agent anything: it judges by itself.
    own = await_health(ranks.engines[1].health, lambda told: told.state is Protection.NOT_PROTECTED, ranks.train)
    assert (own.reason, own.node) == ("agent_silent", "n1")
    other = await_health(ranks.engines[0].health, lambda told: told.state is Protection.NOT_PROTECTED, ranks.train)
    assert (other.reason, other.node) == ("node_silent", "n1")
    await_warning(caplog, "the agent of node n1 does not answer", "node n1 does not answer")
    kill_process(frozen, signal.SIGCONT)
    ranks.await_protected()


def test_stopped_agent_is_reported_by_other_agents_and_its_trainer(cluster, caplog):
    """Whoever leads: what comes after is the next leader's verdict."""
    ranks = Ranks(cluster, {}, {}, {}).restore()
    ranks.await_protected()
    leader = ranks.health()["leader"]
    committed = ranks.health()["committed"]["iteration"]
    ckptctl(cluster.job, cluster.arena, "stop", f"node={leader}")
    for node in ("n0", "n1", "n2"):
        if node == leader:
            continue
        told = ranks.await_health(is_unprotected("node_silent"), f"node={node}")
        assert told["held_up_by"]["node"] == leader and told["committed"]["iteration"] >= committed
        assert told["at_risk_iterations"] > 0
    engine = ranks.engines[int(leader[1:])]
    own = await_health(engine.health, lambda told: told.state is Protection.NOT_PROTECTED, ranks.train)
    assert (own.reason, own.node) == ("agent_gone", leader) and "ckptctl stop" in own.text
    await_warning(caplog, f"the agent of node {leader} is gone")


def test_wiped_coordination_store_never_stops_commits_silently(cluster):
    ranks = Ranks(cluster, {}, {}, unprotected_after_ms=500).restore()
    ranks.await_protected()
    wipe(cluster.coordination)
    newest, heard_at_s = -1, time.monotonic()
    end_s = heard_at_s + 5  # far longer than health may be silent
    while time.monotonic() < end_s:
        ranks.train()
        committed = max(engine.stats().committed_iteration for engine in ranks.engines)
        if committed > newest:
            newest, heard_at_s = committed, time.monotonic()
        told = ranks.health()
        is_overdue = (time.monotonic() - heard_at_s) * 1000 > told["allowed_ms"] + 2000
        assert not (is_overdue and told["state"] == "protected"), told


# ---- What is less than asked for ----


def test_an_agent_with_another_protection_is_named(cluster):
    ranks = Ranks(cluster, {}, {}, {"protection": "copies(3)"}, unprotected_after_ms=60_000).restore()
    told = ranks.await_health(lambda told: told["reason"] == "other_protection")
    assert told["state"] == "degraded"
    named = {"n0", "n1", "n2"} if ranks.health()["leader"] == "n2" else {"n2"}
    assert told["held_up_by"]["node"] in named
    doctor = ckptctl(cluster.job, cluster.arena, "doctor", f"coordination={cluster.coordination}")
    assert "another option protection" in doctor.stdout
    (log,) = cluster.arena.glob(f"*/{told['leader']}/ckptd.log")
    await_health(log.read_text, lambda text: "another option protection" in text, ranks.train)


def test_a_rank_with_another_reaction_to_suspicions_is_named(cluster):
    ranks = Ranks(cluster, {}, {}, {"on_suspicion": "halt"}).restore()
    told = ranks.await_health(lambda told: told["reason"] == "other_options")
    assert told["state"] == "degraded" and told["held_up_by"]["rank"] == 2, told
    assert "on_suspicion=halt capture=every capture_every=1, rank 0 has on_suspicion=report" in told["text"], told


def test_job_of_one_node_with_two_copies_is_degraded(cluster):
    ranks = Ranks(cluster, {}).restore()
    told = ranks.await_health(lambda told: told["reason"] == "fewer_copies")
    assert told["state"] == "degraded" and told["copies"] == {"now": 1, "wanted": 2}


# ---- Trainers that are processes of their own ----


class Trainers(ChaosJob):
    """They train in lockstep."""

    def options(self, node):
        return super().options(node) | {"unprotected_after_ms": AFTER_MS}

    def health(self, *words: str) -> dict:
        return health(self.name, self.arena, *words)


@pytest.fixture
def job(tmp_path):
    job = Trainers(Settings(BUILD, nodes=3, megabytes=1), tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    yield job
    job.close()


def test_a_stopped_trainer_is_named_and_the_job_is_not_protected(job):
    job.start_incarnation()
    job.await_restored()
    await_health(job.health, lambda told: told["state"] == "protected", job.train_until_commit)
    victim = job.trainers[1]
    kill_process(victim.process.pid, signal.SIGSTOP)
    for node in job.nodes:
        told = await_health(lambda node=node: job.health(f"node={node}"), is_unprotected("rank_stopped"))
        assert told["held_up_by"] == {"node": victim.node, "rank": victim.rank}
    kill_process(victim.process.pid, signal.SIGCONT)
    await_health(job.health, lambda told: told["state"] == "protected", job.train_until_commit)


def test_a_trainer_that_died_is_named_and_the_job_is_not_protected(job):
    job.start_incarnation()
    job.await_restored()
    job.train_until_commit()
    victim = job.trainers[2]
    victim.kill()
    told = await_health(job.health, is_unprotected("rank_gone"))
    assert told["held_up_by"]["rank"] == victim.rank
