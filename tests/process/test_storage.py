"""Jobs of real agents that lose more than memory can give back, and find it on storage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ckptengine import Stage, Status, Tier
from conftest import ROOT, build_file_of, nightly_but, refused, together, wipe
from processes import kill_process
from small_job import BYTES, RANKS, Job


def wait_until(condition, what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def checkpoints(storage: Path) -> list[int]:
    """Iterations of the checkpoints that are whole."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in storage.glob("*/step-*/manifest.json"))


def status(cluster) -> dict:
    """What the agent of some node says of storage."""
    return ask(cluster)["storage"]


def leader_of(cluster) -> str:
    return ask(cluster)["leader"]


def ask(cluster) -> dict:
    told = subprocess.run([build_file_of("ckptctl"), "status", "--json", f"job={cluster.job}",
                           f"arena_dir={cluster.arena}"], capture_output=True, text=True, check=False)
    return json.loads(told.stdout)["agents"][0]


@pytest.fixture
def storage(tmp_path) -> Path:
    folder = tmp_path / "storage"
    folder.mkdir()
    return folder


def start(cluster, storage, shared=False, **options) -> Job:
    job = Job(cluster, shared, **({"storage": storage, "storage_every": 2, "storage_keep_last": 10} | options))
    job.start()
    job.restore()
    return job


def commit_and_store(job: Job, storage: Path, last: int) -> None:
    """Iterations 1 to `last`, the first and the even ones on storage too."""
    for iteration in range(1, last + 1):
        job.commit(iteration)
        if iteration == 1 or iteration % 2 == 0:
            wait_until(lambda k=iteration: k in checkpoints(storage), f"checkpoint {iteration}")


@pytest.mark.parametrize("shared", [False, True])
def test_job_without_nodes_and_records_restores_from_storage(cluster, storage, shared):
    job = start(cluster, storage, shared)
    commit_and_store(job, storage, 3)
    job.lose(*range(RANKS))
    wipe(cluster.coordination)
    job.start()
    starts = together(*(engine.restore for engine in job.engines))
    assert [start.iteration for start in starts] == [2] * RANKS
    assert {start.main_tier for start in starts} <= {Tier.PERSISTENT, Tier.PEER}
    assert Tier.PERSISTENT in {start.main_tier for start in starts}
    job.assert_state(2)
    job.commit(3)
    job.commit(4)
    wait_until(lambda: checkpoints(storage) == [1, 2, 4], "a checkpoint of the new incarnation")


def test_a_snapshot_is_durable_once_storage_lists_its_checkpoint(cluster, storage):
    job = start(cluster, storage)
    commit_and_store(job, storage, 1)
    tickets = job.commit(2)
    for ticket in tickets:
        assert ticket.wait(Stage.DURABLE, 60_000), ticket.message
        listed = subprocess.run([build_file_of("ckptctl"), "ls", "--json", f"storage={storage}", f"job={cluster.job}"],
                                capture_output=True, text=True, check=True)
        assert [checkpoint["iteration"] for checkpoint in json.loads(listed.stdout)["checkpoints"]] == [2, 1]
        assert ticket.stage is Stage.DURABLE
    assert [engine.stats().durable_iteration for engine in job.engines] == [2] * RANKS
    late = job.commit(3)[0]
    assert not late.wait(Stage.DURABLE, 0) and "not on storage yet" in late.message
    assert late.stage is Stage.COMMITTED
    # What is restored from storage is there.
    job.lose(*range(RANKS))
    job.start()
    assert [start.iteration for start in job.restore()] == [2] * RANKS
    assert {engine._wait(2, Stage.DURABLE, 60_000) for engine in job.engines} == {(Status.OK, "")}


def test_file_with_the_highest_incarnation_name_does_not_block_later_ones(cluster, storage):
    """Anybody who can write into the directory can leave one, and an empty one at that."""
    job = start(cluster, storage)
    commit_and_store(job, storage, 2)
    next(storage.glob("*/step-00000002")).joinpath("rank0.16777215.safetensors").touch()
    for _ in range(2):
        job.lose(*range(RANKS))
        wipe(cluster.coordination)
        job.start()
        job.assert_restored(2)
    assert any("rank0.16777215.safetensors names an incarnation far above" in log.read_text()
               for log in cluster.arena.glob("*/n*/ckptd.log"))


def test_only_pieces_that_no_node_has_are_read_from_storage(cluster, storage):
    job = start(cluster, storage)
    commit_and_store(job, storage, 2)
    job.lose(0, 1)
    job.start()
    starts = together(*(engine.restore for engine in job.engines))
    assert [start.main_tier for start in starts] == [Tier.PERSISTENT] * 2 + [Tier.LOCAL] * 2
    job.assert_state(2)


def test_older_checkpoint_is_reported_as_behind(cluster, storage):
    job = start(cluster, storage)
    commit_and_store(job, storage, 3)
    job.lose(0, 1)
    job.start()
    starts = together(*(engine.restore for engine in job.engines))
    assert all(start.iteration == 2 and start.behind and "iteration 3" in start.message for start in starts)
    job.assert_state(2)


