"""A small training loop with every kind of state that a checkpoint must bring back, for the tests."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    """Tied weights, BatchNorm, channels_last, a transposed parameter, a scalar, bf16, and buffers of odd types."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.conv = nn.Conv2d(3, 16, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(16)
        self.transposed = nn.Parameter(torch.randn(16, 24).t())
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.coarse = nn.Parameter(torch.randn(16).bfloat16())
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.rand(16) > 0.2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.randn(4), persistent=False)

    def forward(self, words: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        features = self.norm(self.conv(image)).mean((2, 3))
        x = self.embedding(words) + self.drop(features) * self.mask
        x = torch.tanh(x @ self.transposed.t() @ self.transposed) * self.scale + self.coarse.float()
        return self.head(x)


class Data:
    """A data source whose position is part of the training state."""

    def __init__(self) -> None:
        self.position = 0
        self.order = torch.Generator().manual_seed(7)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.position += 1
        return torch.randint(0, 32, (8,), generator=self.order), torch.randn(8, 3, 6, 6)

    def state_dict(self) -> dict:
        return {"position": self.position, "order": self.order.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.position = state["position"]
        self.order.set_state(state["order"])


class Loop:
    """`seed` differs between incarnations, so that nothing is right by accident. The optimizer's state is created
    lazily."""

    def __init__(self, seed: int, moves: bool = False) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.moves = moves
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 5)
        self.data = Data()
        self.average = self.net.conv.weight.detach().clone()
        self.gapped = torch.randn(6, 8)[:, ::2]

    def checkpointed(self) -> dict:
        """What a Checkpointer is given."""
        return {
            "model": self.net,
            "optimizer": self.optimizer,
            "schedulers": self.scheduler,
            "tensors": {"average": self.average, "gapped": self.gapped},
            "extra": {"data": self.data},
        }

    def forward_backward(self) -> float:
        words, image = self.data.next()
        loss = nn.functional.cross_entropy(self.net(words, image), words)
        loss = loss * (1 + 0.01 * random.random() + 0.01 * np.random.standard_normal())
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def apply(self, before_update=lambda: None) -> None:
        """The updates of one iteration, after `before_update`."""
        before_update()
        if self.moves:
            self.move_everything()
        self.optimizer.step()
        self.scheduler.step()
        with torch.no_grad():
            self.average.lerp_(self.net.conv.weight, 0.1)
            self.gapped.add_(torch.randn(6, 4))

    def move_everything(self) -> None:
        """New memory for parameters and moments; what was there before becomes garbage."""
        states = self.optimizer.state.values()
        for tensor in [*self.net.parameters(), *(state["exp_avg"] for state in states)]:
            old = tensor.data
            tensor.data = old.clone(memory_format=torch.preserve_format)
            old.fill_(float("nan"))

    def state(self) -> dict[str, bytes]:
        """All state by name, as bytes."""
        tensors = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{key}": value for key, value in state.items()}
        tensors |= {"average": self.average, "gapped": self.gapped, "order": self.data.order.get_state()}
        found = {name: _bytes(tensor) for name, tensor in tensors.items()}
        texts = {
            "groups": self.optimizer.state_dict()["param_groups"],
            "scheduler": self.scheduler.state_dict(),
            "position": self.data.position,
            "torch": torch.get_rng_state().tolist(),
            "python": random.getstate(),
            "numpy": [part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()],
        }
        return found | {name: repr(value).encode() for name, value in texts.items()}


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
