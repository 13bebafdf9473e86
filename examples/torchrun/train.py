"""A data-parallel training loop for torchrun, which starts all workers again when one of them fails.

Nothing here knows of restarts: every start restores what there is. The engine's options come from the environment
(CKPTENGINE_JOB and so on); rank and world size are those of torch.distributed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--library", type=Path, help="libckptengine.so (default: where the package finds it)")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    rank, width = dist.get_rank(), arguments.width
    torch.manual_seed(1)  # the same model everywhere
    layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.Generator().manual_seed(rank)  # where it stands is part of the state
    # Ranks that hold the same state name the same shard, and each captures a part of it.
    with Checkpointer(model, optimizer, extra={"data": data}, shard="model", library=arguments.library) as checkpointer:
        start = checkpointer.restore()
        where = f"from {start.main_tier.name.lower()} memory" if start.found else "anew"
        tell(f"rank {rank}: begins iteration {start.next_iteration} {where}, process {os.getpid()}")
        for k in range(start.next_iteration, arguments.iterations):
            inputs = torch.randn(16, width, generator=data)
            optimizer.zero_grad()
            mse_loss(model(inputs), inputs.roll(1, 1)).backward()
            with checkpointer.update(k):
                optimizer.step()
            tell(f"rank {rank}: iteration {k}")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    tell(f"rank {rank}: done, weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}")


def tell(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece: workers share the output


def main() -> None:
    arguments = parse()
    dist.init_process_group("gloo")
    train(arguments)
    dist.barrier()  # rank 0 serves the others' store until it ends
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