@pytest.mark.parametrize("damage", nightly_but(["flip", "manifest"], ["flip", "truncate", "remove", "manifest"]))
def test_damaged_checkpoint_is_skipped_for_the_next_older_one(cluster, storage, damage):
    job = start(cluster, storage)
    commit_and_store(job, storage, 4)
    job.lose(*range(RANKS))
    checkpoint = next(storage.glob("*/step-00000004"))
    data = next(checkpoint.glob("rank2.1.safetensors"))
    if damage == "flip":
        with open(data, "r+b") as file:
            file.seek(4096 + BYTES // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    elif damage == "truncate":
        os.truncate(data, 5000)
    elif damage == "remove":
        data.unlink()
    else:
        (checkpoint / "manifest.json").write_text("{}")
    job.start()
    starts = together(*(engine.restore for engine in job.engines))
    assert [start.iteration for start in starts] == [2] * RANKS
    job.assert_state(2)


def test_commit_that_loses_a_node_is_stored_immediately(cluster, storage):
    job = start(cluster, storage, storage_every=0, storage_interval_s=3600)
    job.commit(1)
    assert checkpoints(storage) == []
    job.lose(int(leader_of(cluster).removeprefix("n")))  # also where the agent that led the job is what is lost
    wait_until(lambda: checkpoints(storage) == [1], "the commit that lost copies")


def test_unreadable_storage_does_not_count_as_empty(cluster, storage):
    job = start(cluster, storage)
    commit_and_store(job, storage, 2)
    job.lose(*range(RANKS))
    storage.rename(storage.with_name("away"))
    storage.write_text("a file where the directory was")
    job.options["restore_timeout_ms"] = 4000
    job.start()
    results = together(*(lambda engine=engine: refused(engine.restore) for engine in job.engines))
    told = [message for _, message in results]
    assert all("storage does not say what it has" in message and str(storage) in message for message in told), told
    job.close()
    storage.unlink()
    storage.with_name("away").rename(storage)
    job.options["restore_timeout_ms"] = 20_000
    job.start()
    job.assert_restored(2)


def test_checkpoints_beyond_retention_are_removed(cluster, storage):
    job = start(cluster, storage, storage_keep_last=2, storage_keep_every=4)
    commit_and_store(job, storage, 10)
    wait_until(lambda: checkpoints(storage) == [4, 8, 10], "the last two, and multiples of 4")
    job.close()


@pytest.fixture
def nfs(tmp_path):
    """A real server; yields a function that starts it (again) and returns its location."""
    script, folder = ROOT / "scripts" / "nfs_server.sh", tmp_path / "nfs"

    def serve(*size: str) -> str:
        done = subprocess.run([script, "start", folder, *size], check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    yield serve
    subprocess.run([script, "stop", folder], timeout=60, check=True)


def nfs_pid(tmp_path: Path) -> int:
    return int((tmp_path / "nfs" / "pid").read_text())


def test_training_continues_while_the_nfs_server_is_dead_and_storage_catches_up(cluster, tmp_path, nfs):
    location, exported = nfs(), tmp_path / "nfs" / "export"
    job = start(cluster, location, storage_timeout_ms=2000)
    commit_and_store(job, exported, 2)
    kill_process(nfs_pid(tmp_path), signal.SIGKILL)
    for iteration in range(3, 8):
        job.commit(iteration)
    wait_until(lambda: status(cluster)["trouble"], "trouble in the status")
    assert nfs() == location
    job.commit(8)
    wait_until(lambda: checkpoints(exported)[-1] >= 6, "a newer checkpoint", 40)
    newest = checkpoints(exported)[-1]
    job.lose(*range(RANKS))
    job.start()
    job.assert_restored(newest)


def test_training_continues_while_the_nfs_server_hangs(cluster, tmp_path, nfs):
    location, exported = nfs(), tmp_path / "nfs" / "export"
    job = start(cluster, location, storage_timeout_ms=1000)
    commit_and_store(job, exported, 2)
    os.kill(nfs_pid(tmp_path), signal.SIGSTOP)
    try:
        for iteration in range(3, 7):
            job.commit(iteration)
        wait_until(lambda: status(cluster)["trouble"], "trouble in the status")
    finally:
        os.kill(nfs_pid(tmp_path), signal.SIGCONT)
    wait_until(lambda: checkpoints(exported)[-1] >= 4, "a newer checkpoint", 40)


def test_full_storage_is_reported_and_keeps_its_complete_checkpoint(cluster, tmp_path, nfs):
    location, exported = nfs("5m"), tmp_path / "nfs" / "export"  # one checkpoint of 2.4 MB and a part of the next
    job = start(cluster, location, storage_keep_last=1)
    commit_and_store(job, exported, 2)
    wait_until(lambda: not list(exported.glob("*/step-00000001")), "removal of the first checkpoint")
    (exported / "hog").write_bytes(bytes(2 << 20))
    for iteration in range(3, 6):
        job.commit(iteration)
    wait_until(lambda: "the storage is full" in status(cluster)["trouble"], "why in the status")
    assert checkpoints(exported) == [2]
    (exported / "hog").unlink()
    wait_until(lambda: checkpoints(exported)[-1] >= 4, "a newer checkpoint", 40)
