"""One rank of a small data-parallel job that may restart with another number of ranks. For test_elastic.py.

Every rank appends to a file of its own, a line of JSON for each event: what it restored, and each iteration's loss.
Without an engine it is the control: it loads what torch.save() wrote, as a user would by hand.
"""

from __future__ import annotations

import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

WIDTH, COMMIT_MS = 6, 60_000


class Counter:
    """The position in the data: how many batches a rank has seen."""

    def __init__(self) -> None:
        self.batches = 0

    def state_dict(self) -> dict:
        return {"batches": self.batches}

    def load_state_dict(self, state: dict) -> None:
        self.batches = state["batches"]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(1)  # the same everywhere
        layers = nn.Sequential(nn.Linear(WIDTH, 9), nn.BatchNorm1d(9), nn.Dropout(0.2), nn.Linear(9, WIDTH))
        self.model = DistributedDataParallel(layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.8)
        self.counter = Counter()
        self.noise = torch.Generator().manual_seed(dist.get_rank())
        torch.manual_seed(1000 + dist.get_rank())

    def checkpointer(self, options: dict) -> Checkpointer:
        extra = {"counter": self.counter, "noise": self.noise}
        return Checkpointer(self.model, self.optimizer, schedulers=self.scheduler, extra=extra, **options)

    def step(self) -> float:
        inputs = torch.randn(5, WIDTH, generator=self.noise) + self.counter.batches
        self.counter.batches += 1
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), inputs)
        loss.backward()
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def save(self, folder: str) -> None:
        own = {"torch": torch.get_rng_state(), "noise": self.noise.get_state()}
        shared = [each.state_dict() for each in (self.model, self.optimizer, self.scheduler, self.counter)]
        torch.save((shared, own), Path(folder) / f"rank{dist.get_rank()}.pt")

    def load(self, folder: str) -> None:
        own_file = Path(folder) / f"rank{dist.get_rank()}.pt"
        is_new = not own_file.exists()
        shared, own = torch.load(Path(folder) / "rank0.pt" if is_new else own_file, weights_only=False)
        for each, state in zip((self.model, self.optimizer, self.scheduler, self.counter), shared, strict=True):
            each.load_state_dict(state)
        if not is_new:
            torch.set_rng_state(own["torch"])
            self.noise.set_state(own["noise"])


def run(settings: dict) -> None:
    """Runs from what is restored up to iteration `until`, and then is killed like all others."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=settings["rank"],
                            world_size=settings["world_size"], timeout=timedelta(seconds=120))
    log = open(settings["log"], "w", buffering=1)

    def tell(**event) -> None:
        log.write(json.dumps(event) + "\n")

    training, first, checkpointer = Training(), settings["first"], None
    if settings["engine"] is not None:
        checkpointer = training.checkpointer(settings["engine"])
        start = checkpointer.restore()
        first = start.next_iteration
        tell(found=start.found, first=first, stored=start.stored_world_size, adopted=start.adopted,
             message=start.message, lossy=start.behind or start.status_unknown, shard=checkpointer.shard)
    elif settings["load"] is not None:
        training.load(settings["load"])
    for k in range(first, settings["until"]):
        loss = training.step()
        tell(k=k, loss=loss.hex())
        if checkpointer is None:
            training.update()
            continue
        with checkpointer.update(k):
            training.update()
        checkpointer.ticket.wait(Stage.CAPTURING, COMMIT_MS)  # before_update() skips a snapshot that has no slot
        checkpointer.before_update()
        committed = checkpointer.ticket.wait(Stage.COMMITTED, COMMIT_MS)
        tell(k=k, committed=committed, message=checkpointer.ticket.message)
    if checkpointer is None:
        training.save(settings["save"])
    dist.barrier()
    tell(ended=True)
    os.kill(os.getpid(), signal.SIGKILL)
