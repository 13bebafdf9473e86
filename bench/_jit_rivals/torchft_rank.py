"""A rank of ./dev bench jit with torchft: torchft_rank.py SETTINGS.json. Each rank is a replica of its own. A new one
gets the state from a live one over HTTP. Settings are torchft's defaults; the lighthouse waits for all four."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from jit_rank import Faults, Protocol, Training
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

RANKS = 4


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    protocol = Protocol(Path(settings["folder"]), rank)
    protocol.tell("started")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=None,  # below: model and optimizer need the manager
        state_dict=None,
        min_replica_size=RANKS,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"rank{rank}",
        hostname="127.0.0.1",
    )
    training = Training(settings, rank, lambda model: DistributedDataParallel(manager, model))
    optimizer = Optimizer(manager, training.optimizer)
    training.optimizer = optimizer
    faults = Faults(Path(settings["folder"]), rank, protocol)
    faults.watch(training.middle)

    def load(found: dict) -> None:
        training.model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])

    def state() -> dict:
        return {"model": training.model.state_dict(), "optimizer": optimizer.state_dict()}

    manager.register_state_dict_fn("training", load, state)
    protocol.tell("begins", k=0)
    while True:
        before = manager.current_step()
        loss = training.loss()
        loss.backward()
        optimizer.step()
        if manager.current_step() > before and manager.num_participants() == RANKS:
            protocol.tell("iteration", k=manager.current_step(), loss=loss.item().hex())


if __name__ == "__main__":
    main()
