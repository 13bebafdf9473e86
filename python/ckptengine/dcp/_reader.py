"""Reader: lets torch.distributed.checkpoint load what ckptengine stored."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .._abi import load_library
from .._engine import Engine
from ..torch._replicas import this_rank
from ._boxes import Box, Stored
from ._index import Index, Place, Version, index_of
from ._storage import Storage, StorageError

Wanted = tuple[str, Stored, Box, torch.Tensor]
_PART_BYTES = 64 << 20  # read at a time before it is copied to where it belongs


class Reader(StorageReader):
    """Reads a checkpoint for torch.distributed.checkpoint.load(), from storage or from memory.

        dcp.load(state, storage_reader=Reader("/mnt/checkpoints", job="run1"))     # from storage
        dcp.load(state, storage_reader=Reader(engine))                            # from memory

    source      The directory of the option `storage`, or the Engine of this rank. From storage, any number of ranks
                with any meshes can load, each for itself. From memory, as many ranks as stored, all together.
    job         The job's name. Only for storage.
    iteration   Which checkpoint. Default: the newest that is whole. `checkpoint_id` of dcp.load() may name it, too: its
                last number counts. From memory it is always the newest that every rank can get.
    at          Where the state dict has what a Checkpointer stored: {"model": "", "optim": "optimizer"} is for a model
                at the root and optimizer state under "optimizer". docs/dcp.md lists the words.
    library     Path of libckptengine, as for Engine.
    """

    def __init__(
        self,
        source: str | os.PathLike | Engine,
        *,
        job: str | None = None,
        iteration: int | None = None,
        at: Mapping[str, str] | None = None,
        library: str | os.PathLike | None = None,
    ) -> None:
        super().__init__()
        if job is None:
            raise ValueError("Reader of a storage needs the job's name: give job=NAME")
        if "://" in str(source):
            raise ValueError(f"Reader reads a directory, not {source}; mount it, or copy the checkpoint by ckptctl export")
        self._source = Storage(load_library(library), Path(source), job)
        self._wanted_iteration = iteration
        self._at = dict(at or {})
        self._index: Index | None = None

    @property
    def iteration(self) -> int:
        """The iteration that was loaded. -1 before."""
        return self._source.iteration

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._index = None
        if checkpoint_id is not None:
            self._wanted_iteration = iteration_in(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        ranks = self._source.open(self._wanted_iteration)
        world_size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        try:
            self._index = index_of(ranks, this_rank(), self._source.world_size == world_size, self._at)
        except ValueError as error:
            raise StorageError(f"{self._source.name}: {error}") from None
        self._index.metadata.storage_meta = StorageMeta(checkpoint_id=str(self.iteration))
        return self._index.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=self._source.name)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        chosen = {plan.storage_data for plan in plans}
        if len(chosen) > 1:
            raise StorageError(
                f"ranks found different newest checkpoints: {', '.join(sorted(chosen))}; name one by `iteration`"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._index is not None
        part: list[tuple[ReadItem, torch.Tensor]] = []
        part_bytes = 0
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                self._load_bytes(item, planner)
                continue
            target = planner.resolve_tensor(item).detach()
            part.append((item, target))
            part_bytes += target.nbytes
            if part_bytes >= _PART_BYTES:
                self._load_tensors(part, planner)
                part, part_bytes = [], 0
        self._load_tensors(part, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return bool(_NUMBER.search(os.path.basename(os.fspath(checkpoint_id))))

    # ---- tensors ----

    def _load_tensors(self, items: list[tuple[ReadItem, torch.Tensor]], planner: LoadPlanner) -> None:
        fetched, wanted, compared = [], [], []
        for item, target in items:
            key = self._index.key(item.storage_index.fqn)
            if key in self._index.values:
                target.copy_(self._index.values[key][_slices(_box(item))])
                planner.commit_tensor(item, target)
                continue
            versions = self._index.versions[key]
            box = _box(item).moved(tuple(item.storage_index.offset))
            direct = target.device.type == "cpu" and target.dtype == versions[0].dtype
            into = target if direct else torch.empty(box.size, dtype=versions[0].dtype)
            wanted += _reads(versions[0], box, into)
            for other in versions[1:]:
                again = torch.empty_like(into, memory_format=torch.contiguous_format)
                wanted += _reads(other, box, again)
                compared.append((key, into, again))
            fetched.append((item, into, target))
        with torch.no_grad():
            self._source.fetch(wanted)
            for key, into, again in compared:
                _refuse_difference(key, into, again)
            for item, into, target in fetched:
                if into is not target:
                    target.copy_(into)
                planner.commit_tensor(item, target)

    # ---- bytes ----

    def _load_bytes(self, item: ReadItem, planner: LoadPlanner) -> None:
        key = self._index.key(item.storage_index.fqn)
        data = io.BytesIO()
        torch.save(self._index.values[key], data)
        data.seek(0)
        planner.load_bytes(item, data)


def _reads(version: Version, box: Box, into: torch.Tensor) -> list[Wanted]:
    """What to read for a box of the whole tensor."""
    found: list[Wanted] = []
    for place in _distinct(version.places):
        common = place.box.common(box)
        if common is not None:
            local = common.within(place.box).moved(place.local.begin)
            found.append((place.shard, place.tensor, local, into[_slices(common.within(box))]))
    return found


def _distinct(places: list[Place]) -> list[Place]:
    return list({place.box: place for place in reversed(places)}.values())


def _refuse_difference(key: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if not torch.equal(_raw(one), _raw(other)):
        raise StorageError(
            f"'{key}' differs between ranks that stored it, so it is not known which one this rank needs; load with as "
            "many ranks as stored it"
        )


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _box(item: ReadItem) -> Box:
    return Box(tuple(item.storage_offsets), tuple(item.lengths))


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + size) for begin, size in zip(box.begin, box.size, strict=True))


_NUMBER = re.compile(r"(\d+)\D*$")


def iteration_in(checkpoint_id: str | os.PathLike) -> int:
    """The last number in the name of a checkpoint: 12 of "runs/7/step-00000012"."""
    found = _NUMBER.search(os.path.basename(os.fspath(checkpoint_id).rstrip("/")))
    if found is None:
        raise ValueError(f"checkpoint_id {os.fspath(checkpoint_id)!r} has no number in its name; name it as step-12")
    return int(found[1])
