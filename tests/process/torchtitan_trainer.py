"""One rank of a small job with torchtitan's parts, for test_torchtitan.py. torchtitan's Trainer needs CUDA."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch._dynamo  # late otherwise, in every rank after it was forked
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw
from training_systems import Rank, example

WIDTH, HIDDEN = 7, 10


class Numbers(IterableDataset):
    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            yield torch.randn(WIDTH, generator=self.generator)

    def state_dict(self) -> dict:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.generator.set_state(state["generator"])


class Trainer:
    """Makes the calls of torchtitan's Trainer."""

    def __init__(self, checkpoint, rank: Rank) -> None:
        torch.manual_seed(1)
        self.rank, self.steps = rank, rank.settings["iterations"] - 1
        model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, WIDTH))
        fully_shard(model[0])
        fully_shard(model)
        self.model, self.step = model, 0
        optimizer = default_adamw(lr=0.01)
        optimizer.implementation = "foreach"
        self.optimizers = optimizer.build(model_parts=[model])
        schedulers = LRSchedulersContainer.Config(warmup_steps=3, total_steps=20)
        self.lr_schedulers = schedulers.build(optimizers=self.optimizers, training_steps=20)
        torch.manual_seed(1000 + dist.get_rank())
        self.dataloader = ParallelAwareDataloader(Numbers(dist.get_rank()), dist.get_rank(), 2, batch_size=4)
        self.checkpointer = checkpoint.build(
            dataloader=self.dataloader, model_parts=[model], optimizers=self.optimizers,
            lr_schedulers=self.lr_schedulers, states={"train_state": self}, sd_adapter=None,
            base_folder=rank.settings["folder"])

    def state_dict(self) -> dict:
        return {"step": self.step}

    def load_state_dict(self, state: dict) -> None:
        self.step = state["step"]

    def train(self) -> None:
        self.rank.names["ckpt"] = getattr(self.checkpointer, "checkpointer", None)
        self.checkpointer.load(step=-1)
        data = iter(self.dataloader)
        while self.step < self.steps:
            self.step += 1
            self.rank.begin(self.step)
            self.train_step(next(data))
            self.checkpointer.save(self.step, last_step=self.step == self.steps)
        self.checkpointer.close()

    def train_step(self, batch: torch.Tensor) -> None:
        self.optimizers.zero_grad(set_to_none=True)
        loss = mse_loss(self.model(batch), batch)
        loss.backward()
        self.rank.tell(k=self.step, loss=loss.item().hex(), lr=self.lr_schedulers.schedulers[0].get_last_lr())
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.lr_schedulers.step()


def run(settings: dict) -> None:
    rank = Rank(settings)
    config = SimpleNamespace(checkpoint=CheckpointManager.Config(enable=False), build=lambda: Trainer(config.checkpoint,
                                                                                                      rank))
    if settings["engine"] is None:
        config.build().train()
        rank.end()
    rank.run(example("torchtitan").replace("interval=500", "interval=500, last_save_model_only=False"), config=config)
