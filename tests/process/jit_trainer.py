"""A rank that stays when another one fails: jit_trainer.py FOLDER KIND OPTIONS (JSON), started by ckptrun.

It appends "ITERATION LOSS TIME" to FOLDER/losses-RANK, and for each call of the training function a line to
FOLDER/begins-RANK: its process, the restored iteration, the tier of the main shard, and the time. Before it restores,
it appends its process to FOLDER/restores-RANK. FOLDER/do-RANK holds "WHAT WHERE": the process does WHAT once it gets to
the place WHERE, and removes the file before. WHAT is kill, stop, spin, late (it comes to its next communication two
seconds late), pause (for as long, announced), slow (for some iterations), trouble (it reports that a communication
failed). WHERE is restore, begin (of an iteration), forward, backward, all_reduce, joined or update. The rank ends with
the iteration that FOLDER/end names.

KIND is ddp, hsdp, fsdp, tensor (two shards, each with two data-parallel ranks), or pipeline: two stages, each with two
data-parallel ranks."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer, run
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
COMPUTING_S = 0.03
LATE_S = 2.0
SLOW_ITERATIONS, SLOWNESS = 20, 5


def with_tensor_parallelism(layers: nn.Module) -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "tensor"))
    plan = {str(i): RowwiseParallel() if i % 2 else ColwiseParallel() for i in range(len(layers))}
    parallelize_module(layers, mesh["tensor"], plan)
    _pre_dp_module_transform(layers)
    return DistributedDataParallel(layers, bucket_cap_mb=0.02, process_group=mesh["replicate"].get_group())


class Trainer:
    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.rank = folder, dist.get_rank()
        torch.manual_seed(1)
        layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        for layer in (layers[1], layers[4]):
            layer.register_forward_hook(lambda _, __, out: self.in_backward(out))
        self.stage: int | None = None
        self.slow_iterations = 0
        self.checkpointer: Checkpointer | None = None
        if kind in ("hsdp", "fsdp"):
            from torch.distributed.fsdp import fully_shard

            replicas = {"mesh_dim_names": ("replicate", "shard")} if kind == "hsdp" else {}
            mesh = init_device_mesh("cpu", (2, 2) if kind == "hsdp" else (4,), **replicas)
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(layers, mesh=mesh)
        elif kind == "tensor":
            self.model = with_tensor_parallelism(layers)
        elif kind == "pipeline":
            replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])]
            self.stage = self.rank % 2
            own = layers[:3] if self.stage == 0 else layers[3:]
            self.model = DistributedDataParallel(own, bucket_cap_mb=0.02, process_group=replicas[self.stage])
        else:
            self.model = DistributedDataParallel(layers, bucket_cap_mb=0.02)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.optimizer.register_step_post_hook(lambda *_: self.at("update"))
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)  # a wrong rate shows in the losses
        self.data = torch.Generator().manual_seed(self.rank)

    def in_backward(self, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: self.at("backward"))

    def at(self, where: str, late_s: float = 0) -> None:
        path = self.folder / f"do-{self.rank}"
        if not path.exists() or path.read_text().split()[1] != where:
            return
        what = path.read_text().split()[0]
        path.unlink()
        time.sleep(late_s)
        if what == "spin":
            re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread in
        elif what == "late":
            time.sleep(LATE_S)
        elif what == "pause":
            with self.checkpointer.pause("eval"):
                time.sleep(LATE_S)
        elif what == "slow":
            self.slow_iterations = SLOW_ITERATIONS
        elif what == "trouble":
            self.checkpointer.engine.report_trouble("a test says so")
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])

    def one_pass(self) -> torch.Tensor:
        """The loss of all ranks."""
        self.at("forward")
        inputs = torch.randn(4, WIDTH, generator=self.data)
        self.optimizer.zero_grad()
        total = self.backward(inputs) if self.stage is None else self.backward_of_stage(inputs)
        self.at("all_reduce", late_s=0.2)  # the others wait in it
        work = dist.all_reduce(total, async_op=True)
        self.at("joined")  # some of the others may get the result
        work.wait()
        return total

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    def backward(self, inputs: torch.Tensor) -> torch.Tensor:
        loss = self.model(inputs).square().mean()
        loss.backward()
        return loss.detach().clone()

    def backward_of_stage(self, inputs: torch.Tensor) -> torch.Tensor:
        """Activations go to the next rank, and gradients come back."""
        if self.stage == 0:
            outputs = self.model(inputs)
            dist.send(outputs.detach(), self.rank + 1)
            gradients = torch.empty_like(outputs)
            dist.recv(gradients, self.rank + 1)
            outputs.backward(gradients)
            return torch.zeros(())
        received = torch.empty(4, WIDTH)
        dist.recv(received, self.rank - 1)
        received.requires_grad_()
        loss = self.backward(received)
        dist.send(received.grad, self.rank - 1)
        return loss

    def train(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer
        if not checkpointer.is_warming_up:
            told = (os.getpid(), checkpointer.restored.iteration, checkpointer.restored.main_tier.name, time.time())
            with (self.folder / f"begins-{self.rank}").open("a") as file:
                file.write(" ".join(map(str, told)) + "\n")
        end = self.folder / "end"
        iteration = checkpointer.next_iteration
        with (self.folder / f"losses-{self.rank}").open("a", buffering=1) as losses:
            while not end.exists() or iteration < int(end.read_text()):
                self.at("begin")
                time.sleep(COMPUTING_S * (SLOWNESS if self.slow_iterations > 0 else 1))
                self.slow_iterations -= 1
                total = self.one_pass()
                with checkpointer.update(iteration):
                    self.step()
                losses.write(f"{iteration} {total.item().hex()} {time.time()}\n")
                iteration += 1


class TellingCheckpointer(Checkpointer):
    trainer: Trainer

    def restore(self):
        with (self.trainer.folder / f"restores-{self.trainer.rank}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        self.trainer.at("restore")
        return super().restore()


def undisturbed(folder: Path, rank: int, ranks: int, kind: str, end: int) -> None:
    """Trains without an engine, with torch's own gloo, to FOLDER/undisturbed-RANK: the losses by iteration."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    trainer, losses = Trainer(folder / "nothing", kind), []
    for _ in range(end):
        losses.append(trainer.one_pass().item().hex())
        trainer.step()
    (folder / f"undisturbed-{rank}").write_text(json.dumps(dict(enumerate(losses))))


def main() -> None:
    folder, kind, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("ckpt:gloo")
    trainer = Trainer(folder, kind)
    options |= {"node": f"n{dist.get_rank()}"}
    TellingCheckpointer.trainer = trainer
    state = {"schedulers": trainer.schedule, "extra": {"data": trainer.data}}
    with TellingCheckpointer(trainer.model, trainer.optimizer, **state, **options) as checkpointer:
        run(trainer.train, checkpointer)
    (folder / f"done-{trainer.rank}").touch()


if __name__ == "__main__":
    main()
