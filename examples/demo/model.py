"""A character-level GPT, and a ZeRO-1 optimizer: every rank keeps the optimizer state of its own part alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

WIDTH = 384
HEADS = 6


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        heard = self.projection(heard.transpose(1, 2).reshape(batch, length, WIDTH))
        x = x + functional.dropout(heard, self.dropout, self.training)
        thought = self.narrow(functional.gelu(self.wide(self.norm2(x))))
        return x + functional.dropout(thought, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, characters: int, length: int, layers: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Parameter(torch.zeros(length, WIDTH))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.token.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 if "narrow" not in name else 0.02 / (2 * layers) ** 0.5)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.token(text) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PartitionedAdam:
    """AdamW over one flat buffer of all parameters, of which each rank updates its own part (ZeRO-1).

    Parameters and gradients of the model are views of two flat buffers, so that gradients are always summed in one
    layout. `part` (this rank's master weights) and its moments in `adam` exist nowhere else in the job.
    """

    def __init__(self, model: nn.Module, rank: int, world_size: int) -> None:
        parameters = list(model.parameters())
        count = sum(parameter.numel() for parameter in parameters)
        self.part_count = -(-count // world_size)
        self.world_size = world_size
        self.flat = torch.zeros(self.part_count * world_size)
        # One element more than parameters: the loss travels with the gradients.
        self.reduced = torch.zeros(self.part_count * world_size + 1)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            self.flat[begin:end] = parameter.detach().reshape(-1)
            parameter.data = self.flat[begin:end].view_as(parameter)
            parameter.grad = self.reduced[begin:end].view_as(parameter)
            begin = end
        mine = slice(rank * self.part_count, (rank + 1) * self.part_count)
        self.part = nn.Parameter(self.flat[mine].clone())
        self.part.grad = self.reduced[mine]
        self.adam = torch.optim.AdamW([self.part], lr=1e-3, foreach=False, fused=False)

    def zero_grad(self) -> None:
        self.reduced.zero_()

    def reduce(self, loss: torch.Tensor) -> float:
        """Averages gradients and loss over all ranks, and clips; returns the loss."""
        self.reduced[-1] = loss.detach()
        dist.all_reduce(self.reduced)
        self.reduced /= self.world_size
        gradients = self.reduced[:-1]
        gradients *= (1.0 / (gradients.norm() + 1e-6)).clamp(max=1.0)
        return self.reduced[-1].item()

    def share(self) -> None:
        """Gives every rank the whole updated parameters."""
        dist.all_gather_into_tensor(self.flat, self.part.detach())
