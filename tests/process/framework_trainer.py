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
from ckptengine import Stage as Reached
from ckptengine.torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

WIDTH, HIDDEN, OUT = 7, 10, 3  # which neither two nor four ranks divide, but for HIDDEN
BATCH = 4
COMMIT_MS = 60_000


def layers() -> nn.Sequential:
    torch.manual_seed(1)  # the same everywhere
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, OUT), nn.LayerNorm(OUT))


def tensor_parallel(mesh) -> nn.Module:
    return parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Stage(nn.Module):
    """Of a pipeline. The first gives the last its output, and is given the output's gradient."""

    def __init__(self, part: nn.Module, last: bool) -> None:
        super().__init__()
        self.part, self.last = part, last

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.last:
            return Handed.apply(self.part(inputs), dist.get_rank() + 2)
        handed = torch.empty(len(inputs), HIDDEN)
        dist.recv(handed, dist.get_rank() - 2)
        handed.requires_grad_().register_hook(lambda gradient: dist.send(gradient, dist.get_rank() - 2))
        return self.part(handed)


class Handed(torch.autograd.Function):
    @staticmethod
    def forward(context, output, to):
        context.to = to
        dist.send(output.contiguous(), to)
        return output[:, :OUT]

    @staticmethod
    def backward(context, gradient):
        whole = torch.empty(len(gradient), HIDDEN)
        dist.recv(whole, context.to)
        return whole, None


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

    def loaded(self) -> None:
        self.model = DistributedDataParallel(nn.Sequential(nn.Dropout(0.3), layers()))

    def compiled(self) -> None:
        """With a backend that runs the traced graphs as they are. To compile them with inductor takes longer."""
        model = nn.Sequential(nn.Dropout(0.3), layers())
        self.model = DistributedDataParallel(torch.compile(model, backend="aot_eager", fullgraph=True))

    def expert(self) -> None:
        """Layers that all share, and an expert for each rank, of which FSDP2 knows nothing."""
        shared = layers()
        torch.manual_seed(100 + dist.get_rank())
        self.model = nn.Sequential(shared, nn.Linear(OUT, OUT))
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        fully_shard(self.model, mesh=mesh, ignored_params=set(self.model[1].parameters()))

    def pipeline(self) -> None:
        """Two stages, each on two ranks with FSDP2. Their tensors have the same names."""
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
        whole, last = layers(), mesh.get_local_rank("stage") == 1
        self.model = Stage(whole[2:] if last else whole[:2], last)
        fully_shard(self.model, mesh=mesh["data"])
        self.data_rank = mesh.get_local_rank("data")

    def _two_dimensions(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        self.data_rank = mesh.get_local_rank("data")
        return mesh


class Training:
    def __init__(self, kind: str) -> None:
        spread = Spread(kind)
        self.model, self.spoil = spread.model, False
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        self.data = torch.Generator().manual_seed(spread.data_rank)
        self.extra = {"data": self.data}
        # An average of the weights: DTensors where the weights are.
        named = self.model.named_parameters() if spread.average else ()
        self.average = {name: parameter.detach().clone() for name, parameter in named}
        torch.manual_seed(1000 + spread.data_rank)  # for the noise below, so that its generator must come back, too

    def checkpointer(self, options: dict) -> Checkpointer:
        return Checkpointer(self.model, self.optimizer, schedulers=self.scheduler, tensors=self.average,
                            extra=self.extra, **options)

    def forward_backward(self) -> float:
        inputs = torch.randn(BATCH, WIDTH, generator=self.data) + 0.1 * torch.randn(BATCH, WIDTH)
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), inputs[:, :OUT])
        loss.backward()
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        parameters = dict(self.model.named_parameters())
        if self.spoil:  # what only one rank of those that share a shard has
            with torch.no_grad():
                next(self.model.parameters()).to_local().add_(1)
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


class Examples(torch.utils.data.Dataset):
    """Fixed ones, which the workers of a data loader take in a random order."""

    def __init__(self, count: int) -> None:
        self.all = torch.randn(count, WIDTH)

    def __len__(self) -> int:
        return len(self.all)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.all[index]


class LoadedTraining(Training):
    """Takes its examples from torchdata's loader with two workers. Two batches make an update, and the first epoch
    ends between the two."""

    def __init__(self, kind: str) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader  # which other trainings do not need

        super().__init__(kind)
        self.loader = StatefulDataLoader(Examples(5 * BATCH), batch_size=BATCH, shuffle=True, num_workers=2,
                                         multiprocessing_context="fork")
        self.extra, self.batches = {"data": self.loader}, None

    def forward_backward(self) -> float:
        self.optimizer.zero_grad()
        with self.model.no_sync():
            first = self._accumulate()
        return first + self._accumulate()

    def _accumulate(self) -> float:
        inputs = self._next_batch()
        loss = mse_loss(self.model(inputs), inputs[:, :OUT])
        loss.backward()
        return loss.item()

    def _next_batch(self) -> torch.Tensor:
        self.batches = self.batches or iter(self.loader)
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return batch


TRAININGS = {"loaded": LoadedTraining}


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

    training = TRAININGS.get(settings["kind"], Training)(settings["kind"])
    checkpointer, first = None, 0
    if settings["engine"] is not None:
        checkpointer = training.checkpointer(settings["engine"])
        start = checkpointer.restore()
        first = start.next_iteration
        tell(found=start.found, first=first, shard=checkpointer.shard)
    for k in range(first, settings["iterations"]):
        training.spoil = settings["spoils"] == [rank, k]
        if k == settings["die_at"] and rank in settings["victims"]:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = training.forward_backward()
        tell(k=k, loss=loss.hex())
        if checkpointer is None:
            training.update()
        else:
            with checkpointer.update(k):
                training.update()
            checkpointer.ticket.wait(Reached.CAPTURING, COMMIT_MS)  # before_update() skips a snapshot that has no slot
            checkpointer.before_update()
            if settings["spoils"] and k == settings["spoils"][1]:
                continue  # nobody should wait for it
            committed = checkpointer.ticket.wait(Reached.COMMITTED, COMMIT_MS)
            tell(k=k, committed=committed, message=checkpointer.ticket.message)
    if settings["whole"]:
        torch.save(training.whole(), Path(settings["log"]).with_suffix(".pt"))
    if checkpointer is not None:
        checkpointer.close()
    dist.barrier()  # rank 0 serves the others until then
    tell(ended=True)
    os._exit(0)
