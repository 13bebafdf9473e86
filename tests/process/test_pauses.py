"""Agents that stand still, as when a container is paused or a machine suspended, lose nothing that was committed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import build_file_of, nightly_but, together
from processes import kill_process, process_state
from small_job import BYTES, RANKS, Job

DEADLINE_S = 90
LONG = os.environ.get("CKPTENGINE_TEST_LONG") == "1"
NEWEST = 3
STAGES = ["killed", "started", "asked", "decided"]
PATIENT = {"lease_ms": 30_000}  # the longest there is: the pause does not end the term


class PausedJob(Job):
    """Iteration 3 is the newest that is committed; with storage, iteration 2 lies there."""

    def __init__(self, cluster, **options) -> None:
        super().__init__(cluster, shared=False, copies=2, restore_timeout_ms=300_000, **options)
        self.node_of = [f"n{rank}" for rank in range(RANKS)]

    def start(self) -> list:
        self.close()
        self.engines = together(*(
            lambda rank=rank: self.cluster.engine(
                rank, RANKS, **({"shard": self.name(rank)} | self.options | {"node": self.node_of[rank]}))
            for rank in range(RANKS)))
        self.states = [bytearray(BYTES) for _ in range(RANKS)]
        for engine, state in zip(self.engines, self.states, strict=True):
            engine.register("state", state)
        return self.engines


def status(cluster, node: str) -> dict:
    command = [build_file_of("ckptctl"), "status", "--json", f"job={cluster.job}", f"arena_dir={cluster.arena}"]
    asked = subprocess.run([*command, f"node={node}"], capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    return json.loads(asked.stdout)["agents"][0]


def eventually(what) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def leader_of(cluster) -> int:
    """The rank on the leader's node."""
    (leader,) = [rank for rank in range(RANKS) if status(cluster, f"n{rank}")["is_leader"]]
    return leader


def started_job(cluster, **options) -> PausedJob:
    job = PausedJob(cluster, **options)
    job.start()
    job.restore()
    for iteration in range(NEWEST + 1):
        job.commit(iteration)
        if "storage" in options and iteration == 2:
            eventually(lambda: (status(cluster, "n0")["storage"]["stored"] or {}).get("iteration") == 2)
    return job


def pause(pids: list[int], seconds: float) -> None:
    """All of them stop before any goes on."""
    for pid in pids:
        kill_process(pid, signal.SIGSTOP)
    for pid in pids:
        eventually(lambda pid=pid: process_state(pid) == "T")
    time.sleep(seconds)  # the pause itself
    for pid in pids:
        kill_process(pid, signal.SIGCONT)


def restore_with_a_pause(cluster, job: PausedJob, stage: str, who: str, seconds: float) -> None:
    """A node is lost with its memory, and its rank goes on elsewhere."""
    rank = leader_of(cluster)
    leader = f"n{rank}"
    killed = (rank + 1) % RANKS

    def stand_still() -> None:
        pause(cluster.agents() if who == "all" else cluster.agents(leader), seconds)

    job.lose(killed)
    job.node_of[killed] = f"n{(rank + 2) % RANKS}"
    if stage == "killed":
        stand_still()
    job.start()
    if stage == "started":
        stand_still()
    with ThreadPoolExecutor(RANKS) as pool:
        asked = [pool.submit(engine.restore) for engine in job.engines]
        if stage in ("asked", "decided"):
            wanted = (lambda said: not said["missing_ranks"]) if stage == "asked" else (
                lambda said: said["decision"]["verdict"] != "undecided")
            eventually(lambda: (said := status(cluster, leader))["incarnation"] > 1 and wanted(said))
            stand_still()
        starts = [future.result(DEADLINE_S + seconds) for future in asked]
    assert [start.iteration for start in starts] == [NEWEST] * RANKS
    assert not any(start.behind for start in starts)
    job.assert_state(NEWEST)
    job.commit(NEWEST + 1)


def pauses(each_change: list[tuple], nightly: list[tuple]) -> list:
    """Stages of a restore, and how long agents stop there. For each change, agents stop for longer than all timeouts
    of this job."""
    if LONG:
        return [(stage, seconds) for stage in STAGES for seconds in (3, 8, 20, 60)]
    return nightly_but(each_change, [*each_change, *nightly])


@pytest.mark.parametrize(("stage", "seconds"), pauses([("asked", 2), ("decided", 2)], [(stage, 4) for stage in STAGES]))
def test_a_pause_of_all_agents_loses_no_commit(cluster, stage, seconds):
    job = started_job(cluster)
    restore_with_a_pause(cluster, job, stage, "all", seconds)


@pytest.mark.parametrize(("stage", "seconds"), pauses([("asked", 2)], [("asked", 3), ("asked", 8)]))
def test_a_pause_of_all_agents_restores_nothing_older_from_storage(cluster, tmp_path, stage, seconds):
    (tmp_path / "storage").mkdir()
    job = started_job(cluster, storage=tmp_path / "storage", storage_every=2)
    restore_with_a_pause(cluster, job, stage, "all", seconds)


@pytest.mark.parametrize(("stage", "seconds"), pauses([("asked", 2)], [("started", 4), ("asked", 4)]))
@pytest.mark.parametrize("lease", [PATIENT, {}], ids=["lease outlasts it", "lease runs out"])
def test_a_pause_of_the_leader_alone_loses_no_commit(cluster, lease, stage, seconds):
    job = started_job(cluster, **lease)
    restore_with_a_pause(cluster, job, stage, "leader", seconds)


# ---- What the survivors say ----


def test_nodes_report_the_newest_commit_after_the_leaders_loss(cluster):
    job = Job(cluster, shared=False, copies=2)
    job.start()
    job.restore()
    for iteration in (0, 143):
        job.commit(iteration)
    leader = f"n{leader_of(cluster)}"
    survivors = [f"n{rank}" for rank in range(RANKS) if f"n{rank}" != leader]
    for node in survivors:
        eventually(lambda node=node: (status(cluster, node)["committed"] or {}).get("iteration") == 143)
    stopped = subprocess.run(
        [build_file_of("ckptctl"), "stop", f"job={cluster.job}", f"arena_dir={cluster.arena}", f"node={leader}"],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert stopped.returncode == 0, stopped.stderr

    def all_obey_another() -> bool:
        said = [status(cluster, node) for node in survivors]
        assert all((each["committed"] or {}).get("iteration") == 143 for each in said), said
        return all(each["leader"] not in (None, leader) and each["epoch"] > 1 for each in said)

    eventually(all_obey_another)
    all_obey_another()
