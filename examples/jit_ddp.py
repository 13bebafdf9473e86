"""A data-parallel training loop whose processes stay when another one fails. ckptrun starts only the failed one anew:

    CKPTENGINE_JOB=jit CKPTENGINE_ON_SUSPICION=halt CKPTENGINE_CAPTURE_EVERY=10 \\
      ckptrun --nproc-per-node 4 --spares 1 examples/jit_ddp.py --node-per-rank

Kill a process, or stop it (kill -STOP). The others tell the same process numbers afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer, run
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--node-per-rank", action="store_true", help="act as if each rank had a machine of its own")
    parser.add_argument("--library", type=Path, help="libckptengine.so (default: where the package finds it)")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    dist.init_process_group("ckpt:gloo")
    rank, width = dist.get_rank(), arguments.width
    torch.manual_seed(1)  # the same model everywhere
    layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.Generator().manual_seed(rank)  # where it stands is part of the state

    def train(checkpointer: Checkpointer) -> None:  # called again after an interruption
        if not checkpointer.is_warming_up:
            tell(f"rank {rank}: begins iteration {checkpointer.next_iteration}, process {os.getpid()}")
        for k in range(checkpointer.next_iteration, arguments.iterations):
            inputs = torch.randn(16, width, generator=data)
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), inputs.roll(1, 1))
            loss.backward()
            with checkpointer.update(k):  # raises Interrupted if the job is halted
                optimizer.step()
            tell(f"rank {rank}: iteration {k}, loss {loss.item():.6f}")

    place = {"node": f"n{rank}"} if arguments.node_per_rank else {}
    with Checkpointer(model, optimizer, extra={"data": data}, library=arguments.library, **place) as checkpointer:
        run(train, checkpointer)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    tell(f"rank {rank}: done, weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}")


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece: ranks share the output


if __name__ == "__main__":
    main()
