"""Processes that communicate over gloo, for tests: `run(scenario, ranks)` runs the function of that name below in each
of `ranks` processes."""

from __future__ import annotations

import copy
import tempfile
import time

import torch
import torch.distributed as dist
from ckptengine import Engine
from ckptengine.torch._communication import Communication
from comm_words import CommWords
from fork_server import TORCH, Processes
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DEADLINE_S = 60

processes = Processes(*TORCH)


def run(scenario: str, ranks: int, job: dict | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="ckptengine-test-") as folder:
        children = [
            processes.Process(target=take_part, args=(scenario, rank, ranks, f"{folder}/store", job))
            for rank in range(ranks)
        ]
        for child in children:
            child.start()
        try:
            for child in children:
                child.join(2 * DEADLINE_S)
            assert [child.exitcode for child in children] == [0] * ranks
        finally:
            for child in children:
                child.kill()


def take_part(scenario: str, rank: int, ranks: int, path: str, job: dict | None) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(path, ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    globals()[scenario](rank, dist.PrefixStore("test", store), job)
    dist.barrier()
    dist.destroy_process_group()


class Told(list):
    """An engine that notes (begins, stream), and the stream of the GPU where there is one. Notes bubbles apart."""

    def __init__(self) -> None:
        super().__init__()
        self.bubbles: list[bool | tuple] = []  # True: one begins; with a stream, (True, stream)

    def comm_begin(self, *where: int) -> None:
        self.append((True, *where))

    def comm_end(self, *where: int) -> None:
        self.append((False, *where))

    def bubble_begin(self, *on: int) -> None:
        self.bubbles.append((True, *on) if on else True)

    def bubble_end(self, *on: int) -> None:
        self.bubbles.append((False, *on) if on else False)

    def is_busy(self) -> bool:
        return 2 * sum(told[0] for told in self) != len(self)


def until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)


# ---- scenarios ----


def busy_while_under_way(rank: int, store: dist.Store, job: dict) -> None:
    """Rank 1 takes part only when rank 0 has seen that its stream is busy."""
    if rank == 1:
        for step in range(5):
            store.wait([f"go{step}"])
            if step < 3:
                dist.all_reduce(torch.ones(4))
            elif step == 3:
                dist.recv(torch.ones(4), 0)
            else:
                dist.send(torch.ones(4), 0)
        return
    with Engine(**job) as engine:
        engine.restore()
        words = CommWords(job)
        communication = Communication(engine, patch=True)

        def begin(step: int, call) -> dist.Work:
            assert not words.is_busy()
            work = call()
            assert words.channels()[0] == (step + 1, step)
            store.set(f"go{step}", "")
            return work

        tensor = torch.ones(4)
        work = begin(0, lambda: dist.all_reduce(tensor, async_op=True))
        for _ in range(3):
            work.wait()
            assert words.channels()[0] == (1, 1)
        # Nobody waits: the end is when the future is done.
        begin(1, lambda: dist.all_reduce(tensor, async_op=True))
        until(lambda: words.channels()[0] == (2, 2))
        begin(2, lambda: dist.all_reduce(tensor, async_op=True)).wait()
        work = begin(3, lambda: dist.isend(tensor, 1))
        work.wait()
        assert words.channels()[0] == (4, 4)
        # The engine goes in the middle: nothing is told any more, and nothing breaks.
        work = begin(4, lambda: dist.irecv(tensor, 1))
        communication.close()
    work.wait()
    assert words.channels()[0] == (5, 4)


def groups_have_channels_of_their_own(rank: int, store: dist.Store, job: dict) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(9)]
    told = Told()
    communication = Communication(told, patch=True)
    for group in groups:
        dist.all_reduce(torch.ones(1), group=group)
    communication.close()
    assert [channel for begins, channel in told if begins] == [0, 1, 2, 3, 4, 5, 6, 7, 7]


def model_and_batches(rank: int, dtype: torch.dtype, sparse: bool) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(50, 33, sparse=sparse), nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 7)).to(dtype)
    generator = torch.Generator().manual_seed(rank)
    return model, [torch.randint(0, 50, (11,), generator=generator) for _ in range(4)]


def gradients(rank: int, how: str | None, dtype: torch.dtype, sparse: bool, **options) -> tuple[list, Told]:
    """Of four iterations of training, in which buckets are rebuilt too."""
    told = Told()
    communication = Communication(told, patch=how == "patch") if how else None
    model, batches = model_and_batches(rank, dtype, sparse)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, **options)
    if how == "hooks":
        communication.place([ddp])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.3)
    found = []
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        ddp(batch).float().square().sum().backward()
        found += [parameter.grad.to_dense().clone() for parameter in ddp.parameters()]
        optimizer.step()
    until(lambda: not told.is_busy())  # futures tell those who wait for them first, and what is called then later
    if communication is not None:
        communication.close()
    assert bool(getattr(ddp, "_comm_hooks", [])) == bool(how)
    return found, told


def ddp_computes_the_same_bits(rank: int, store: dist.Store, job: dict) -> None:
    variants = [(torch.float32, False, {}), (torch.bfloat16, False, {}), (torch.float32, True, {})]
    if dist.get_world_size() == 2:
        variants += [(torch.float32, False, {"gradient_as_bucket_view": True})]
    if "batched_grad_copy" in DistributedDataParallel.__init__.__code__.co_varnames:
        variants += [(torch.float32, False, {"batched_grad_copy": True})]
    for dtype, sparse, options in variants:
        expected, nothing = gradients(rank, None, dtype, sparse, **options)
        assert nothing == []
        for how in ("hooks", "patch"):
            found, told = gradients(rank, how, dtype, sparse, **options)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (how, dtype, sparse, options)
            assert any(gradient.any() for gradient in found)
            assert len(told) >= 2 * 4 and not told.is_busy(), (how, told)


def ddp_that_cannot_be_matched_is_left_alone(rank: int, store: dist.Store, job: dict) -> None:
    told = Told()
    communication = Communication(told, patch=True)
    model, batches = model_and_batches(rank, torch.float32, False)
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    ddp(batches[0]).sum().backward()
    assert ddp._comm_hooks == []
    communication.close()


def fsdp_is_told(rank: int, store: dist.Store, job: dict) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    told = Told()
    communication = Communication(told, patch=True)
    for shard in (lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")), fully_shard):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        sharded = shard(copy.deepcopy(model))
        before = len(told)
        sharded(torch.randn(3, 8)).sum().backward()
        until(lambda: not told.is_busy())
        assert len(told) - before >= 2 * 2, told  # parameters are gathered and gradients are scattered
    communication.close()
