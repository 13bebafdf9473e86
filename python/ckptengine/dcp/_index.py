"""An index of a checkpoint: its torch.distributed.checkpoint Metadata, and where each box of a tensor is stored.

A checkpoint comes from a Checkpointer, whose names become keys (_keys.py), or from Writer, which stores the Metadata
itself (_writer.py). The index is the same for both.

The same key may be in several shards. Then the key has several *versions*. This happens for ranks of a replicated model
without a common shard, for the stages of a pipeline, and for experts. A rank reads its own version. A rank that has
none reads the first version, if all versions are equal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from ..torch import decode
from ..torch._python_state import COMMON_STATE, COMMON_STATE_ON_GPU, PYTHON_STATE, PYTHON_STATE_ON_GPU
from ..torch._split import RECORD, Record, Split, read_record
from ..torch._structure import RECORD as STRUCTURE
from ._boxes import Box, Stored, pieces
from ._keys import Keys, plain_key

_SECOND_GROUP = re.compile(r"((?:.*\.)?param_groups)\.1\.")
_OF_PARAMETER = re.compile(r"((?:.*?\.)?param_groups)\..+\.([^.]+)")
METADATA = "dcp.metadata"
BYTES = "[bytes]"


_PYTHON_STATE = (PYTHON_STATE, PYTHON_STATE_ON_GPU, COMMON_STATE, COMMON_STATE_ON_GPU)


def decode_python_state(layout: Mapping[str, dict], small: Callable[[str], bytes]) -> Any:
    """Decodes what a Checkpointer stored besides tensors. `layout` has the tensors of the private shard, or of both
    shards. Raises ValueError if another program stored it."""
    own = decode(small(PYTHON_STATE), small(PYTHON_STATE_ON_GPU) if PYTHON_STATE_ON_GPU in layout else b"")
    if COMMON_STATE not in layout:
        return own
    return own | decode(small(COMMON_STATE), small(COMMON_STATE_ON_GPU) if COMMON_STATE_ON_GPU in layout else b"")


@dataclass
class RankState:
    """What one rank stored. Several ranks may have the same shard as `main`."""

    rank: int
    main: str | None
    private: str | None
    layouts: Mapping[str, Mapping[str, dict]]  # by shard, then by stored name
    small: Callable[[str], bytes]  # returns the bytes of a tensor in the private shard, or of common state

    def private_layout(self) -> Mapping[str, dict]:
        return {} if self.private is None else self.layouts[self.private]

    def record(self) -> Record | None:
        name = next((name for name in self.private_layout() if name.startswith(RECORD)), None)
        return None if name is None else read_record(self.small(name))

    def python_state(self) -> dict[str, Any] | None:
        if PYTHON_STATE not in self.private_layout():
            return None
        try:
            state = decode_python_state({**self.layouts.get(self.main or "", {}), **self.private_layout()}, self.small)
        except ValueError:
            return None  # another program stored something else under this name
        return state if isinstance(state, dict) and "groups" in state else None


@dataclass(frozen=True)
class Place:
    """A box of a key's tensor, and where it is stored."""

    box: Box  # within the whole tensor
    shard: str
    tensor: Stored
    local: Box  # within the stored tensor


@dataclass
class Version:
    shape: tuple[int, ...]
    dtype: torch.dtype
    places: list[Place] = field(default_factory=list)

    def boxes(self) -> list[Box]:
        return list(dict.fromkeys(place.box for place in self.places))  # replicas have equal boxes

    def distinct(self) -> list[Place]:
        """Returns the places without replicas."""
        return list({place.box: place for place in reversed(self.places)}.values())


