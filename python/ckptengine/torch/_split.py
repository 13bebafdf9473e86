"""How tensors are split over the ranks, and the record with which a checkpoint stores that.

A rank captures the local tensor of each DTensor. The tensor's *split* says where the local tensor lies in the whole
tensor: the mesh, the placements, the whole shape, and for each dimension the index ranges that this rank has. All
splits of a rank are stored as JSON in one tensor of its private shard, `split.<digest>`:

    {"format": 1, "rank": 2, "main": "rank0.and1",
     "meshes": [{"dims": ["dp", "tp"], "sizes": [2, 2], "ranks": [0, 1, 2, 3], "at": [1, 0]}],
     "splits": [{"mesh": 0, "placements": ["R", "S0"], "shape": [10, 7], "at": [[0, 5], [0, 7]]}],
     "tensors": {"model.fc.weight": 0, "optim.exp_avg.fc.weight": 0}}

`main` is the shard with the local tensors. `at` of a mesh is this rank's coordinate. `at` of a split has the ranges
[begin, end, begin, end, ...] of each dimension; usually there is one range. Placements: R is Replicate, S0 is Shard(0),
S0/2 is _StridedShard(0, split_factor=2). The digest in the name is that of the splits of parameters. So restore() can
compare the name before it changes anything.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .._engine import Error, Status

RECORD = "split."
_FORMAT = 1
_OPTIMIZER = "optim."

Ranges = tuple[tuple[int, int], ...]  # begin and end of each range


@dataclass(frozen=True)
class Mesh:
    """A device mesh as this rank sees it. `ranks` are in row-major order, `at` is this rank's coordinate."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    ranks: tuple[int, ...]
    at: tuple[int, ...]


@dataclass(frozen=True)
class Split:
    mesh: Mesh
    placements: tuple[str, ...]
    shape: tuple[int, ...]  # of the whole tensor
    at: tuple[Ranges, ...]  # this rank's index ranges, for each dimension

    def local_shape(self) -> tuple[int, ...]:
        return tuple(_length(ranges) for ranges in self.at)

    def alike(self) -> frozenset[int]:
        """Returns the ranks that have the same local tensor: those along the mesh dimensions that replicate it."""
        numbers = torch.tensor(self.mesh.ranks).reshape(self.mesh.sizes)
        replicated = [placement == "R" for placement in self.placements]
        index = tuple(slice(None) if r else at for r, at in zip(replicated, self.mesh.at, strict=True))
        return frozenset(numbers[index].flatten().tolist())


