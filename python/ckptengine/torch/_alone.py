"""Answers communications in closed groups, as if all ranks had sent what this rank sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


@torch.no_grad()
def answer(name: str, arguments: tuple, options: dict[str, Any], rank: int, size: int) -> bool:
    """Answers a call of the ProcessGroup method `name`, by writing its outputs. Returns False if only another rank
    knows the answer. Received tensors are then zero."""
    values = list(arguments)
    how = options.get("opts", values[-1] if values else None)
    root = getattr(how, "rootRank", options.get("root", rank))
    if name in ("allreduce", "allreduce_coalesced") or (name == "reduce" and root == rank):
        for tensor in tensors_in(values[0]):
            _reduce(tensor, how, size)
    elif name in ("allgather", "gather", "allgather_coalesced"):
        _gather(values[0], values[1], by_rank=name == "allgather_coalesced")
    elif name == "scatter":
        _scatter(values[0], values[1], rank)
        return root == rank
    elif "gather" in name:  # into one tensor
        for out, own in zip(tensors_in(values[0]), tensors_in(values[1]), strict=True):
            out.view(size, -1).copy_(own.reshape(1, -1).expand(size, -1))
    elif name == "reduce_scatter":
        for out, parts in zip(values[0], values[1], strict=True):
            _reduce(out.copy_(parts[rank]), how, size)
    elif "reduce_scatter" in name:  # of one tensor
        for out, own in zip(tensors_in(values[0]), tensors_in(values[1]), strict=True):
            _reduce(out.view(-1).copy_(own.reshape(size, -1)[rank]), how, size)
    elif "all" in name:  # to all
        _all_to_all(name, values[0], values[1], rank, size)
    elif name.startswith("recv"):
        for tensor in tensors_in(values[0]):
            tensor.zero_()
        return False
    return True


def _reduce(tensor: Tensor, how: Any, size: int) -> None:
    op = getattr(how, "reduceOp", how)
    if op == dist.ReduceOp.SUM:
        tensor.mul_(size)
    elif op == dist.ReduceOp.PRODUCT:
        tensor.pow_(size)
    elif op == dist.ReduceOp.BXOR and size % 2 == 0:
        tensor.zero_()


def _gather(outputs: Any, inputs: Any, *, by_rank: bool) -> None:
    """Copies the inputs to the outputs of all ranks. `outputs` has a list for each input, with a tensor per rank. With
    `by_rank`, it has a list for each rank, with a tensor per input."""
    for i, output in enumerate(outputs):
        for j, tensor in enumerate(output):
            tensor.copy_(inputs[j if by_rank else i])


def _scatter(outputs: Any, inputs: Any, rank: int) -> None:
    for i, output in enumerate(outputs):
        if inputs:
            output.copy_(inputs[i][rank])
        else:
            output.zero_()


def _all_to_all(name: str, outputs: Any, inputs: Any, rank: int, size: int) -> None:
    if name == "alltoall":
        for output in outputs:
            _copy_or_zero(output, inputs[rank])
    elif outputs.numel() == inputs.numel() and inputs.numel() % size == 0:
        outputs.view(size, -1).copy_(inputs.reshape(size, -1)[rank].expand(size, -1))
    else:
        outputs.zero_()


def _copy_or_zero(output: Tensor, value: Tensor) -> None:
    if output.shape == value.shape:
        output.copy_(value)
    else:
        output.zero_()
