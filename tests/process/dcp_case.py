"""What cases of distributed checkpoints share: where they save and load, and how they compare.

A case is a function. It saves one or several states through a Medium, loads each of them from storage and from memory,
and asserts what torch promises. All ranks of a process group run the cases of their world size one after another.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Engine, Stage
from ckptengine.dcp import Reader, Writer
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

WAIT_MS = 60_000
CASES: dict[int, dict[str, Callable]] = {1: {}, 2: {}, 4: {}}  # by world size and name; 1 has no process group


def case(*world_sizes: int) -> Callable:
    def add(function: Callable) -> Callable:
        for world_size in world_sizes:
            CASES[world_size][function.__name__] = function
        return function

    return add


class Medium:
    """Where a case saves, and from where it loads."""

    def __init__(self, settings: dict) -> None:
        self._settings = settings
        self._iteration = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine(**self._settings["engine"][self._settings["rank"]])

    def writer(self) -> Writer:
        self._iteration += 1
        return Writer(self.engine, self._iteration)

    def save(self, state: dict, **more) -> None:
        writer = self.writer()
        dcp.save(state, storage_writer=writer, **more)
        self.await_storage(writer)

    def await_storage(self, writer: Writer) -> None:
        assert writer.ticket.wait(Stage.DURABLE, WAIT_MS), writer.ticket.message

    def storage(self) -> Reader:
        at = {key: self._settings[key] for key in ("job", "library")}
        return Reader(self._settings["storage"], **at)

    def readers(self) -> Iterator[Reader]:
        """Storage; then memory, as after a restart of the job."""
        yield self.storage()
        self.close()
        self._open()
        yield Reader(self.engine)

    def close(self) -> None:
        self.engine.close()


def run(settings: dict) -> dict[str, str]:
    """Runs all cases of a world size, and tells what went wrong in each: "" if nothing did."""
    told: dict[str, str] = {}
    medium = Medium(settings)
    for name, function in CASES[settings["world_size"]].items():
        try:
            torch.manual_seed(1)
            function(medium)
            if dist.is_initialized():
                dist.barrier()
                end_groups()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
            return told  # other ranks may wait for this one: nothing more can be said
    medium.close()
    return told


def end_groups() -> None:
    """Ends all groups of a case. Each has a thread that gloo wakes a hundred times a second."""
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def check(found: object, expected: object, where: str = "") -> None:
    """Asserts that two state dicts are the same, bit for bit."""
    assert type(found) is type(expected), f"{where} is a {type(found)}"
    if isinstance(expected, sharded_tensor.ShardedTensor):
        for one, other in zip(found.local_shards(), expected.local_shards(), strict=True):
            check(one.tensor, other.tensor, where)
    elif isinstance(expected, DTensor):
        check(found.to_local(), expected.to_local(), where)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), f"{where} differs"
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            check(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            check(one, other, f"{where}.{index}")
    else:
        assert found == expected, f"{where} is {found}"


def refuses(text: str, call: Callable, error: type[Exception] = CheckpointException) -> None:
    try:
        call()
    except error as raised:
        assert text in str(raised), str(raised)
    else:
        raise AssertionError(f"nothing was refused with '{text}'")


def layers(seed: int, *sizes: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = sizes or (5, 10, 15, 7)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])


def trained(model: nn.Module, inputs: int = 5, steps: int = 2, lr: float = 0.1) -> torch.optim.Optimizer:
    torch.manual_seed(9)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(8, inputs)).sum().backward()
        optimizer.step()
    return optimizer
