"""A rank of test_recompute.py: it trains a small model with a fused AdamW, alone, and keeps its losses."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path

import torch
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from torch import nn

WIDTH = 96


class Training:
    """The same training in each process: what an iteration computes depends on the state and its number alone."""

    def __init__(self, rank: int, optimizer: str = "adamw") -> None:
        torch.set_num_threads(1)
        torch.manual_seed(rank)
        self.rank = rank
        self.model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.BatchNorm1d(2 * WIDTH),
                                   nn.Linear(2 * WIDTH, 7))
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        if optimizer == "adamw":
            self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
        else:
            self.optimizer = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: 1 / (1 + 0.1 * k))

    def forward_backward(self, iteration: int) -> float:
        data = torch.Generator().manual_seed(1000 * self.rank + iteration)
        batch = torch.randn(16, WIDTH, generator=data)
        target = torch.randint(0, 7, (16,), generator=data)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch), target)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()


def undisturbed(rank: int, iterations: int) -> list[str]:
    training = Training(rank)
    losses = []
    for k in range(iterations):
        losses.append(training.forward_backward(k).hex())
        training.update()
    return losses


def train(settings: dict) -> None:
    """settings: the engine's options, and "iterations", "kill_at" (the rank dies once that iteration is committed),
    "losses" (a file), "optimizer"."""
    logging.basicConfig(filename=settings["losses"] + ".log", level=logging.WARNING)
    training = Training(settings["options"]["rank"], settings.get("optimizer", "adamw"))
    with Checkpointer(training.model, training.optimizer, schedulers=training.scheduler,
                      **settings["options"]) as checkpointer, Path(settings["losses"]).open("a") as file:
        restored = checkpointer.restore()
        for k in range(restored.next_iteration, settings["iterations"]):
            line = {"iteration": k, "loss": training.forward_backward(k).hex(), "from": int(restored.main_tier)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            with checkpointer.update(k):
                training.update()
            checkpointer.before_update()
            ticket = checkpointer.ticket
            assert ticket is not None and ticket.wait(Stage.COMMITTED, 20_000), ticket
            if k == settings.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)
