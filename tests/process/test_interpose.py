"""Trainers on a GPU that call NCCL and mark nothing, with libckptinterpose.so before NCCL: between real agents, on the
test doubles of GPU and NCCL (tests/cuda/double, tests/cuda/nccl_double)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ckptengine import Tier
from conftest import BUILD, ROOT, build_file_of
from test_halt import CAPTURE_EVERY, DEADLINE_S

GPU = BUILD / "tests" / "cuda_double"
RANKS = 2
FLOOR_MS = 700

pytestmark = pytest.mark.skipif(not GPU.exists(), reason="built without CUDA")


class Job:
    def __init__(self, cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        self.trainers = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank: int) -> subprocess.Popen:
        options = self.cluster.options(
            rank, RANKS, hang_floor_ms=FLOOR_MS, on_suspicion="halt", capture_every=CAPTURE_EVERY,
            own_slots=3,  # so that one is free although the last capture is not committed yet
            restore_timeout_ms=60_000, library=build_file_of("libckptengine.so"))
        folders = [ROOT / "python", ROOT / "python" / "tests", Path(__file__).parent]
        return subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nccl_trainer.py"), self.folder, str(rank), str(RANKS),
             json.dumps({key: str(value) for key, value in options.items()})],
            env={**os.environ, "LD_LIBRARY_PATH": f"{GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                 "LD_PRELOAD": str(build_file_of("libckptinterpose.so")),
                 "PYTHONPATH": os.pathsep.join(map(str, folders))})

    def kill(self) -> None:
        for trainer in self.trainers:
            trainer.kill()
            trainer.wait(DEADLINE_S)

    def command(self, name: str, rank: int) -> None:
        (self.folder / f"{name}-{rank}").touch()

    def newest(self, rank: int) -> int:
        path = self.folder / f"losses-{rank}"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # whole ones
        return int(lines[-1].split()[0]) if lines else -1

    def restored(self, rank: int) -> list[list]:
        path = self.folder / f"restored-{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_true(self, is_so) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def committed(self, rank: int) -> int:
        """As the agent of its node says."""
        where = [f"job={self.cluster.job}", f"arena_dir={self.cluster.arena}", f"node=n{rank}"]
        asked = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where], capture_output=True, text=True,
                               check=False, timeout=DEADLINE_S)
        return (json.loads(asked.stdout)["agents"][0]["committed"] or {"iteration": -1})["iteration"]

    def await_iteration(self, past: int) -> None:
        """Waits until some iterations after the last capture of main shards. So a newer iteration can only come from a
        late capture. On a GPU, that needs a slot that was free when the iteration ended. So it also waits until the
        last capture is committed, and its agents have granted the next slot."""

        def is_between() -> bool:
            return self.newest(0) >= past and 3 <= self.newest(0) % CAPTURE_EVERY <= 6

        def is_committed() -> bool:
            due = self.newest(0) // CAPTURE_EVERY * CAPTURE_EVERY
            return all(self.committed(rank) == due for rank in range(RANKS))

        self.await_true(lambda: is_between() and is_committed() and is_between())

    def logs(self) -> list[str]:
        """Of the agents."""
        return [path.read_text() for path in self.cluster.arena.glob("*/n*/ckptd.log")]

    def go_on(self) -> None:
        """Rank 0 stays in its process and keeps its tensors, and rank 1 gets them from it. Both train on."""
        pid = self.trainers[0].pid
        self.trainers[1].wait(DEADLINE_S)
        live = self.newest(0)
        assert live % CAPTURE_EVERY != 0
        self.trainers[1] = self.start(1)
        whole = self.folder / "end.new"
        whole.write_text(str(live + 15))
        whole.rename(self.folder / "end")
        assert [trainer.wait(DEADLINE_S) for trainer in self.trainers] == [0] * RANKS
        assert self.restored(0)[-1] == [pid, Tier.LIVE.name, live, [live % 251]]
        assert self.restored(1)[-1][2:] == [live, [live % 251]]
        assert [self.newest(rank) for rank in range(RANKS)] == [live + 14] * RANKS


@pytest.fixture
def job(cluster, tmp_path):
    job = Job(cluster, tmp_path / "job")
    yield job
    job.kill()


def test_a_rank_whose_peer_is_killed_is_freed_from_nccl_and_keeps_its_tensors(job):
    job.await_iteration(12)
    job.command("die", 1)
    job.go_on()


def test_rank_that_does_not_join_is_named_without_marks_of_training(job):
    job.await_iteration(12)
    job.command("sleep", 1)
    # Rank 0 rejoins soon, which ends the halt. The log keeps it.
    job.await_true(lambda: any("is halted" in log for log in job.logs()))
    assert any("because rank 1 on node n1" in log for log in job.logs())
    job.trainers[1].kill()
    job.go_on()


def in_python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=os.environ | environment, check=True,
                          capture_output=True, text=True, timeout=DEADLINE_S)


ATTACH = """
import ctypes, sys
attach = ctypes.CDLL(sys.argv[1]).ckpt_interpose_attach
attach.restype = ctypes.c_char_p
engine = (ctypes.c_void_p * 5)(40, 1)
print(attach(engine))
"""


def test_library_that_was_not_preloaded_reports_it():
    library = build_file_of("libckptinterpose.so")
    said = in_python(ATTACH, library).stdout
    assert "was loaded too late" in said
    assert f"Set LD_PRELOAD to its path before training starts: {library}" in said
    assert in_python(ATTACH, library, LD_PRELOAD=str(library)).stdout == "None\n"


def test_call_without_nccl_fails_with_one_message():
    library = build_file_of("libckptinterpose.so")
    code = "import ctypes, sys; count = ctypes.CDLL(sys.argv[1]).ncclCommCount; print(count(0, 0), count(0, 0))"
    done = in_python(code, library)
    assert done.stdout == "3 3\n"
    assert done.stderr.count("NCCL has no function ncclCommCount") == 1


def test_a_command_prints_where_the_library_is():
    printed = subprocess.run([sys.executable, "-m", "ckptengine.interpose"], check=True, capture_output=True, text=True,
                             env=os.environ | {"PYTHONPATH": str(ROOT / "python")}, timeout=DEADLINE_S).stdout.strip()
    assert Path(printed).is_file()
    assert Path(printed).name == "libckptinterpose.so"
