"""A rank of test_recompute.py and test_recompute_gpu.py: it trains a small model, and keeps its losses. Something
happens in some iterations: to the update, or to an agent in the middle of copying it."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from processes import agent_pids, kill_process
from torch import nn
from torch.distributed.fsdp import fully_shard

WIDTH = 96
PAUSE_S = 0.4
SETTLED = 6  # iterations
OPTIMIZERS = {  # on a CPU, those without fused=True compute a tensor at a time; on a GPU, all together
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2, fused=True),
    "foreach_adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-2),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
    "fused_sgd": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, dampening=0.1, fused=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=1e-2),
}


class Training:
    """The same training in each process: what an iteration computes depends on the state and its number alone.
    `events`, by iteration: "closure", "skip", "twice", "clamp", "freeze" or "groups"."""

    def __init__(self, rank: int, settings: dict) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0 if settings.get("is_sharded") else rank)
        self.rank, self.events, is_sharded = rank, settings.get("events", {}), bool(settings.get("is_sharded"))
        self.is_sharded = is_sharded
        norm = nn.LayerNorm(2 * WIDTH) if is_sharded else nn.BatchNorm1d(2 * WIDTH)
        self.model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), norm, nn.Linear(2 * WIDTH, 7))
        self.device = torch.device(settings.get("device", "cpu"))
        self.model.to(self.device)
        if is_sharded:
            fully_shard(self.model)
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = OPTIMIZERS[settings.get("optimizer", "adamw")](groups)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: 1 / (1 + 0.1 * k))
        # A power of two changes no bit of the gradients.
        is_scaled = not is_sharded and self.device.type == "cpu"
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, enabled=is_scaled)
        self.average = torch.zeros(7, device=self.device)  # of a parameter; no optimizer knows it

    def forward_backward(self, iteration: int) -> float:
        data = torch.Generator().manual_seed(1000 * self.rank + iteration)
        batch = torch.randn(16, WIDTH, generator=data)
        target = torch.randint(0, 7, (16,), generator=data)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(batch.to(self.device)), target.to(self.device))
        self.scaler.scale(loss).backward()
        return loss.item()

    def update(self, iteration: int) -> None:
        event = self.events.get(iteration)
        weight = self.model[0].weight
        if event == "skip":
            weight.grad[0, 0] = float("inf")
        elif event == "freeze":
            self.model[3].bias.grad = None
        elif event == "groups":
            self.optimizer.param_groups[0]["weight_decay"] = 0.3
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if event == "closure":
            self.optimizer.step(lambda: weight.grad.mul_(0.5).sum().item())
        else:
            self.scaler.step(self.optimizer)
        self.scaler.update()
        if event == "twice":
            self.optimizer.step()
        elif event == "clamp":
            with torch.no_grad():
                weight.clamp_(-0.05, 0.05)
        self.scheduler.step()
        if not self.is_sharded:
            self.average.lerp_(self.model[3].bias.detach(), 0.1)


def undisturbed(rank: int, iterations: int, **settings: Any) -> list[str]:
    training = Training(rank, settings)
    losses = []
    for k in range(iterations):
        losses.append(training.forward_backward(k).hex())
        training.update(k)
    return losses


def strike(settings: dict, what: str) -> None:
    """Kills or pauses the agent of the node that holds this rank's copy, or of this rank's own node."""
    options = settings["options"]
    node = options["node"] if what == "kill owner" else f"n{1 - settings['rank']}"
    for pid in agent_pids(options["job"], node):
        if what != "pause holder":
            kill_process(pid, signal.SIGKILL)
            continue
        kill_process(pid, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        kill_process(pid, signal.SIGCONT)


def join(settings: dict) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['rendezvous']}",
        rank=settings["rank"],
        world_size=settings["world_size"],
        timeout=timedelta(seconds=60),
    )


def control(settings: dict) -> None:
    """The same training, but without the engine."""
    if settings.get("is_sharded"):
        join(settings)
    losses = undisturbed(**settings)
    Path(settings["losses"]).write_text("\n".join(losses))


def train(settings: dict) -> None:
    """settings: the engine's options as "options", and "rank", "world_size", "iterations", "kill_at" (the rank dies
    once that iteration is committed), "losses" (a file), "optimizer" (of OPTIMIZERS), "device", "is_sharded" (with
    FSDP), "events", "strikes" (by iteration; rank 0 strikes)."""
    logging.basicConfig(filename=settings["losses"] + ".log", level=logging.WARNING)
    if settings.get("is_sharded"):
        join(settings)
    training = Training(settings["rank"], settings)
    with Checkpointer(
        training.model,
        training.optimizer,
        schedulers=training.scheduler,
        tensors={"average": training.average},
        **settings["options"],
    ) as checkpointer:
        restored = checkpointer.restore()
        file = Path(settings["losses"]).open("a", buffering=1)
        for k in range(restored.next_iteration, settings["iterations"]):
            line = {"iteration": k, "loss": training.forward_backward(k).hex(), "from": int(restored.main_tier)}
            file.write(json.dumps(line) + "\n")
            with checkpointer.update(k):
                training.update(k)
            checkpointer.before_update()
            await_commit(checkpointer.ticket, settings, k)
            if k == settings.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)


def await_commit(ticket, settings: dict, k: int) -> None:
    """Each iteration is committed. Only after a strike, one may have had no slot, or lost its only copy."""
    strikes = settings.get("strikes", {})
    is_disturbed = any(struck <= k < struck + SETTLED for struck in strikes)
    if k in strikes and settings["rank"] == 0:
        assert ticket.wait(Stage.CAPTURED, 20_000), ticket
        strike(settings, strikes[k])
    committed = ticket is not None and ticket.wait(Stage.COMMITTED, 1_000 if is_disturbed else 20_000)
    assert committed or is_disturbed, ticket
