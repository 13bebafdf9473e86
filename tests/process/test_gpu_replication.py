"""Checkpoints from GPU to GPU between real agents and trainers, on test doubles of the GPU and for NCCL
(tests/cuda/double, tests/cuda/nccl_double). If CKPTENGINE_TEST_GPU is "real", all ranks share this machine's GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, build_file_of, nightly_but
from gpu_driver import nccl_file
from processes import kill_process

GPU = BUILD / "tests" / "cuda_double"
RANKS = 2
IS_REAL = os.environ.get("CKPTENGINE_TEST_GPU") == "real"
SIZE_BYTES = 3_000_017  # of the state, in gpu_replication_trainer.py

pytestmark = pytest.mark.skipif(not GPU.exists() and not IS_REAL, reason="built without CUDA")
needs_test_doubles = pytest.mark.skipif(IS_REAL, reason="needs a driver and an NCCL that do what they are told")


def value_of(rank: int, iteration: int) -> int:
    return 16 * (rank + 1) + iteration


def environment_of(rank: int) -> dict[str, str]:
    folders = [ROOT / "python", ROOT / "python" / "tests", Path(__file__).parent]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    if IS_REAL:
        # NCCL refuses two ranks of a host on one GPU.
        environment |= {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo"}
    folder = nccl_file().parent if IS_REAL else GPU
    return environment | {"LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


class Trainer:
    def __init__(self, cluster, rank: int, **changes: object) -> None:
        options = cluster.options(rank, RANKS, replication="gpu", library=build_file_of("libckptengine.so"),
                                  shard=f"rank{rank}", restore_timeout_ms=30_000) | changes
        self.rank = rank
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("gpu_replication_trainer.py"),
             json.dumps({key: str(value) for key, value in options.items()})],
            env=environment_of(rank), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hears(self, *words: object) -> None:
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def says(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


class Job:
    def __init__(self, cluster, ranks: int = RANKS, **options: object) -> None:
        self.cluster = cluster
        self.ranks = ranks
        self.given = options
        self.trainers: list[Trainer] = []

    def start(self, **changes: object) -> list[dict]:
        changes = {"world_size": self.ranks} | self.given | changes
        self.trainers = [Trainer(self.cluster, rank, **changes) for rank in range(self.ranks)]
        return [trainer.says() for trainer in self.trainers]

    def commit(self, iteration: int) -> None:
        for trainer in self.trainers:
            trainer.hears(iteration, value_of(trainer.rank, iteration))
        assert [trainer.says() for trainer in self.trainers] == [{"committed": iteration}] * self.ranks

    def kill(self) -> None:
        for trainer in self.trainers:
            trainer.kill()

    def lose(self, node: str) -> None:
        """The node's agent and all its memory."""
        for pid in self.cluster.agents(node):
            kill_process(pid, signal.SIGKILL)
        for folder in self.cluster.arena.glob(f"*/{node}"):
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()

    def replications(self) -> list[dict]:
        """Of each rank, as the status of its node has it."""
        where = [f"{key}={self.cluster.options()[key]}" for key in ("job", "arena_dir", "coordination")]
        replications = []
        for rank in range(self.ranks):
            answer = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where, f"node=n{rank}"],
                                    capture_output=True, text=True, timeout=60, check=False)
            replications += found(json.loads(answer.stdout))
        assert len(replications) == self.ranks
        return replications

    def await_end_of_gpu_replication(self) -> None:
        deadline = time.monotonic() + 60
        while any(path["gpu"] for path in self.replications()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert all(path["trouble"] for path in self.replications())

    def received_bytes(self) -> list[int]:
        return [path["gpu_received_bytes"] for path in self.replications()]

    def has_joined_again(self, killed: int) -> bool:
        """Whether node n0 has another agent than that one, which knows its trainer and the path."""
        if self.cluster.agents("n0") in ([], [killed]):
            return False
        try:
            return all(path["begun"] for path in self.replications())
        except (AssertionError, subprocess.CalledProcessError):
            return False  # it has yet to come up

    def bytes_land(self) -> bool:
        """Of the first iteration a node may have asked for before its own trainer was there to say that any come."""
        return all(path["gpu"] and path["gpu_received_bytes"] > 0 for path in self.replications())


def found(status):
    if isinstance(status, dict):
        if isinstance(status.get("replication"), dict):
            yield status["replication"]
        status = list(status.values())
    if isinstance(status, list):
        for each in status:
            yield from found(each)


@pytest.fixture
def job(cluster):
    job = Job(cluster)
    yield job
    job.kill()


def restored(iteration: int, ranks: int = RANKS) -> list[dict]:
    """What each trainer says then; all was pinned, and so nothing was copied slowly."""
    return [{"iteration": iteration, "values": [value_of(rank, iteration)], "message": "", "slow_copies": 0}
            for rank in range(ranks)]


def fresh(ranks: int) -> list[dict]:
    return [{"iteration": -1, "values": [], "message": "", "slow_copies": 0}] * ranks


def test_pieces_delivered_by_gpus_are_committed_and_survive_trainers_and_nodes(job):
    assert job.start() == [{"iteration": -1, "values": [], "message": "", "slow_copies": 0}] * RANKS
    for iteration in range(1, 4):
        job.commit(iteration)
    assert job.bytes_land()
    job.kill()
    assert job.start() == restored(3)
    for iteration in range(4, 7):
        job.commit(iteration)
    assert job.bytes_land()
    job.kill()
    job.lose("n1")
    assert job.start() == restored(6)


@needs_test_doubles
def test_bytes_that_cross_to_other_nodes_go_to_the_gpu_only_once(job):
    job.start()
    for iteration in range(1, 4):
        job.commit(iteration)
    assert job.bytes_land()
    for trainer in job.trainers:
        trainer.hears("count")
        assert trainer.says()["to_device_bytes"] < 64 << 10  # tables, not chunks


@needs_test_doubles
def test_byte_damaged_in_transit_is_fetched_again(job):
    job.start()
    job.commit(1)
    job.commit(2)
    assert job.bytes_land()
    for trainer in job.trainers:
        trainer.hears("corrupt")
    before = job.received_bytes()
    job.commit(3)
    grown_bytes = [now - then for now, then in zip(job.received_bytes(), before, strict=True)]
    assert all(0 < size_bytes < SIZE_BYTES for size_bytes in grown_bytes)
    job.kill()
    job.lose("n1")
    assert job.start() == restored(3)


def test_restarted_agent_resumes_gpu_replication(job):
    job.start()
    for iteration in range(1, 4):
        job.commit(iteration)
    assert job.bytes_land()
    (killed,) = job.cluster.agents("n0")
    kill_process(killed, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while not job.has_joined_again(killed):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for iteration in range(4, 8):
        job.commit(iteration)
    assert job.bytes_land()
    job.kill()
    assert job.start() == restored(7)


@pytest.mark.nightly  # another member hangs for each change, see below
@needs_test_doubles
def test_hung_member_costs_only_time(job):
    job.start()
    job.commit(1)
    job.trainers[1].hears("hang")
    job.commit(2)
    job.commit(3)
    job.await_end_of_gpu_replication()
    job.commit(4)
    job.kill()
    assert job.start() == restored(4)


@pytest.mark.parametrize(("protection", "ranks", "lost"), nightly_but(
    [("rs(4,2)", 4, ["n0", "n2"])], [("xor(3)", 3, ["n1"]), ("rs(4,2)", 4, ["n0", "n2"])]))
def test_parity_made_by_gpus_is_committed_and_restores_lost_nodes(cluster, protection, ranks, lost):
    job = Job(cluster, ranks, protection=protection)
    try:
        assert job.start() == fresh(ranks)
        for iteration in range(1, 4):
            job.commit(iteration)
        assert job.bytes_land()
        job.kill()
        for node in lost:
            job.lose(node)
        assert job.start() == restored(3, ranks)
        for iteration in range(4, 7):
            job.commit(iteration)
        assert job.bytes_land()
        job.kill()
        job.lose("n2")
        assert job.start() == restored(6, ranks)
    finally:
        job.kill()


@needs_test_doubles
def test_hosts_make_parity_if_gpus_do_not(cluster):
    job = Job(cluster, 3, protection="xor(3)")
    try:
        job.start()
        job.commit(1)
        job.trainers[1].hears("hang")
        job.commit(2)
        job.commit(3)
        job.await_end_of_gpu_replication()
        job.commit(4)
        job.kill()
        job.lose("n0")
        assert job.start() == restored(4, 3)
    finally:
        job.kill()
