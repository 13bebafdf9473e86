"""A rank of ./dev bench jit with NVRx's in-process restart: nvrx_rank.py SETTINGS.json. Four of five ranks train, the
fifth is the reserve. The state comes from a file in tmpfs that rank 0 writes every ten iterations."""

# No `from __future__ import annotations`: NVRx reads the annotation of `call`.
import contextlib
import json
import os
import socket
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import _sockets
from jit_rank import Faults, Protocol, Training
from nvidia_resiliency_ext import inprocess
from nvidia_resiliency_ext.inprocess.rank_assignment import MaxActiveWorldSize, ShiftRanks

ACTIVE = 4
SAVE_EVERY = 10

settings = json.loads(Path(sys.argv[1]).read_text())
folder, saved = Path(settings["folder"]), Path(settings["state"])
number = int(os.environ["RANK"])  # RANK changes with each restart, this does not
protocol = Protocol(folder, number)


class ShutGloo(inprocess.abort.Abort):
    """NVRx's own abort does nothing to gloo, so a rank that waits for living peers would never leave. This one shuts
    gloo's connections, as ckptengine.torch does. It spares those to the stores."""

    def __call__(self, state: inprocess.FrozenState) -> inprocess.FrozenState:
        stores = {settings["port"], settings["second_port"]}
        for each in _sockets._tcp_sockets():
            with contextlib.suppress(OSError):  # not connected
                if not stores & {each.getpeername()[1], each.getsockname()[1]}:
                    each.shutdown(socket.SHUT_RDWR)
        return state


@inprocess.Wrapper(
    store_kwargs={"host_name": "127.0.0.1", "port": settings["port"], "timeout": timedelta(seconds=60)},
    abort=ShutGloo(),
    rank_assignment=inprocess.Compose(MaxActiveWorldSize(ACTIVE), ShiftRanks()),
)
def train(call: inprocess.CallWrapper | None = None) -> None:
    rank = int(os.environ["RANK"])
    store = dist.PrefixStore(f"{call.iteration}", dist.TCPStore("127.0.0.1", settings["second_port"], is_master=False))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ACTIVE)
    training = Training(settings, rank)
    faults = Faults(folder, number, protocol)
    faults.watch(training.middle)
    k = 0
    if saved.exists():
        found = torch.load(saved, mmap=True)
        training.model.load_state_dict(found["model"])
        training.optimizer.load_state_dict(found["optimizer"])
        k = found["k"] + 1
    protocol.tell("begins", k=k)
    try:
        while True:
            loss = training.loss()
            loss.backward()
            with call.atomic():
                training.optimizer.step()
            protocol.tell("iteration", k=k, loss=loss.item().hex())
            if rank == 0 and k % SAVE_EVERY == 0:
                whole = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict(), "k": k}
                torch.save(whole, saved.with_suffix(".new"))
                saved.with_suffix(".new").rename(saved)
            k += 1
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    protocol.tell("started")
    train()
