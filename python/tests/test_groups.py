"""Groups whose connections are replaced compute what gloo computes, and survive what happens to other ranks."""

from __future__ import annotations

import time
from pathlib import Path

import group_scenarios
import group_trainer
import pytest
import torch
import torch.distributed as dist
from ckptengine.torch import groups
from group_scenarios import processes
from group_trainer import DEADLINE_S, RANKS
from torch.nn.parallel import DistributedDataParallel

END = 12
AT = 6  # the iteration of the fault


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
        kept = [
            {int(path.name.split("-")[2]) for path in self.folder.glob(f"state-{rank}-*") if not path.suffix}
            for rank in range(RANKS)
        ]
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
            pid for pid in before if pid != before[rank]
        ]
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
        self.until(
            lambda: (
                all(process.exitcode == 0 for process in self.ranks) or any(process.exitcode for process in self.ranks)
            )
        )
        assert not any(process.exitcode for process in self.ranks)
        return self.losses()

    def close(self) -> None:
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


CASES = [
    (kind, what, where)
    for kind in ("ddp", "plain", "accumulate", "hsdp")
    for what, where in (("SIGKILL", "backward"), ("SIGSTOP", "backward"), ("SIGSTOP", "forward"))
]
# Each fault and each place once.
EACH_CHANGE = [("ddp", "SIGKILL", "backward"), ("accumulate", "SIGSTOP", "forward"), ("hsdp", "SIGSTOP", "backward")]


@pytest.mark.parametrize(
    ("kind", "what", "where"),
    [case if case in EACH_CHANGE else pytest.param(*case, marks=pytest.mark.nightly) for case in CASES],
)
def test_survivors_continue_bit_for_bit_with_a_newcomer(start, undisturbed, kind, what, where):
    job = start(kind)
    job.command(2, what, where)
    job.until(lambda: not (job.folder / "do-2").exists())
    slowest_s = job.replace(2)
    print(f"{kind}, {what} in {where}: interrupted after {1000 * slowest_s:.1f} ms")
    assert job.finish() == undisturbed(kind)


@pytest.mark.parametrize(
    "scenario",
    [
        "computes_what_gloo_computes",
        "interrupts_whatever_a_rank_waits_for",
        "uses_no_more_memory_after_fifty",
        "raises_what_gloo_raises_without_a_guard",
    ],
)
def test_replaceable_group_of_three_ranks(scenario):
    group_scenarios.run(scenario)


def test_group_and_mesh_handles_stay_valid_after_a_replacement():
    group_scenarios.run("keeps_groups_and_meshes", 4)


# ---- closed groups ----


@pytest.fixture
def newcomer():
    """This process, as rank 0 of three, after an earlier process of that rank."""
    store = dist.HashStore()
    dist.init_process_group("ckpt:gloo", store=store, rank=0, world_size=1)
    dist.destroy_process_group()
    dist.init_process_group("ckpt:gloo", store=store, rank=0, world_size=3)
    assert groups.is_closed()
    yield
    dist.destroy_process_group()


def test_closed_groups_return_as_if_all_ranks_sent_the_same(newcomer):
    ones, twos = torch.ones(2), torch.full((2,), 2.0)
    with groups.guard():
        tensor = twos.clone()
        assert dist.all_reduce(tensor, async_op=True).get_future().wait()[0] is tensor
        assert tensor.tolist() == [6, 6]
        for op, value in ((dist.ReduceOp.PRODUCT, 8), (dist.ReduceOp.MAX, 2), (dist.ReduceOp.AVG, 2)):
            tensor = twos.clone()
            dist.all_reduce(tensor, op)
            assert tensor.tolist() == [value, value]
        out = [torch.empty(2) for _ in range(3)]
        dist.all_gather(out, twos)
        assert torch.stack(out).eq(2).all()
        whole = torch.empty(6)
        dist.all_gather_into_tensor(whole, twos)
        assert whole.eq(2).all()
        dist.reduce_scatter_tensor(ones, torch.arange(6.0))
        assert ones.tolist() == [0, 3]
        dist.broadcast(tensor, 1)
        assert tensor.tolist() == [2, 2]
        dist.all_to_all_single(whole, torch.arange(6.0))
        assert whole.tolist() == [0, 1] * 3
        dist.recv(tensor, 1)
        assert tensor.tolist() == [0, 0]
        objects = [None] * 3
        dist.all_gather_object(objects, "one")
        assert objects == ["one"] * 3
        dist.barrier()


def test_newcomer_may_build_a_model_but_not_communicate(newcomer):
    dist.barrier()
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match=r"gets no answer \(allreduce\) before ckptengine.torch.run\(\) lets it"):
        dist.all_reduce(torch.ones(1))
