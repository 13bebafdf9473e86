"""Groups whose connections are replaced compute what gloo computes, and survive what happens to other ranks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import group_trainer
import pytest
import torch
import torch.distributed as dist
from group_trainer import DEADLINE_S, RANKS

END = 12
AT = 6  # the iteration of the fault

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["group_trainer"])


class Job:
    """Four ranks, and the store that outlives them."""

    def __init__(self, folder: Path, kind: str, end: int = END) -> None:
        self.folder, self.kind, self.end = folder, kind, end
        folder.mkdir()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.incarnation = 1
        self.ranks = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank: int):
        process = processes.Process(
            target=group_trainer.main,
            args=(self.folder, self.store.port, rank, self.kind, self.end, self.incarnation),
        )
        process.start()
        return process

    def command(self, rank: int, what: str, where: str, iteration: int = AT) -> None:
        whole = self.folder / f"do-{rank}.new"
        whole.write_text(f"{what} {where} {iteration}")
        whole.rename(self.folder / f"do-{rank}")

    def newest(self) -> int:
        """The newest iteration whose state every rank has."""
        kept = [{int(path.name.split("-")[2]) for path in self.folder.glob(f"state-{rank}-*") if not path.suffix}
                for rank in range(RANKS)]
        return max(set.intersection(*kept), default=-1)

    def until(self, condition) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def replace(self, rank: int) -> float:
        """Interrupts the others, starts the rank anew, and lets all go on. Returns the slowest interruption in s."""
        before = [process.pid for process in self.ranks]
        (self.folder / f"interrupt-{self.incarnation}").touch()
        told = [self.folder / f"interrupted-{other}-{self.incarnation}" for other in range(RANKS) if other != rank]
        self.until(lambda: all(path.exists() and path.read_text() for path in told))
        self.ranks[rank].kill()
        self.ranks[rank].join(DEADLINE_S)
        self.incarnation += 1
        whole = self.folder / "resume.new"
        whole.write_text(str(self.newest()))
        whole.rename(self.folder / f"resume-{self.incarnation}")
        self.ranks[rank] = self.start(rank)
        assert [process.pid for process in self.ranks if process is not self.ranks[rank]] == [
            pid for pid in before if pid != before[rank]]
        return max(float(path.read_text()) for path in told)

    def losses(self) -> list[dict[int, str]]:
        found = []
        for rank in range(RANKS):
            lines = (self.folder / f"losses-{rank}").read_text().splitlines()
            found.append({})
            for line in lines:
                iteration, loss = line.split()
                assert found[-1].setdefault(int(iteration), loss) == loss
        return found

    def finish(self) -> list[dict[int, str]]:
        for process in self.ranks:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in self.ranks] == [0] * RANKS
        return self.losses()

    def close(self) -> None:
        (self.folder / "ended").touch()
        for process in self.ranks:
            process.kill()
            process.join()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def make(kind: str, **more) -> Job:
        jobs.append(Job(tmp_path / f"job{len(jobs)}", kind, **more))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    known = {}

    def losses(kind: str) -> list[dict[int, str]]:
        if kind not in known:
            job = Job(tmp_path_factory.mktemp("undisturbed") / kind, kind)
            try:
                known[kind] = job.finish()
            finally:
                job.close()
        return known[kind]

    return losses


@pytest.mark.parametrize("kind", ["ddp", "plain", "accumulate", "hsdp"])
@pytest.mark.parametrize(("what", "where"), [("SIGKILL", "backward"), ("SIGSTOP", "backward")])
def test_survivors_go_on_bit_for_bit_with_a_newcomer(start, undisturbed, kind, what, where):
    job = start(kind)
    job.command(2, what, where)
    job.until(lambda: not (job.folder / "do-2").exists())
    time.sleep(0.3)
    slowest_s = job.replace(2)
    print(kind, what, where, "interrupted after", slowest_s)
    assert job.finish() == undisturbed(kind)
