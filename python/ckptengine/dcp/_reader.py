"""Reader: lets torch.distributed.checkpoint load what ckptengine stored."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .._abi import load_library
from .._engine import Engine
from .._stored import StorageError
from ..torch._codec import _tensor_bytes as bytes_of
from ..torch._replicas import is_distributed, this_rank
from ._boxes import Box, Parts, Wanted
from ._index import Index, Version, index_of
from ._keys import Keys, Members
from ._memory import Memory
from ._storage import Storage

_PART_BYTES = 64 << 20  # how much is read at a time, before it is copied to the tensors


class Reader(StorageReader):
    """Reads a checkpoint for torch.distributed.checkpoint.load(), from storage or from memory.

        dcp.load(state, storage_reader=Reader("/mnt/checkpoints", job="run1"))     # from storage
        dcp.load(state, storage_reader=Reader(engine))                            # from memory

    Args:
        source: The directory of the option `storage`, or the Engine of this rank. From storage, any number of ranks
            with any meshes can load, and each rank reads by itself. From memory, as many ranks must load as have
            stored, all at the same time.
        job: The job's name. Only for storage.
        iteration: Which checkpoint to read. Default: the newest that is whole. You can also name it in `checkpoint_id`
            of dcp.load(): the last number in that text is the iteration. From memory, only the newest checkpoint that
            every rank can get can be read.
        at: Where your state dict has the state that a Checkpointer stored: {"model": "", "optim": "optimizer"} is for a
            model at the root and optimizer state under "optimizer". docs/frameworks.md lists the words.
        library: Path of libckptengine, as for Engine.

    Raises:
        ValueError: An argument is missing or wrong.
        StorageError: While it loads from storage, if the checkpoint is missing or damaged.
        Error: While it loads from memory, if the engine fails.
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
        memory = isinstance(source, Engine)
        self._source: Memory | Storage = Memory(source) if memory else _storage(source, job, library)
        self._wanted_iteration = iteration
        self._at = dict(at or {})
        Keys(None, self._at)  # raises now if `at` has unknown words
        self._index: Index | None = None

    @property
    def iteration(self) -> int:
        """The iteration that was loaded. -1 before anything was loaded."""
        return self._source.iteration

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._index = None
        if checkpoint_id is not None:
            self._wanted_iteration = iteration_in(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        ranks = self._source.open(self._wanted_iteration)
        world_size = torch.distributed.get_world_size() if is_distributed() else 1
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
                f"the ranks found different newest checkpoints on storage: {', '.join(sorted(chosen))}. If they do not "
                "see the same storage directory, correct that. Otherwise choose one with the argument `iteration`"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        with torch.no_grad():
            self._source.load(self._parts(plan, planner))
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return bool(_NUMBER.search(os.path.basename(os.fspath(checkpoint_id))))

    # ---- inside ----

    def _parts(self, plan: LoadPlan, planner: LoadPlanner) -> Parts:
        """Yields what to read, in parts of about _PART_BYTES. A part is larger if one item is."""
        wanted: list[Wanted] = []
        whens: list[Callable[[], None]] = []
        size = 0
        for item in plan.items:
            more, when = (self._bytes if item.type is LoadItemType.BYTE_IO else self._tensor)(item, planner)
            wanted += more
            whens.append(when)
            size += sum(one[3].nbytes for one in more)
            if size >= _PART_BYTES:
                yield wanted, _all(whens)
                wanted, whens, size = [], [], 0
        yield wanted, _all(whens)

    def _tensor(self, item: ReadItem, planner: LoadPlanner) -> tuple[list[Wanted], Callable[[], None]]:
        target = planner.resolve_tensor(item).detach()
        key = self._index.key(item.storage_index.fqn)
        if key in self._index.values:
            value = self._index.values[key][_box(item).slices()]
            return [], lambda: _put(item, planner, value, target)
        versions = self._index.versions[key]
        box = _box(item).moved(tuple(item.storage_index.offset))
        direct = target.device.type == "cpu" and target.dtype == versions[0].dtype
        into = target if direct else torch.empty(box.size, dtype=versions[0].dtype)
        others = [torch.empty(box.size, dtype=other.dtype) for other in versions[1:]]
        wanted = _reads(versions[0], box, into)
        for other, again in zip(versions[1:], others, strict=True):
            wanted += _reads(other, box, again)

        def when() -> None:
            for again in others:
                _refuse_difference(key, into, again)
            _put(item, planner, into, target)

        return wanted, when

    def _bytes(self, item: ReadItem, planner: LoadPlanner) -> tuple[list[Wanted], Callable[[], None]]:
        key = self._index.key(item.storage_index.fqn)
        if key in self._index.values:
            value, pickled = self._index.values[key], io.BytesIO()
            if isinstance(value, Members):
                value = value.of(getattr(planner, "state_dict", {}), item.dest_index.fqn)
            torch.save(value, pickled)
            pickled.seek(0)
            return [], lambda: planner.load_bytes(item, pickled)
        shard, tensor = self._index.stored_bytes[key]
        into = torch.empty(tensor.shape, dtype=torch.uint8)
        whole = Box((0,), tensor.shape)
        return [(shard, tensor, whole, into)], lambda: planner.load_bytes(item, io.BytesIO(bytes_of(into)))


def _storage(source: str | os.PathLike, job: str | None, library: str | os.PathLike | None) -> Storage:
    if job is None:
        raise ValueError("to load from storage, a Reader needs the job's name: give job=NAME")
    if "://" in str(source):
        raise ValueError(f"a Reader reads a directory, but got {source}; mount that storage, and give the directory")
    return Storage(load_library(library), Path(source), job)


def _all(whens: list[Callable[[], None]]) -> Callable[[], None]:
    def when() -> None:
        for one in whens:
            one()

    return when


def _put(item: ReadItem, planner: LoadPlanner, value: torch.Tensor, target: torch.Tensor) -> None:
    if value is not target:
        target.copy_(value)
    planner.commit_tensor(item, target)


def _reads(version: Version, box: Box, into: torch.Tensor) -> list[Wanted]:
    """Returns what to read for a box of the whole tensor."""
    found: list[Wanted] = []
    for place in version.distinct():
        common = place.box.common(box)
        if common is not None:
            local = common.within(place.box).moved(place.local.begin)
            found.append((place.shard, place.tensor, local, into[common.within(box).slices()]))
    return found


def _refuse_difference(key: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if not torch.equal(_raw(one), _raw(other)):
        raise StorageError(
            f"'{key}' has different values on different ranks of the checkpoint. Another number of ranks loads it, so "
            "no value belongs to this rank; load with as many ranks as stored it"
        )


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _box(item: ReadItem) -> Box:
    return Box(tuple(item.storage_offsets), tuple(item.lengths))


_NUMBER = re.compile(r"(\d+)\D*$")


def iteration_in(checkpoint_id: str | os.PathLike) -> int:
    """Returns the last number in the name of a checkpoint: 12 for "runs/7/step-00000012"."""
    found = _NUMBER.search(os.path.basename(os.fspath(checkpoint_id).rstrip("/")))
    if found is None:
        raise ValueError(
            f"checkpoint_id {os.fspath(checkpoint_id)!r} names no iteration: it has no number; give a name such as "
            "step-12"
        )
    return int(found[1])