class Known(dict):
    """Metadata by key. Also finds a key that differs from the stored one only in the words of wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self._plain: dict[str, str | None] = {}
        self._several: set[str] = set()  # optimizers with several groups

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in self.keys():
            short = plain_key(key)
            self._plain[short] = None if short in self._plain else key
            if second := _SECOND_GROUP.match(key):
                self._several.add(second[1])
        super().__setitem__(key, value)

    def key(self, wanted: str) -> str | None:
        if wanted in self.keys():
            return wanted
        if found := self._plain.get(plain_key(wanted)):
            return found
        # torch's flattened optimizer state has an entry per parameter, such as param_groups.fc.weight.lr. All
        # parameters of a group have the same value.
        group = _OF_PARAMETER.fullmatch(wanted)
        only = f"{group[1]}.0.{group[2]}" if group and group[1] not in self._several else ""
        return only if only in self.keys() else None

    def __contains__(self, wanted: object) -> bool:
        return isinstance(wanted, str) and self.key(wanted) is not None

    def __missing__(self, wanted: str) -> Any:
        key = self.key(wanted)
        if key is None:
            raise KeyError(wanted)
        return self[key]


@dataclass
class Index:
    metadata: Metadata
    versions: dict[str, list[Version]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)  # by key: Python state
    stored_bytes: dict[str, tuple[str, Stored]] = field(default_factory=dict)  # by key: shard and tensor of a pickle

    def key(self, wanted: str) -> str:
        found = self.metadata.state_dict_metadata.key(wanted)
        if found is None:
            raise KeyError(wanted)
        return found


def index_of(ranks: list[RankState], me: int, same_world: bool, at: Mapping[str, str]) -> Index:
    """Makes the index for rank `me` of the job that loads. `same_world`: as many ranks stored the checkpoint."""
    own = next((rank for rank in ranks if same_world and rank.rank == me), None)
    ranks = sorted(ranks, key=lambda rank: rank is not own)
    for rank in ranks:
        if METADATA in rank.private_layout():
            return _written(ranks, decode(rank.small(METADATA)))
    return _captured(ranks, own, at)


def main_of(private_layout: Mapping[str, dict], small: Callable[[str], bytes]) -> str | None:
    """Returns the name of a rank's main shard. None if the rank's private shard does not have it."""
    for name in private_layout:
        if name.startswith(RECORD):
            return read_record(small(name)).main or None
    if PYTHON_STATE in private_layout:
        try:
            return decode_python_state(private_layout, small).get("main") or None
        except (ValueError, AttributeError):
            return None
    return None


def parse(stored_name: str) -> tuple[str, tuple[int, ...] | None]:
    """Returns the key and the offsets of a tensor that Writer stored. The offsets are None for pickled bytes."""
    key, _, rest = stored_name.rpartition("[")
    if rest == BYTES[1:]:
        return key, None
    return key, tuple(int(number) for number in rest.rstrip("]").split(",") if number)


def stored_name(key: str, offsets: tuple[int, ...] | None) -> str:
    return key + BYTES if offsets is None else f"{key}[{','.join(map(str, offsets))}]"


# ---- what Writer stored ----


def encodable(metadata: Metadata) -> dict[str, Any]:
    """Returns the Metadata as plain values, which encode() can store and _written() reads."""
    tensors, others = {}, []
    for key, one in metadata.state_dict_metadata.items():
        if isinstance(one, TensorStorageMetadata):
            tensors[key] = {
                "dtype": one.properties.dtype,
                "requires_grad": one.properties.requires_grad,
                "size": list(one.size),
                "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in one.chunks],
            }
        else:
            others.append(key)
    return {"format": 1, "tensors": tensors, "bytes": others, "planner": metadata.planner_data}


def _written(ranks: list[RankState], plain: dict[str, Any]) -> Index:
    index = Index(Metadata(Known(), planner_data=plain["planner"]))
    known = index.metadata.state_dict_metadata
    for key, one in plain["tensors"].items():
        chunks = [ChunkStorageMetadata(torch.Size(begin), torch.Size(size)) for begin, size in one["chunks"]]
        properties = TensorProperties(dtype=one["dtype"], requires_grad=one["requires_grad"])
        known[key] = TensorStorageMetadata(properties, torch.Size(one["size"]), chunks)
        index.versions[key] = [Version(tuple(one["size"]), one["dtype"])]
    for key in plain["bytes"]:
        known[key] = BytesStorageMetadata()
    for rank in ranks:
        for shard, layout in rank.layouts.items():
            for name, entry in layout.items():
                if not name.endswith("]"):
                    continue
                key, offsets = parse(name)
                if offsets is None:
                    index.stored_bytes.setdefault(key, (shard, Stored(name, entry)))
                else:
                    tensor = Stored(name, entry, known[key].properties.dtype)
                    size = _size_at(known[key], offsets)
                    local = Box((0,) * len(size), size)
                    index.versions[key][0].places.append(Place(Box(offsets, size), shard, tensor, local))
    return index


def _size_at(one: TensorStorageMetadata, offsets: tuple[int, ...]) -> tuple[int, ...]:
    return next(tuple(chunk.sizes) for chunk in one.chunks if tuple(chunk.offsets) == offsets)


# ---- what a Checkpointer captured ----


def _captured(ranks: list[RankState], own: RankState | None, at: Mapping[str, str]) -> Index:
    first = own or ranks[0]
    state = first.python_state()
    keys = Keys(state, at)
    index = Index(Metadata(Known()))
    index.versions, mappings = versions_of(ranks, own, keys)
    known = index.metadata.state_dict_metadata
    for key, versions in index.versions.items():
        known[key] = _tensor_metadata(key, versions[0])
    registered = [*first.layouts.get(first.main or "", {}), *first.private_layout()]
    flat, paths = flatten_state_dict(keys.python_state(name.partition("@")[0] for name in registered))
    for key, value in flat.items():
        index.values[key] = value
        known[key] = _value_metadata(value)
    mappings |= paths
    for alias, of in (state or {}).get("tied", {}).items():
        path, key = keys.path(alias), ".".join(keys.path(of))
        if key in index.versions:
            mappings[".".join(path)] = path
            index.versions[".".join(path)] = index.versions[key]
            known[".".join(path)] = known[key]
    index.metadata.planner_data = mappings
    return index


def versions_of(
    ranks: list[RankState], own: RankState | None, keys: Keys
) -> tuple[dict[str, list[Version]], dict[str, tuple]]:
    found: dict[str, dict[Any, Version]] = {}  # by key; then by the ranks of the mesh, or by the shard
    mappings: dict[str, tuple] = {}
    seen: set[tuple[str, str]] = set()
    for rank in ranks:
        record = rank.record()
        splits = record.splits if record else {}
        for shard, layout in rank.layouts.items():
            for name, entry in layout.items():
                if (shard, name) in seen or name in _PYTHON_STATE or name.startswith((RECORD, STRUCTURE)):
                    continue
                seen.add((shard, name))
                tensor = Stored(name, entry)
                path = keys.path(tensor.name)
                mappings[".".join(path)] = path
                by_whole = found.setdefault(".".join(path), {})
                split = splits.get(tensor.name)
                if split is None:
                    if shard == rank.private and by_whole:
                        continue  # each rank has its own value; the first one is used
                    whole = Box((0,) * len(tensor.shape), tensor.shape)
                    by_whole[shard] = Version(tensor.shape, tensor.dtype, [Place(whole, shard, tensor, whole)])
                else:
                    version = by_whole.setdefault(split.mesh.ranks, Version(split.shape, tensor.dtype))
                    version.places += _places(split, shard, tensor)
    return {key: _own_first(versions, own) for key, versions in found.items()}, mappings


def _own_first(versions: dict[Any, Version], own: RankState | None) -> list[Version]:
    """Returns this rank's own version alone. If it has none, returns all versions."""
    for whole, version in versions.items():
        mine = whole in (own.main, own.private) if own and isinstance(whole, str) else own and own.rank in whole
        if mine:
            return [version]
    return list(versions.values())


def _places(split: Split, shard: str, tensor: Stored) -> list[Place]:
    if split.local_shape() != tensor.shape:
        raise ValueError(
            f"tensor '{tensor.name}' of shard '{shard}' has the shape {tensor.shape}, but its stored split gives "
            f"{split.local_shape()}, so this checkpoint is damaged; load another one"
        )
    return [Place(box, shard, tensor, Box(local, box.size)) for box, local in pieces(split.at)]


def _tensor_metadata(key: str, version: Version) -> TensorStorageMetadata:
    boxes = version.boxes()
    there, all_of_it = sum(box.elements() for box in boxes), math.prod(version.shape)
    if there != all_of_it:
        raise ValueError(
            f"tensor '{key}' cannot be loaded: the ranks stored {there} of its {all_of_it} elements; load another "
            "checkpoint"
        )
    chunks = [ChunkStorageMetadata(torch.Size(box.begin), torch.Size(box.size)) for box in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=version.dtype), torch.Size(version.shape), chunks)


def _value_metadata(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if not isinstance(value, torch.Tensor):
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size([0] * value.ndim), value.shape)
    return TensorStorageMetadata(TensorProperties(dtype=value.dtype), value.shape, [chunk])
