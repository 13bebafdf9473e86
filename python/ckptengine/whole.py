"""Reassembles tensors that are spread over ranks, from a checkpoint on storage:

    tensors = ckptengine.whole.read(Path("storage/job/step-00000123"))

The result has every DTensor of the job by its name, as a whole tensor in CPU memory. The number of ranks that stored
the checkpoint, and their meshes, do not matter. This module does not check digests; `ckptctl verify` does. A tensor
that is no DTensor is in its rank's shard: ckptengine.export reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .export import ExportError, read_step

if TYPE_CHECKING:
    import torch

    from .torch._split import Record, Split


def read(folder: Path) -> dict[str, torch.Tensor]:
    """Returns the whole tensors of a checkpoint by name.

    Tensors of different meshes may have the same name, for example in stages of a pipeline. If such tensors are not
    equal, each gets the name "NAME of rank N", where N is the first rank of its mesh.

    Args:
        folder: The checkpoint's folder.

    Returns:
        The tensors, by name.

    Raises:
        ExportError: A tensor lacks a part.
    """
    shards = read_step(Path(folder))
    found: dict[str, dict[tuple[int, ...], list[tuple[Split, torch.Tensor]]]] = {}
    for record, private in _records(shards):
        main = shards.get(record.main)
        if main is None:
            raise ExportError(
                f"{folder} does not have the main shard '{record.main}' of rank {record.rank}; `ckptctl verify` says "
                "what is damaged"
            )
        for name, split in record.splits.items():
            local = main.get(name, private.get(name))
            if local is None or tuple(local.shape) != split.local_shape():
                raise ExportError(
                    f"{folder} does not have the piece of tensor '{name}' that rank {record.rank} captured; `ckptctl "
                    "verify` says what is damaged"
                )
            found.setdefault(name, {}).setdefault(split.mesh.ranks, []).append((split, local))
    whole: dict[str, torch.Tensor] = {}
    for name, by_mesh in found.items():
        tensors = {ranks[0]: _put_together(name, parts) for ranks, parts in by_mesh.items()}
        whole |= _named(name, tensors)
    return whole


def _records(shards: dict[str, dict[str, Any]]) -> list[tuple[Record, dict[str, Any]]]:
    from .torch._split import RECORD, read_record

    try:
        return [
            (read_record(value.numpy().tobytes()), tensors)
            for tensors in shards.values()
            for name, value in tensors.items()
            if name.startswith(RECORD)
        ]
    except ValueError as error:
        raise ExportError(str(error)) from None


def _put_together(name: str, parts: list[tuple[Split, torch.Tensor]]) -> torch.Tensor:
    import torch

    from .dcp._boxes import Box, pieces

    shape = parts[0][0].shape
    if any(split.shape != shape for split, _ in parts):
        raise ExportError(f"tensor '{name}' has different shapes on different ranks, so it cannot be put together")
    whole = torch.empty(shape, dtype=parts[0][1].dtype)
    there = torch.zeros(shape, dtype=torch.bool)
    for split, local in parts:
        for box, begin in pieces(split.at):
            whole[box.slices()] = local[Box(begin, box.size).slices()]
            there[box.slices()] = True
    if not there.all():
        raise ExportError(
            f"tensor '{name}' cannot be put together: the checkpoint has only {int(there.sum())} of its "
            f"{there.numel()} elements, because not every rank with a part of it registered that part"
        )
    return whole


def _named(name: str, tensors: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    first = next(iter(tensors.values()))
    if all(first.shape == other.shape and torch.equal(first, other) for other in tensors.values()):
        return {name: first}
    return {f"{name} of rank {rank}": tensor for rank, tensor in tensors.items()}
