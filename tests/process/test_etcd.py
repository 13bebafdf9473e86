"""Jobs of real agents that meet through real etcd servers, which die, freeze, fill up, and refuse unauthenticated
peers."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from ckptengine import Status
from conftest import build_file_of, nightly_but, refused
from etcd import Etcd
from small_job import RANKS, Job


def wait_until(condition, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


@pytest.fixture
def etcd(tmp_path):
    servers = Etcd(tmp_path / "etcd")
    yield servers
    servers.stop()


def begin(cluster, etcd, *how: str, **options) -> Job:
    job = Job(cluster, False, **({"coordination": etcd.start(*how)} | options))
    job.start()
    job.restore()
    return job


def commit(job: Job, first: int, last: int) -> None:
    for iteration in range(first, last + 1):
        job.commit(iteration)


def ckptctl(cluster, command: str, **options) -> subprocess.CompletedProcess:
    words = [f"job={cluster.job}", f"arena_dir={cluster.arena}", *(f"{key}={value}" for key, value in options.items())]
    return subprocess.run([build_file_of("ckptctl"), command, "--json", *words], check=False, capture_output=True,
                          text=True, timeout=60)


def troubles(cluster) -> list[str]:
    """What the agents say of the store."""
    told = json.loads(ckptctl(cluster, "status").stdout)["agents"]
    return [agent["coordination_trouble"] for agent in told]


def test_job_meets_through_etcd_and_gc_leaves_nothing_there(cluster, etcd):
    job = begin(cluster, etcd)
    commit(job, 1, 3)
    job.lose(1)
    job.start()
    job.assert_restored(3)
    commit(job, 4, 5)
    assert not cluster.coordination.exists()
    job.close()
    assert "kept" in ckptctl(cluster, "gc", coordination=etcd.location).stdout
    assert ckptctl(cluster, "stop").returncode == 0
    done = ckptctl(cluster, "gc", coordination=etcd.location)
    assert done.returncode == 0 and json.loads(done.stdout)["removed"][0]["arenas"] == RANKS, done
    job.start()
    assert not any(start.found for start in job.restore())


def test_snapshots_continue_while_etcd_is_dead(cluster, etcd):
    job = begin(cluster, etcd)
    commit(job, 1, 2)
    etcd.signal(signal.SIGKILL)
    commit(job, 3, 8)
    wait_until(lambda: all("cannot be reached" in trouble for trouble in troubles(cluster)), "trouble in the status")
    commit(job, 9, 10)
    etcd.start()
    wait_until(lambda: not any(troubles(cluster)), "no more trouble")
    job.lose(2)
    job.start()
    job.assert_restored(10)


def test_restore_waits_for_etcd_and_says_so(cluster, etcd):
    job = begin(cluster, etcd)
    commit(job, 1, 1)
    etcd.signal(signal.SIGKILL)
    wait_until(lambda: all(troubles(cluster)), "trouble in the status")
    job.close()
    engine = cluster.engine(0, RANKS, **(job.options | {"restore_timeout_ms": 3000}), shard="rank0")
    engine.register("state", bytearray(8))
    status, message = refused(engine.restore)
    assert status is Status.TIMEOUT and etcd.location.removeprefix("etcd://") in message, message
    engine.close()
    etcd.start()
    job.start()
    job.assert_restored(1)


@pytest.mark.parametrize("blow", nightly_but([signal.SIGSTOP], [signal.SIGKILL, signal.SIGSTOP]),
                         ids=["killed", "frozen"])
def test_job_continues_without_one_of_three_etcd_members(cluster, etcd, blow):
    job = begin(cluster, etcd, "--members", "3")
    commit(job, 1, 2)
    etcd.signal(blow)
    commit(job, 3, 4)
    job.lose(3)
    job.start()
    job.assert_restored(4)
    etcd.signal(signal.SIGCONT)


def test_full_etcd_is_reported_and_the_running_job_continues(cluster, etcd):
    job = begin(cluster, etcd, "--quota", "16000000")
    commit(job, 1, 2)
    etcd.fill()
    commit(job, 3, 4)
    wait_until(lambda: any("is full" in trouble for trouble in troubles(cluster)), "trouble in the status")
    commit(job, 5, 6)
    etcd.free()
    wait_until(lambda: not any(troubles(cluster)), "no more trouble")
    job.lose(0)
    job.start()
    job.assert_restored(6)


def test_only_a_job_with_user_and_tls_gets_access(cluster, etcd):
    location = etcd.start("--tls", "--user", "trainer")
    tls = etcd.folder / "tls"
    own = {
        "coordination": location,
        "etcd_user": "trainer",
        "etcd_password_file": etcd.folder / "password",
        "etcd_ca_file": tls / "ca.pem",
        "etcd_cert_file": tls / "client.pem",
        "etcd_key_file": tls / "client-key.pem",
    }
    wrong = etcd.folder / "wrong"
    wrong.write_text("guessed\n")
    wrong.chmod(0o600)
    for changes, named in [
        ({"etcd_password_file": wrong}, "refuses the user trainer"),
        ({"etcd_ca_file": tls / "other.pem"}, "etcd_ca_file"),
        ({"etcd_cert_file": "", "etcd_key_file": ""}, "etcd_cert_file"),
        ({"etcd_user": "", "etcd_password_file": ""}, "requires a user"),
    ]:
        words = [f"{key}={value}" for key, value in (cluster.options(copies=1) | own | changes).items()]
        done = subprocess.run([build_file_of("ckptd"), *words], check=False, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and named in done.stderr and done.stderr.count("\n") == 1, done
        status, message = refused(cluster.engine, **(own | changes))
        assert status is Status.NO_AGENT and named in message
    job = begin(cluster, etcd, **own)
    commit(job, 1, 2)
    job.lose(1)
    job.start()
    job.assert_restored(2)
    assert ckptctl(cluster, "doctor", **own).stdout.count("answers, and has records of 1 jobs") == 1