def is_dtensor(value: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # it is imported if there is any DTensor
    return module is not None and isinstance(value, module.DTensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the local tensor of a DTensor, or else the tensor. Ten times cheaper than to_local(); no autograd."""
    if not is_dtensor(tensor):
        return tensor
    inner = tensor._local_tensor
    # The local tensor may be the result of a collective for which nobody has waited yet.
    return inner.trigger_wait() if hasattr(inner, "trigger_wait") else inner


def split_of(name: str, tensor: torch.Tensor) -> Split | None:
    """Returns how a tensor is split; None if it is not. Raises Error if this rank's part of the state is more than the
    local tensor.

    A DDP model with tensor parallelism has local tensors as parameters. Their `_st_info` describes the split."""
    if is_dtensor(tensor):
        mesh, placements, shape = tensor.device_mesh, tensor.placements, tensor.shape
    elif hasattr(tensor, "_st_info"):
        mesh, placements, shape = tensor._st_info.mesh, tensor._st_info.placements, tensor._st_info.shape
    else:
        return None
    coordinate = mesh.get_coordinate()
    if coordinate is None:  # this rank is not in the mesh
        return None
    numbers = mesh.mesh
    described = Mesh(
        tuple(mesh.mesh_dim_names or ()),
        tuple(numbers.shape),
        tuple(numbers.flatten().tolist()),
        tuple(coordinate),
    )
    words = tuple(_word(name, placement) for placement in placements)
    split = Split(described, words, tuple(shape), _ranges(described, words, tuple(shape)))
    if split.local_shape() != tuple(local(tensor).shape):
        raise Error(
            Status.INVALID,
            f"tensor '{name}' has a local tensor of shape {tuple(local(tensor).shape)}, but with its "
            f"placements {placements} it must be {split.local_shape()}: make the tensor with distribute_tensor(), or "
            "give its local tensor",
        )
    return split


def _word(name: str, placement: Any) -> str:
    kind = type(placement).__name__
    if kind == "Replicate":
        return "R"
    if kind == "Shard":
        return f"S{placement.dim}"
    if kind == "_StridedShard":
        return f"S{placement.dim}/{placement.split_factor}"
    advice = "redistribute() it to Shard or Replicate" if placement.is_partial() else "give its local tensor"
    raise Error(Status.INVALID, f"tensor '{name}' has the placement {placement}, which is not captured: {advice}")


def _ranges(mesh: Mesh, placements: Iterable[str], shape: tuple[int, ...]) -> tuple[Ranges, ...]:
    found: list[Ranges] = [((0, size),) for size in shape]
    for word, number, of in zip(placements, mesh.at, mesh.sizes, strict=True):
        if word == "R":
            continue
        dim, _, factor = word[1:].partition("/")
        blocks = int(factor or 1)
        taken = [_chunk(_chunk(found[int(dim)], block, blocks), number, of) for block in range(blocks)]
        found[int(dim)] = _joined(r for ranges in taken for r in ranges)
    return tuple(found)


def _chunk(ranges: Ranges, number: int, of: int) -> Ranges:
    """Returns one of `of` chunks of these indices, as torch.chunk() cuts them. The last ones may be empty."""
    step = -(-_length(ranges) // of)
    first, last = number * step, (number + 1) * step
    cut, passed = [], 0
    for begin, end in ranges:
        low, high = max(begin, begin + first - passed), min(end, begin + last - passed)
        if low < high:
            cut.append((low, high))
        passed += end - begin
    return tuple(cut)


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return tuple(joined)


def _length(ranges: Ranges) -> int:
    return sum(end - begin for begin, end in ranges)


# ---- as it is stored ----


def record(rank: int, main: str, splits: Mapping[str, Split]) -> tuple[str, bytes]:
    """Returns the name and the bytes of a rank's record."""
    meshes, kinds = _numbered(split.mesh for split in splits.values()), _numbered(splits.values())
    text = json.dumps(
        {
            "format": _FORMAT,
            "rank": rank,
            "main": main,
            "meshes": [{"dims": m.dims, "sizes": m.sizes, "ranks": m.ranks, "at": m.at} for m in meshes],
            "splits": [
                {
                    "mesh": meshes[s.mesh],
                    "placements": s.placements,
                    "shape": s.shape,
                    "at": [[edge for r in ranges for edge in r] for ranges in s.at],
                }
                for s in kinds
            ],
            "tensors": {name: kinds[split] for name, split in sorted(splits.items())},
        },
        separators=(",", ":"),
    )
    where = sorted((name, s.shape, s.at) for name, s in splits.items() if not is_of_optimizer(name))
    return RECORD + hashlib.sha256(repr(where).encode()).hexdigest()[:16], text.encode()


def is_of_optimizer(name: str) -> bool:
    """Whether a tensor of this name is optimizer state."""
    return name.startswith(_OPTIMIZER)


def _numbered(items: Iterable[Any]) -> dict[Any, int]:
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


@dataclass(frozen=True)
class Record:
    rank: int
    main: str
    splits: dict[str, Split]


def read_record(data: bytes | bytearray | memoryview) -> Record:
    """Reads what record() wrote, which may be followed by blanks. Raises ValueError for other bytes."""
    try:
        found = json.loads(bytes(data))
        if found["format"] != _FORMAT:
            raise ValueError(
                f"the splits of tensors are stored in format {found['format']}, but this version only reads format "
                f"{_FORMAT}; use the version that stored them"
            )
        meshes = [Mesh(*(tuple(m[key]) for key in ("dims", "sizes", "ranks", "at"))) for m in found["meshes"]]
        kinds = [
            Split(
                meshes[s["mesh"]],
                tuple(s["placements"]),
                tuple(s["shape"]),
                tuple(tuple(zip(edges[::2], edges[1::2], strict=True)) for edges in s["at"]),
            )
            for s in found["splits"]
        ]
        return Record(found["rank"], found["main"], {name: kinds[k] for name, k in found["tensors"].items()})
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"the stored splits of tensors are damaged ({error!r})") from None


def joined(tensor: torch.Tensor, split: Split, meshes: Mapping[Mesh, Any]) -> torch.Tensor:
    """Returns a DTensor that shares the memory of a local tensor, with a stored split. `meshes`: those of this job."""
    from torch.distributed.tensor import DTensor

    if split.mesh not in meshes:
        raise Error(
            Status.MISMATCH,
            f"optimizer state is stored on a device mesh {split.mesh.dims} of {split.mesh.sizes} that this job does "
            "not have; start with the meshes of the stored checkpoint",
        )
    order = sorted(range(tensor.ndim), key=lambda dim: (-tensor.stride(dim), dim))
    strides, step = [0] * tensor.ndim, 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, split.shape[dim])
    placements = [_placement(word) for word in split.placements]
    with torch.no_grad():
        return DTensor.from_local(
            tensor,
            meshes[split.mesh],
            placements,
            run_check=False,
            shape=torch.Size(split.shape),
            stride=tuple(strides),
        )


def _placement(word: str) -> Any:
    from torch.distributed.tensor import Replicate, Shard

    if word == "R":
        return Replicate()
    dim, _, factor = word[1:].partition("/")
    if not factor:
        return Shard(int(dim))
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(int(dim), split_factor=int(factor))
