"""Jobs of real agents whose coordination records are wiped, set back, damaged or replaced while they run."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from ckptengine import Status
from conftest import build_file_of, refused, together
from etcd import Etcd
from processes import kill_process
from small_job import RANKS, Job

DEADLINE_S = 60


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        time.sleep(0.02)


def ckptctl(cluster, command: str, *words: str) -> subprocess.CompletedProcess:
    where = [f"job={cluster.job}", f"arena_dir={cluster.arena}", f"coordination={cluster.coordination}"]
    return subprocess.run([build_file_of("ckptctl"), command, *words, "--json", *where], check=False,
                          capture_output=True, text=True, timeout=60)


def agents(cluster) -> list[dict]:
    return json.loads(ckptctl(cluster, "status").stdout)["agents"]


def notices(cluster) -> str:
    return json.dumps([agent["notices"] for agent in agents(cluster)])


def revision(file) -> int:
    return int(file.name.rpartition("@")[2])


def records(cluster) -> dict[str, str]:
    """The values by key."""
    folder = cluster.coordination / cluster.job
    found = {}
    try:
        for file in sorted((file for file in folder.rglob("*@*") if file.name[0] != "."), key=revision):
            key = file.relative_to(folder).as_posix().rpartition("@")[0]
            if revision(file) > 0:
                found[key] = file.read_text().partition("\n")[2]
    except FileNotFoundError:  # replaced meanwhile
        return records(cluster)
    return found


def lasting(found: dict[str, str]) -> dict[str, str]:
    """Those that say who is who, which do not change while agents run."""
    kinds = ("nodes/", "taken/", "token", "rank_assignments/")
    return {key: value for key, value in found.items() if key.startswith(kinds)}


def commit(job: Job, first: int, last: int) -> None:
    for iteration in range(first, last + 1):
        job.commit(iteration)


def begin(cluster, **options) -> Job:
    job = Job(cluster, False, **options)
    job.start()
    job.restore()
    commit(job, 1, 2)
    return job


def wipe(cluster, folder: str = "") -> None:
    gone = cluster.coordination / "gone"
    os.rename(cluster.coordination / cluster.job / folder, gone)
    shutil.rmtree(gone, ignore_errors=True)  # agents may still write records into it


def test_job_rewrites_wiped_records_and_continues(cluster):
    job = begin(cluster)
    before = lasting(records(cluster))
    pids = {node: cluster.agents(f"n{node}") for node in range(RANKS)}
    wipe(cluster)
    wait_until(lambda: lasting(records(cluster)) == before, "the records are back")
    wait_until(lambda: {"incarnation", "leader"} <= records(cluster).keys(), "the leader's records are back")
    assert "had vanished" in notices(cluster)
    commit(job, 3, 5)
    job.close()
    for pid in cluster.agents("n1"):
        kill_process(pid, signal.SIGKILL)
    job.start()
    job.assert_restored(5)
    commit(job, 6, 7)
    for node in (0, 2, 3):
        assert cluster.agents(f"n{node}") == pids[node], "a healthy agent was ended"
    numbers = {key: value for key, value in before.items() if key.startswith(("taken/", "token"))}
    assert numbers.items() <= records(cluster).items()


def test_agent_restarted_right_after_a_wipe_gets_its_number_back(cluster):
    job = begin(cluster)
    before = {key: value for key, value in records(cluster).items() if key.startswith(("taken/", "token"))}
    others = [pid for node in (0, 2, 3) for pid in cluster.agents(f"n{node}")]
    job.close()
    for pid in others:
        kill_process(pid, signal.SIGSTOP)
    for pid in cluster.agents("n1"):
        kill_process(pid, signal.SIGKILL)
    wipe(cluster)
    words = [f"{key}={value}" for key, value in cluster.options(1, RANKS).items()
             if key in ("job", "node", "arena_dir", "coordination", "copies", "heartbeat_ms", "lease_ms",
                        "node_timeout_ms", "node_wait_ms", "interface")]
    subprocess.run([build_file_of("ckptd"), "--detach", *words], check=True, timeout=60)
    for pid in others:
        kill_process(pid, signal.SIGCONT)
    wait_until(lambda: before.items() <= records(cluster).items(), "all have their numbers and the token")
    job.start()
    job.assert_restored(2)
    commit(job, 3, 4)
    assert [pid for node in (0, 2, 3) for pid in cluster.agents(f"n{node}")] == others


def until_superseded(engine, first: int) -> str:
    """Takes snapshots, all of the same state, until the rank is told that its incarnation has ended; what it is
    told."""
    deadline, iteration = time.monotonic() + DEADLINE_S, first
    while (ticket := engine.snapshot(iteration)).status is not Status.SUPERSEDED:
        assert time.monotonic() < deadline, ticket.message
        engine.before_update()
        iteration += 1
        time.sleep(0.05)
    return ticket.message


LOST_RECORDS = [("", "record of incarnation 1"), ("rank_assignments", "rank assignments of incarnation 1")]


@pytest.mark.parametrize(("lost", "said"), LOST_RECORDS, ids=["all records", "rank assignments"])
def test_ranks_restore_the_newest_checkpoint_after_losing_leader_and_records(cluster, lost, said):
    job = begin(cluster)
    (leader,) = [agent["node"] for agent in agents(cluster) if agent["is_leader"]]
    leaders = cluster.agents(leader)
    others = set(cluster.agents()) - set(leaders)
    for pid in leaders:
        kill_process(pid, signal.SIGSTOP)  # so that it does not write again what it alone knows
    wipe(cluster, lost)
    for pid in leaders:
        kill_process(pid, signal.SIGKILL)
    for message in together(*(lambda engine=engine: until_superseded(engine, 3) for engine in job.engines)):
        assert "the coordination store lost the records" in message and "restart the rank" in message, message
    assert f"lost the {said} of the job" in notices(cluster)
    job.start()
    (newest,) = {start.iteration for start in job.restore()}
    assert newest >= 2  # one that nobody was told of may lie there whole
    job.assert_state(2)
    commit(job, newest + 1, newest + 2)
    assert others <= set(cluster.agents()), "a healthy agent was ended"
    job.start()
    job.assert_restored(newest + 2)


def test_job_in_etcd_continues_after_its_records_were_deleted(cluster, tmp_path):
    etcd = Etcd(tmp_path / "etcd")
    try:
        job = Job(cluster, False, coordination=etcd.start())
        job.start()
        job.restore()
        commit(job, 1, 2)
        pids = sorted(cluster.agents())
        where = ["etcdctl", "--endpoints", f"http://{etcd.location.removeprefix('etcd://')}"]

        def keys(*words: str) -> set[str]:
            done = subprocess.run([*where, *words, "--prefix", "/ckptengine/"], check=True, capture_output=True,
                                  env=os.environ | {"ETCDCTL_API": "3"}, text=True, timeout=30)
            return set(done.stdout.split())

        before = keys("get", "--keys-only")
        keys("del")
        commit(job, 3, 4)
        wait_until(lambda: keys("get", "--keys-only") >= before, "the records are back")
        wait_until(lambda: not any(agent["coordination_trouble"] for agent in agents(cluster)), "no more trouble")
        job.close()
        for pid in cluster.agents("n2"):
            kill_process(pid, signal.SIGKILL)
        job.start()
        job.assert_restored(4)
        assert len(set(pids) & set(cluster.agents())) == RANKS - 1
    finally:
        etcd.stop()


def test_agents_overrule_records_that_were_set_back(cluster):
    job = begin(cluster)
    folder, copy = cluster.coordination / cluster.job, cluster.coordination / "copy"
    for _ in range(100):  # a record may be replaced while it is copied
        try:
            shutil.copytree(folder, copy)
            break
        except shutil.Error:
            shutil.rmtree(copy)
    job.start()
    job.assert_restored(2)
    commit(job, 3, 4)
    newest = json.loads(records(cluster)["incarnation"])["incarnation"]
    os.rename(folder, cluster.coordination / "gone")
    os.rename(copy, folder)
    wait_until(lambda: json.loads(records(cluster).get("incarnation", "{}")).get("incarnation") == newest,
               "the newest incarnation is on record again")
    wait_until(lambda: "writes it again" in notices(cluster), "it is told")
    commit(job, 5, 6)
    job.start()
    job.assert_restored(6)
    assert json.loads(records(cluster)["incarnation"])["incarnation"] > newest


def put_record(cluster, key: str, value: str) -> None:
    """As an agent would, with the right digest."""
    folder = cluster.coordination / cluster.job
    number = max(revision(file) for file in folder.glob(f"{key}@*")) + 1
    xxhash = ctypes.CDLL("libxxhash.so.0")
    xxhash.XXH3_64bits.restype = ctypes.c_uint64
    both = f"{value}{number}".encode()
    digest = xxhash.XXH3_64bits(both, ctypes.c_size_t(len(both)))
    draft = folder / ".draft"
    draft.write_text(f"ckptengine record 1 {number} {len(value)} {digest:016x}\n{value}")
    try:
        os.link(draft, folder / f"{key}@{number}")
    except FileExistsError:
        put_record(cluster, key, value)


def test_impossible_epoch_is_reported_and_repaired_by_gc(cluster):
    job = begin(cluster)
    put_record(cluster, "leader", json.dumps({"epoch": 2**64 - 1, "node": 3, "heartbeat": 0}))
    wait_until(lambda: "damaged" in notices(cluster), "it is told")
    job.close()
    assert ckptctl(cluster, "stop").returncode == 0
    done = ckptctl(cluster, "gc", "--records")
    assert done.returncode == 0, done
    job.start()
    job.assert_restored(2)
    commit(job, 3, 5)


@pytest.mark.parametrize("record", ["incarnation", "leader"])
def test_pipe_in_place_of_a_record_blocks_no_agent(cluster, record):
    job = begin(cluster)
    folder = cluster.coordination / cluster.job
    number = max(revision(file) for file in folder.glob(f"{record}@*")) + 1000
    os.mkfifo(folder / f"{record}@{number}", 0o600)
    wait_until(lambda: all("is not a regular file" in agent["coordination_trouble"] for agent in agents(cluster)),
               "all agents say it")
    commit(job, 3, 4)
    os.unlink(folder / f"{record}@{number}")
    wait_until(lambda: not any(agent["coordination_trouble"] for agent in agents(cluster)), "no more trouble")
    os.mkfifo(folder / f"{record}@{number}", 0o600)
    job.close()
    assert ckptctl(cluster, "stop").returncode == 0
    assert not cluster.agents()


def test_two_machines_with_the_same_node_name_are_warned_and_the_first_continues(cluster, tmp_path):
    first = cluster.engine(0, 1, copies=1)
    first.register("state", bytearray(8))
    first.restore()
    pids = cluster.agents()
    status, message = refused(cluster.engine, 0, 1, copies=1, arena_dir=f"{cluster.arena}/other")
    assert status is Status.NO_AGENT
    assert "is served by another agent, which answers at" in message and "option node" in message, message
    wait_until(lambda: "tried to serve node n0, too" in notices(cluster), "the first one is told")
    assert cluster.agents() == pids


def test_trainer_and_doctor_report_machines_that_do_not_share_the_directory(cluster):
    """Each waits for the other's rank. Both directories lie where no other machine sees them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        engines = [
            cluster.engine(rank, 2, coordination=f"{folder}/of-n{rank}", restore_timeout_ms=3000) for rank in range(2)
        ]
        refusals = together(*(lambda engine=engine: refused(engine.restore) for engine in engines))
        for rank, (status, message) in enumerate(refusals):
            assert status is Status.TIMEOUT
            assert f"waiting for ranks {1 - rank}" in message
            assert f"no other node has registered in {folder}/of-n{rank}, a directory" in message
            assert f"that only the machine of node n{rank} sees" in message
            assert "tmpfs" in message
            assert "a directory that all of them mount, or to etcd" in message
        where = [f"job={cluster.job}", f"arena_dir={cluster.arena}", f"coordination={folder}/of-n0"]
        doctor = subprocess.run([build_file_of("ckptctl"), "doctor", *where], check=False, capture_output=True,
                                text=True, timeout=60)
        assert doctor.returncode == 1
        assert doctor.stdout.count("no other node has registered in") == 2
        assert "no other machine sees it (tmpfs)" in doctor.stdout


def test_late_rank_is_not_blamed_on_the_shared_directory(cluster):
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        engines = [cluster.engine(rank, 2, coordination=folder + "/one", restore_timeout_ms=3000) for rank in range(2)]
        status, message = refused(engines[0].restore)
        assert status is Status.TIMEOUT
        assert "waiting for ranks 1" in message
        assert "registered" not in message
