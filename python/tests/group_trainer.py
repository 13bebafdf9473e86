"""A rank that trains with replaceable groups and without an engine, for tests. main() runs it.

It appends "ITERATION LOSS" to FOLDER/losses-RANK, and keeps its newest two states in FOLDER/state-RANK-ITERATION.
FOLDER/do-RANK holds "WHAT WHERE ITERATION": it sends itself the signal WHAT (SIGKILL, SIGSTOP) at the place WHERE of
that iteration. FOLDER/interrupt-N interrupts the N-th incarnation, and FOLDER/resume-N lets the next one begin: it has
the iteration from which all go on. FOLDER/interrupted-RANK-N says how many seconds the interruption took."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import Interrupted, _internals, groups
from ckptengine.torch._gradients import place
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

RANKS = 4
WIDTH = 48
DEADLINE_S = 60


def until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Trainer:
    def __init__(self, folder: Path, rank: int, kind: str, end: int) -> None:
        self.folder, self.rank, self.kind, self.end = folder, rank, kind, end
        self.iteration = 0
        self.interrupted_at = 0.0
        torch.manual_seed(1)
        inner = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(5)], nn.BatchNorm1d(WIDTH))
        inner[1].register_forward_hook(lambda _, __, out: self.in_backward(out))
        if kind == "hsdp":
            inner = inner[:5]
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            for layer in inner:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(inner, mesh=mesh)
        else:
            self.model = DistributedDataParallel(inner, bucket_cap_mb=0.01)
            if kind != "plain":
                place(self.model)  # the hook of ckptengine
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.data = torch.Generator().manual_seed(rank)

    def in_backward(self, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: self.at("backward"))

    def at(self, where: str) -> None:
        command = self.folder / f"do-{self.rank}"
        if command.exists():
            what, place_, iteration = command.read_text().split()
            if place_ == where and int(iteration) == self.iteration:
                command.unlink()
                os.kill(os.getpid(), getattr(signal, what))

    def one_pass(self) -> torch.Tensor:
        steps = 3 if self.kind == "accumulate" else 1
        for step in range(steps):
            self.at("forward")
            inputs = torch.randn(8, WIDTH, generator=self.data)
            last = step == steps - 1
            with contextlib.nullcontext() if last or self.kind == "hsdp" else self.model.no_sync():
                loss = self.model(inputs).square().mean()
                loss.backward()
        total = loss.detach().clone()
        self.at("all_reduce")
        dist.all_reduce(total)
        return total

    def tensors(self) -> list[torch.Tensor]:
        found = [*self.model.parameters(), *self.model.buffers()]
        for parameter in self.model.parameters():
            found += [value for value in self.optimizer.state.get(parameter, {}).values()]
        return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in found]

    def keep(self) -> None:
        path = self.folder / f"state-{self.rank}-{self.iteration}"
        whole = path.with_suffix(".new")
        torch.save({"tensors": [tensor.clone() for tensor in self.tensors()], "data": self.data.get_state()}, whole)
        whole.rename(path)
        (self.folder / f"state-{self.rank}-{self.iteration - 2}").unlink(missing_ok=True)

    def load(self, iteration: int) -> None:
        state = torch.load(self.folder / f"state-{self.rank}-{iteration}", weights_only=True)
        if len(state["tensors"]) != len(self.tensors()):  # AdamW makes its state in the first step
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()
        with torch.no_grad():
            for tensor, value in zip(self.tensors(), state["tensors"], strict=True):
                tensor.copy_(value)
        self.data.set_state(state["data"])
        self.iteration = iteration + 1

    def train(self) -> None:
        with (self.folder / f"losses-{self.rank}").open("a", buffering=1) as losses:
            while self.iteration < self.end:
                total = self.one_pass()
                groups.check()  # the gate
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.keep()
                losses.write(f"{self.iteration} {total.item().hex()}\n")
                self.iteration += 1

    def go_on(self, incarnation: int) -> None:
        """In the next incarnation, from the iteration that everybody has."""
        resume = self.folder / f"resume-{incarnation}"
        until(resume.exists)
        iteration = int(resume.read_text())
        kept = [tensor.clone() for tensor in self.tensors()]
        ours = self.iteration - 1 == iteration
        self.load(iteration)
        buffers = {tensor.data_ptr() for tensor in self.model.buffers()}
        if ours:  # no garbage has reached what only updates change
            for before, after in zip(kept, self.tensors(), strict=True):
                assert after.data_ptr() in buffers or torch.equal(before, after)
        groups.reopen(f"incarnation{incarnation}")
        _internals.reset_models([self.model])


def watch(folder: Path, trainer: list, incarnation: int) -> None:
    path = folder / f"interrupt-{incarnation}"
    while not path.exists():
        time.sleep(0.005)
    trainer[0].interrupted_at = time.monotonic()
    groups.interrupt("the test says so")


def main(folder: Path, port: int, rank: int, kind: str, end: int, incarnation: int = 1) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("ckpt:gloo", store=store, rank=rank, world_size=RANKS)
    with groups.guard():
        trainer = Trainer(folder, rank, kind, end)
        if incarnation > 1:
            assert groups.is_closed()
            for _ in range(2):
                trainer.one_pass()
            trainer.optimizer.zero_grad()
            trainer.go_on(incarnation)
        while True:
            watcher = threading.Thread(target=watch, args=(folder, [trainer], incarnation), daemon=True)
            watcher.start()
            try:
                trainer.train()
                break
            except Interrupted:
                watcher.join()  # a communication may fail before the interruption
                took_s = time.monotonic() - trainer.interrupted_at
                (folder / f"interrupted-{rank}-{incarnation}").write_text(str(took_s))
                groups.close()
                _internals.reset_models([trainer.model])
                incarnation += 1
                trainer.go_on(incarnation)
    dist.barrier()
    dist.destroy_process_group()
