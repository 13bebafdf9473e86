"""A rank that stays when another one fails: jit_trainer.py FOLDER KIND OPTIONS (JSON), started by ckptrun.

It appends "ITERATION LOSS TIME" to FOLDER/losses-RANK, and for each call of the training function a line to
FOLDER/begins-RANK: its process, the restored iteration, the tier of the main shard, and the time. FOLDER/do-RANK holds
"WHAT WHERE": the process does WHAT (kill, stop, spin) once it gets to the place WHERE (forward, backward, all_reduce,
joined, update), and removes the file before. It ends with the iteration that FOLDER/end names."""

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


class Trainer:
    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.rank = folder, dist.get_rank()
        torch.manual_seed(1)
        layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
        layers[1].register_forward_hook(lambda _, __, out: self.in_backward(out))
        if kind == "hsdp":
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            for layer in layers:
                fully_shard(layer, mesh=mesh)
            self.model = fully_shard(layers, mesh=mesh)
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
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])

    def one_pass(self) -> torch.Tensor:
        """The loss of all ranks."""
        self.at("forward")
        inputs = torch.randn(4, WIDTH, generator=self.data)
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean()
        loss.backward()
        total = loss.detach().clone()
        self.at("all_reduce", late_s=0.2)  # the others wait in it
        work = dist.all_reduce(total, async_op=True)
        self.at("joined")  # some of the others may get the result
        work.wait()
        return total

    def step(self) -> None:
        self.optimizer.step()
        self.schedule.step()

    def train(self, checkpointer: Checkpointer) -> None:
        if not checkpointer.is_warming_up:
            told = (os.getpid(), checkpointer.restored.iteration, checkpointer.restored.main_tier.name, time.time())
            with (self.folder / f"begins-{self.rank}").open("a") as file:
                file.write(" ".join(map(str, told)) + "\n")
        end = self.folder / "end"
        iteration = checkpointer.next_iteration
        with (self.folder / f"losses-{self.rank}").open("a", buffering=1) as losses:
            while not end.exists() or iteration < int(end.read_text()):
                time.sleep(COMPUTING_S)
                total = self.one_pass()
                with checkpointer.update(iteration):
                    self.step()
                losses.write(f"{iteration} {total.item().hex()} {time.time()}\n")
                iteration += 1


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
    options |= {"node": f"n{dist.get_rank()}", "communication": "patch"}  # the agents see all communications
    state = {"schedulers": trainer.schedule, "extra": {"data": trainer.data}}
    with Checkpointer(trainer.model, trainer.optimizer, **state, **options) as checkpointer:
        run(trainer.train, checkpointer)
    (folder / f"done-{trainer.rank}").touch()


if __name__ == "__main__":
    main()
