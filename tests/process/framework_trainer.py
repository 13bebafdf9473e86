"""One rank of a small training job, in each of PyTorch's ways to spread a model over ranks. For test_frameworks.py.

Every rank appends to a file of its own, a line of JSON for each event: what it restored, and each iteration's loss.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint  # late otherwise, in every rank after it was forked
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

WIDTH, HIDDEN, OUT = 7, 10, 3  # which neither two nor four ranks divide, but for HIDDEN
COMMIT_MS = 60_000


def layers() -> nn.Sequential:
    torch.manual_seed(1)  # the same everywhere
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, OUT), nn.LayerNorm(OUT))


def tensor_parallel(mesh) -> nn.Module:
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Spread:
    """A model, and which of its copies this rank feeds."""

    def __init__(self, kind: str) -> None:
        self.data_rank, self.average = dist.get_rank(), True
        getattr(self, kind)()

    def fsdp2(self) -> None:
        self.model = layers()
        fully_shard(self.model[0])
        fully_shard(self.model)

    def hsdp(self) -> None:
        self.model = layers()
        fully_shard(self.model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))

    def tensor(self) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
        self.model, self.data_rank = tensor_parallel(mesh), 0

    def fsdp2_tensor(self) -> None:
        mesh = self._two_dimensions()
        self.model = tensor_parallel(mesh["tensor"])
        fully_shard(self.model, mesh=mesh["data"])

    def ddp_tensor(self) -> None:
        mesh = self._two_dimensions()
        self.model = DistributedDataParallel(tensor_parallel(mesh["tensor"]), device_mesh=mesh["data"])
        self.average = False

    def ddp(self) -> None:
        self.model, self.average = DistributedDataParallel(layers()), False

    def _two_dimensions(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        self.data_rank = mesh.get_local_rank("data")
        return mesh


class Training:
    def __init__(self, kind: str) -> None:
        spread = Spread(kind)
        self.model = spread.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        self.data = torch.Generator().manual_seed(spread.data_rank)
        # An average of the weights: DTensors where the weights are.
        named = self.model.named_parameters() if spread.average else ()
        self.average = {name: parameter.detach().clone() for name, parameter in named}
        torch.manual_seed(1000 + spread.data_rank)  # for the noise below, so that its generator must come back, too

    def checkpointer(self, options: dict) -> Checkpointer:
        return Checkpointer(self.model, self.optimizer, schedulers=self.scheduler, tensors=self.average,
                            extra={"data": self.data}, **options)

    def forward_backward(self) -> float:
        inputs = torch.randn(4, WIDTH, generator=self.data) + 0.1 * torch.randn(4, WIDTH)
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), inputs[:, :OUT])
        loss.backward()
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, average in self.average.items():
                average.lerp_(parameters[name], 0.1)

    def whole(self) -> dict[str, torch.Tensor]:
        """Every tensor that is spread over ranks, as torch itself puts it together."""
        found = {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}
        for name, parameter in self.model.named_parameters():
            found |= {f"optim.{key}.{name}": value for key, value in self.optimizer.state[parameter].items()}
        found |= {f"tensor.{name}": value for name, value in self.average.items()}
        return {name: value.full_tensor() for name, value in found.items() if isinstance(value, DTensor)}


def run(settings: dict) -> None:
    """All that a rank does. Dies at the begin of iteration `die_at`, if it is one of `victims`."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank = settings["rank"]
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=rank,
                            world_size=settings["world_size"], timeout=timedelta(seconds=120))
    log = open(settings["log"], "w", buffering=1)

    def tell(**event) -> None:
        log.write(json.dumps(event) + "\n")

    training = Training(settings["kind"])
    checkpointer, first = None, 0
    if settings["engine"] is not None:
        checkpointer = training.checkpointer(settings["engine"])
        start = checkpointer.restore()
        first = start.next_iteration
        tell(found=start.found, first=first, shard=checkpointer.shard)
    for k in range(first, settings["iterations"]):
        if k == settings["die_at"] and rank in settings["victims"]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = training.forward_backward()
        tell(k=k, loss=loss.hex())
        if checkpointer is None:
            training.update()
        else:
            with checkpointer.update(k):
                training.update()
            checkpointer.before_update()
            committed = checkpointer.ticket.wait(Stage.COMMITTED, COMMIT_MS)
            tell(k=k, committed=committed, message=checkpointer.ticket.message)
    if settings["whole"]:
        torch.save(training.whole(), Path(settings["log"]).with_suffix(".pt"))
    if checkpointer is not None:
        checkpointer.close()
    dist.barrier()  # rank 0 serves the others until then
    tell(ended=True)
    os._exit(0)
