"""One rank of a small job whose state is split over its ranks (FSDP2, and a DTensor), which may restart with another
number of ranks. For test_resize.py.

Every rank appends to a file of its own, a line of JSON for each event. At the end, all ranks save with
torch.distributed.checkpoint (DCP). Without an engine, the rank is the control: it loads such a checkpoint.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Error, Stage
from ckptengine.torch import Checkpointer
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import mse_loss

COMMIT_MS = 60_000


class Training:
    """Five rows and seven are no multiple of the numbers of ranks: some ranks have less of a tensor, or nothing."""

    def __init__(self, width: int, is_larger: bool) -> None:
        torch.manual_seed(1)  # the same everywhere
        layers = [nn.Linear(width, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, width)]
        if is_larger:
            layers.append(nn.Linear(width, width))
        self.model, self.width = nn.Sequential(*layers), width
        for layer in (self.model[0], self.model[3]):
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.8)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.table = distribute_tensor(torch.zeros(3, 10), mesh, [Shard(1)])

    def checkpointer(self, options: dict) -> Checkpointer:
        tensors = {"table": self.table}
        return Checkpointer(self.model, self.optimizer, schedulers=self.scheduler, tensors=tensors, **options)

    def step(self, k: int) -> float:
        inputs = torch.randn(4, self.width, generator=torch.Generator().manual_seed(100 * k + dist.get_rank()))
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), inputs) + self.table.full_tensor().mean()
        loss.backward()
        return loss.item()

    def update(self, k: int) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.table += distribute_tensor(
            torch.arange(30.0).reshape(3, 10) * k, self.table.device_mesh, self.table.placements
        )

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "table": self.table, "scheduler": self.scheduler.state_dict()}

    def load(self, folder: str) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.scheduler.load_state_dict(state["scheduler"])


def run(settings: dict) -> None:
    """Runs from what is restored up to iteration `until`, and then is killed like all others."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=settings["rank"],
                            world_size=settings["world_size"], timeout=timedelta(seconds=60))
    log = open(settings["log"], "w", buffering=1)

    def tell(**event) -> None:
        log.write(json.dumps(event) + "\n")

    if settings["parallel"] is None:
        training = Training(settings["width"], settings["is_larger"])
    else:
        import parallel_trainings

        training = parallel_trainings.Training(**settings["parallel"])
    checkpointer, first = None, settings["first"]
    if settings["engine"] is not None:
        checkpointer = training.checkpointer(settings["engine"])
        if settings["dies"] is not None:
            let_die(checkpointer, dies=settings["dies"] == settings["rank"])
        try:
            start = checkpointer.restore()
        except Error as error:
            tell(refused=error.status.name, message=str(error))
            end(tell, together=settings["dies"] is None)
        first = start.next_iteration
        tell(found=start.found, first=first, stored=start.stored_world_size, adopted=start.adopted,
             message=start.message, lossy=start.behind or start.status_unknown, tier=start.main_tier.name)
    elif settings["load"] is not None:
        training.load(settings["load"])
    for k in range(first, settings["until"]):
        tell(k=k, loss=training.step(k).hex(), rate=training.scheduler.get_last_lr())
        if checkpointer is None:
            training.update(k)
            continue
        with checkpointer.update(k):
            training.update(k)
        checkpointer.ticket.wait(Stage.CAPTURING, COMMIT_MS)  # before_update() skips a snapshot that has no slot
        checkpointer.before_update()
        stage = Stage.DURABLE if "storage" in settings["engine"] else Stage.COMMITTED
        committed = checkpointer.ticket.wait(stage, COMMIT_MS)
        tell(k=k, committed=committed, message=checkpointer.ticket.message)
    if checkpointer is not None and settings["save"] is not None:
        dcp.save(training.state(), checkpoint_id=settings["save"])
    end(tell)


def let_die(checkpointer: Checkpointer, *, dies: bool) -> None:
    """One rank dies when the ranks tell each other how they split the state. The others do not wait long for it."""
    checkpointer._resplit._timeout_s = 1.0
    if dies:
        checkpointer._resplit._any_rank = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def end(tell, together: bool = True) -> None:
    if together:
        dist.barrier()
    tell(ended=True)
    os.kill(os.getpid(), signal.SIGKILL)
