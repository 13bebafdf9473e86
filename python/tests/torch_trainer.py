"""A PyTorch trainer on a GPU that test_cuda.py kills: it restores, compares what came back with what the incarnation
before
kept in files, and trains on, with a snapshot in every iteration.

    torch_trainer.py OPTIONS-AS-JSON FOLDER DEVICE [graph]

With `graph`, one CUDA graph holds forward, backward and update. Prints a line of JSON when it has restored, and after
each commit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from torch import nn

WIDTH, BATCH, WARM_UP = 1024, 64, 3


class Training:
    def __init__(self, device: str) -> None:
        torch.manual_seed(5)
        layers = [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)]
        self.model = nn.Sequential(*layers).to(device)
        self.batch = torch.randn(BATCH, WIDTH, device=device)
        capturable = device == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True, capturable=capturable)

    def forward_backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        (self.model(self.batch) - self.batch).square().mean().backward()

    def step(self) -> None:
        self.forward_backward()
        self.optimizer.step()

    def state(self) -> dict[str, torch.Tensor]:
        moments = {
            f"{index}.{name}": value
            for index, state in self.optimizer.state_dict()["state"].items()
            for name, value in state.items()
        }
        return {name: tensor.detach().cpu() for name, tensor in {**self.model.state_dict(), **moments}.items()}

    def captured_step(self) -> Callable[[], None]:
        """The step as a CUDA graph, captured after a few steps on a stream of their own, as PyTorch asks for."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay


def differences(state: dict[str, torch.Tensor], kept: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in sorted(state.keys() | kept.keys()) if not same(state.get(name), kept.get(name))]


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)


def say(**words) -> None:
    print(json.dumps(words), flush=True)


def train(training: Training, replay: Callable[[], None] | None, checkpointer: Checkpointer) -> None:
    if replay is None:
        training.forward_backward()
        checkpointer.before_update()
        training.optimizer.step()
    else:
        checkpointer.before_update()
        replay()


def main() -> None:
    options, folder, device = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    training = Training(device)
    # Before the checkpointer is there, whose hooks belong in no graph.
    replay = training.captured_step() if "graph" in sys.argv else None
    with Checkpointer(training.model, training.optimizer, **options) as checkpointer:
        start = checkpointer.restore()
        state = training.state()
        kept = torch.load(folder / f"{start.iteration}.pt") if start.found else state
        say(iteration=start.iteration, tensors=len(state), differ=differences(state, kept))
        before = None
        for k in range(start.next_iteration, start.next_iteration + 1_000_000):
            train(training, replay, checkpointer)
            torch.save(training.state(), folder / f"{k}.pt")
            ticket = checkpointer.snapshot(k)
            if before is not None and before.wait(Stage.COMMITTED, 60_000):
                say(committed=before.iteration)
            before = ticket


if __name__ == "__main__":
    main()
