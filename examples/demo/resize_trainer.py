"""One rank of the job of ./dev demo --resize: resize_trainer.py SETTINGS.json. The launcher writes the settings.

FSDP2 splits a small GPT over the ranks. With an engine, the rank captures every iteration. It also saves every
iteration with torch.distributed.checkpoint (DCP). A rank without an engine begins from such a checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from model import GPT
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

COMMIT_MS = 60_000


class Training:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.text = np.load(settings["text"], mmap_mode="r")
        torch.manual_seed(settings["seed"])  # the same initial model on all ranks
        # Without dropout: a DCP checkpoint has no states of random number generators.
        self.model = GPT(settings["characters"], settings["length"], settings["layers"], dropout=0.0)
        self.model.head.weight = nn.Parameter(self.model.head.weight.detach().clone())
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)

    def forward_backward(self, k: int) -> float:
        length, batch = self.settings["length"], self.settings["batch"]
        generator = torch.Generator().manual_seed(1000 * self.settings["seed"] * (k + 1) + self.settings["rank"])
        starts = torch.randint(len(self.text) - length - 1, (batch,), generator=generator)
        rows = np.stack([self.text[start : start + length + 1] for start in starts.tolist()])
        windows = torch.from_numpy(rows.astype(np.int64))
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        return loss.item()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer, "scheduler": self.scheduler.state_dict()}

    def save(self, k: int) -> None:
        dcp.save(self.state(), checkpoint_id=Path(self.settings["dcp"]) / str(k))

    def load(self, k: int) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=Path(self.settings["dcp"]) / str(k))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        self.scheduler.load_state_dict(state["scheduler"])


def train(settings: dict[str, Any]) -> None:
    protocol = open(settings["protocol"], "w", buffering=1)

    def tell(event: str, **fields: Any) -> None:
        protocol.write(json.dumps({"event": event, "at_s": time.monotonic(), **fields}) + "\n")

    training, checkpointer, first = Training(settings), None, 0
    if settings["engine"] is not None:
        checkpointer = Checkpointer(training.model, training.optimizer, schedulers=training.scheduler,
                                    **settings["engine"])  # fmt: skip
        result = checkpointer.restore()
        first = result.next_iteration
        tell("restored", found=result.found, iteration=result.iteration, stored=result.stored_world_size,
             main=result.main_tier.name.lower(), bytes=result.bytes, message=result.message)  # fmt: skip
    elif settings["begin"] is not None:
        training.load(settings["begin"])
        first = settings["begin"] + 1
    for k in range(first, settings["iterations"]):
        begin = time.perf_counter()
        loss = training.forward_backward(k)
        if checkpointer is None:
            training.update()
        else:
            checkpointer.before_update()
            training.update()
            training.save(k)  # first, so that each committed checkpoint is there as a DCP checkpoint, too
            checkpointer.snapshot(k)
            checkpointer.before_update()  # ends the capture; or it would end only before the next update
            if not checkpointer.ticket.wait(Stage.COMMITTED, COMMIT_MS):
                raise RuntimeError(f"iteration {k} was not committed: {checkpointer.ticket.message}")
        tell("iteration", k=k, loss=loss.hex(), ms=1e3 * (time.perf_counter() - begin))
    if checkpointer is not None:
        checkpointer.close()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['rendezvous']}",
        rank=settings["rank"],
        world_size=settings["world_size"],
        timeout=timedelta(seconds=120),
    )
    train(settings)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
