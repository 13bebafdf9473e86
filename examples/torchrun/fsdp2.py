"""FSDP2 under torchrun, which starts all workers again when one of them fails. Each rank has its slice of every tensor,
and captures that. The engine's part is what names a `checkpointer`, and `start`; its options come from the environment.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--library", type=Path, help="libckptengine.so (default: where the package finds it)")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    rank, width = dist.get_rank(), arguments.width
    torch.manual_seed(1)  # the same model everywhere
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.Generator().manual_seed(rank)  # where it stands is part of the state
    with Checkpointer(model, optimizer, extra={"data": data}, library=arguments.library) as checkpointer:
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
