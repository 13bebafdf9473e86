"""A rank of a DDP job over gloo whose agent watches it. For test_watchdog_ddp.py.

Nothing in it tells the engine of communications but torch's own hooks. A file FOLDER/COMMAND-RANK changes what it does:
`spin` computes without end in the forward pass and holds the interpreter lock, `spin_backward` does so in the backward
pass, `slow` computes much longer, `pause` waits in a pause while the file is there. FOLDER/drop holds an iteration:
from its begin on, no packet reaches the connections to other ranks while the file is there. It ends when its parent has
ended."""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # else each rank imports it when its optimizer takes a step
import torch.distributed as dist
from ckptengine.torch import Checkpointer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 64
COMPUTING_S = 0.03
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


def spin() -> None:
    re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread in


def connections() -> list[socket.socket]:
    """Of this process, over TCP."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            each = socket.socket(fileno=os.dup(int(entry)))
            each.getpeername()
        except OSError:
            continue
        if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
            found.append(each)
    return found


def drop_while(command: Path) -> None:
    """As a switch that forwards nothing: the kernel drops all packets that arrive for the connections."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(nothing))
    dropped = connections()
    for each in dropped:
        each.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def end() -> None:
        while command.exists():
            time.sleep(0.01)
        for each in dropped:
            each.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
            each.close()

    threading.Thread(target=end, daemon=True).start()


def end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def main(folder: Path, rank: int, ranks: int, options: dict) -> None:
    parent = os.getppid()
    command = lambda name: folder / f"{name}-{rank}"  # noqa: E731
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    inner = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    model = DistributedDataParallel(inner, bucket_cap_mb=0.02)  # several buckets
    inner[0].weight.register_hook(lambda _: spin() if command("spin_backward").exists() else None)
    optimizer = torch.optim.AdamW(model.parameters())
    threading.Thread(target=lambda: end_with(parent), daemon=True).start()
    drop = folder / "drop"
    with Checkpointer(model, optimizer, **options) as checkpointer:
        iteration = checkpointer.restore().next_iteration
        while True:
            if command("spin").exists():
                spin()
            if drop.exists() and iteration == int(drop.read_text()):
                drop_while(drop)
            if command("pause").exists():
                with checkpointer.pause("eval"):
                    while command("pause").exists():
                        time.sleep(0.01)
            time.sleep(COMPUTING_S * (15 if command("slow").exists() else 1))
            optimizer.zero_grad()
            model(torch.ones(4, WIDTH)).square().mean().backward()
            with checkpointer.update(iteration):
                optimizer.step()
            iteration += 1
