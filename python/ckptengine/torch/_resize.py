"""Restores a checkpoint whose ranks had split the state in another way, in shards of their own (docs/elastic.md).

The engine of each rank takes over some of the old shards, or has its own of them. Their records say how tensors were
split (_split.py). Each rank looks up which ranges its own tensors need. The ranks send each other what they lack over
the default process group. A rank that cannot go on tells all others, so all ranks go on, or all raise the same error.
Tensors change only after every rank has found all that it needs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from .._engine import Engine, Error, Status
from ..dcp._boxes import Box, Parts, Read, Wanted, pieces
from ..dcp._index import RankState, Version, main_of, versions_of
from ..dcp._keys import Keys
from ..dcp._memory import Memory, reader_of
from ._group_state import state as groups
from ._inventory import Inventory
from ._memory import plain, split_name
from ._python_state import COMMON_STATE, COMMON_STATE_ON_GPU, PythonState
from ._replicas import is_distributed, this_rank
from ._resize_names import Names
from ._resize_options import Chosen, Moved, Options, State, choose, moved, read, refuse_unwanted, renamed
from ._split import RECORD, is_of_optimizer, local

_PART_BYTES = 64 << 20  # how much is read at a time, before it is copied to the tensors
_PRIVATE = re.compile(r"rank(\d+)\.private")
_SMALL = (RECORD, COMMON_STATE, COMMON_STATE_ON_GPU)


def take_over(
    engine: Engine, inventory: Inventory, python_state: PythonState, layouts: Mapping[str, dict[str, Any]]
) -> None:
    """Fills the tensors and the Python state of all ranks. `layouts`: of the shards that the engine of this rank has to
    load, by name. The first one is a private shard. All ranks must call this. Raises the same Error on all ranks if
    anything is missing; then only optimizer state may have been created. If it raises while it reads, the contents of
    the tensors are undefined."""
    if groups.is_closed:
        raise Error(
            Status.MISMATCH,
            "the ranks split the state in another way than in the checkpoint, but cannot exchange tensors, because the "
            "process groups of this process are closed; start all ranks again together",
        )
    taken = Taken(engine, layouts)
    ranks = taken.look(inventory)
    own = next(rank for rank in ranks if rank.private == taken.private)
    versions = _versions(ranks, own, taken.names)
    targets: list[Target] = []
    found = _agreed_all(lambda: _find(targets, inventory, versions, len(ranks)))
    _refuse_unwanted(versions, set(itertools.chain.from_iterable(found)))
    chosen, states = _choose(taken, inventory, own, ranks)
    _agreed(lambda: taken.load(_parts(targets, versions)))
    _agreed(lambda: _put_python_state(python_state, own, taken.names, chosen, states))


# ---- the old shards ----


class Taken(Memory):
    """Reads from the shards that all ranks have taken over. All ranks must call the same methods in the same order."""

    def __init__(self, engine: Engine, layouts: Mapping[str, dict]) -> None:
        super().__init__(engine)
        self._layouts = layouts
        self._buffers: dict[str, Tensor] = {}
        self.private = next(iter(layouts))  # the private shard that this rank takes as its own
        self.names = Names((), (), ())
        self.options: dict[int, Options] = {}  # by the rank that stored them
        self._options_in: dict[int, str] = {}  # likewise: the shard that has them
        self._states: dict[str, State] = {}  # of optimizers, by shard
        self.world_size = dist.get_world_size() if is_distributed() else 1

    def look(self, inventory: Inventory) -> list[RankState]:
        """Loads the shards that this rank has taken over. Returns what each rank stored, in the order of ranks."""
        own = [found.name for found in inventory.gather() if found.of is None]
        here = set(itertools.chain.from_iterable(_agreed_all(lambda: own)))
        told = _agreed_all(self._load)
        layouts, small, mains, options = {}, {}, {}, {}
        for rank, found in enumerate(told):
            for shard, layout, of_shard, main, of_optimizers in found:
                if shard not in layouts:
                    layouts[shard], small[shard], self._owners[shard] = layout, of_shard, rank
                    options[shard] = of_optimizers
                if (private := _PRIVATE.fullmatch(shard)) is not None:
                    mains[int(private[1])] = main or f"rank{private[1]}"
        self._owners |= dict.fromkeys(self._layouts, this_rank())
        missing = [main for main in mains.values() if main not in layouts]
        if missing:
            raise Error(Status.MISMATCH, f"no rank got the stored shard '{missing[0]}'; load from storage instead")
        stored = {split_name(name)[0] for layout in layouts.values() for name in layout}
        self.names = Names({name for name in stored if not is_of_optimizer(name)}, here, set(inventory.optimizers))
        for rank, main in mains.items():
            for shard in (f"rank{rank}.private", main):
                if options[shard] is not None:
                    self.options[rank], self._options_in[rank] = options[shard].renamed(self.names), shard
        self._states = {shard: renamed(state, self.names) for shard, state in self._states.items()}
        return [self._state(rank, main, layouts, small) for rank, main in sorted(mains.items())]

    def _state(self, rank: int, main: str, layouts: dict[str, Any], small: dict[str, dict[str, bytes]]) -> RankState:
        private = f"rank{rank}.private"

        def read(name: str) -> bytes:
            for shard in (private, main):
                if name in small[shard]:
                    return small[shard][name]
            return self._small(private, name)

        return RankState(rank, main, private, {main: layouts[main], private: layouts[private]}, read)

    def _load(self) -> list[tuple[str, dict, dict[str, bytes], str | None, Options | None]]:
        found = []
        for shard, layout in self._layouts.items():
            size = max((entry["data_offsets"][1] for entry in layout.values()), default=0)
            self._buffers[shard] = torch.empty(size, dtype=torch.uint8)
            self._engine.load_taken(shard, self._buffers[shard].data_ptr(), size)
            small = {name: self._small(shard, name) for name in layout if name.startswith(_SMALL)}
            small_of = functools.partial(self._small, shard)
            options, self._states[shard] = read(layout, small_of) or (None, {})
            found.append((shard, layout, small, main_of(layout, small_of), options))
        return found

    def states(self, wanted: Iterable[Moved]) -> dict[Moved, dict]:
        """Returns the state that was wanted, and that this rank has taken over."""
        found = ((one, self._states.get(self._options_in[one.rank], {})) for one in wanted)
        return {one: state[one.optimizer][one.parameter] for one, state in found if one.optimizer in state}

    def _small(self, shard: str, name: str) -> bytes:
        return bytes(self._read(shard)(*self._layouts[shard][name]["data_offsets"]))

    def _read(self, shard: str) -> Read:
        return reader_of(self._buffers[shard])


# ---- this rank's tensors ----


def _versions(ranks: list[RankState], own: RankState, names: Names) -> dict[str, list[Version]]:
    """Returns where each tensor is stored, by its name in this job."""
    stored, _ = versions_of(sorted(ranks, key=lambda rank: rank is not own), None, Keys(None, {}))
    return {names.of_tensor(name): versions for name, versions in stored.items()}


class Target(NamedTuple):
    name: str
    memory: Tensor  # in the type in which it is stored
    boxes: list[tuple[Box, tuple[int, ...]]]  # each box within the whole tensor, and where it begins in `memory`


def _find(
    targets: list[Target], inventory: Inventory, versions: Mapping[str, list[Version]], world_size: int
) -> list[str]:
    """Appends what this rank needs to `targets`, and returns the names. Raises Error for the first tensor, in the order
    of the inventory, that is missing."""
    inventory.create_resized_state({name: (found[0].shape, found[0].dtype) for name, found in versions.items()})
    splits = inventory.splits()
    for found in inventory.gather():
        memory, split = plain(found.name, local(found.tensor).detach()), splits.get(found.name)
        shape = tuple(memory.shape) if split is None else split.shape
        whole = [(Box((0,) * memory.ndim, shape), (0,) * memory.ndim)]
        target = Target(found.name, memory, whole if split is None else list(pieces(split.at)))
        _refuse_missing(target, shape, versions.get(found.name, []), world_size)
        targets.append(target)
    return [target.name for target in targets]


def _refuse_unwanted(versions: Mapping[str, list[Version]], names: set[str]) -> None:
    for name in versions:
        if name not in names:
            raise Error(
                Status.MISMATCH,
                f"tensor '{name}' is stored, but no rank of this job has it; start the job as it was stored, or under "
                "another job name",
            )


def _refuse_missing(target: Target, shape: tuple[int, ...], versions: list[Version], world_size: int) -> None:
    advice = "start the job as it was stored, or under another job name"
    if not versions:
        raise Error(
            Status.MISMATCH, f"tensor '{target.name}' is missing in the checkpoint of {world_size} ranks; {advice}"
        )
    for version in versions:
        if (version.shape, version.dtype) != (shape, target.memory.dtype):
            raise Error(
                Status.MISMATCH,
                f"tensor '{target.name}' has the type {target.memory.dtype} and the whole shape {list(shape)}, but is "
                f"stored with {version.dtype} and {list(version.shape)}; {advice}",
            )
        for box, _ in target.boxes:
            common = [c for place in version.distinct() if (c := place.box.common(box)) is not None]
            overlap = any(one.common(other) for one, other in itertools.combinations(common, 2))
            there = sum(each.elements() for each in common)
            if overlap or there != box.elements():
                raise Error(
                    Status.MISMATCH,
                    f"tensor '{target.name}' is missing in part: the checkpoint of {world_size} ranks has {there} of "
                    f"the {box.elements()} elements that rank {this_rank()} needs; load from storage instead",
                )


def _parts(targets: list[Target], versions: Mapping[str, list[Version]]) -> Parts:
    """Yields what to read, in parts of about _PART_BYTES. A part is larger if one box is."""
    wanted: list[Wanted] = []
    whens: list[Callable[[], None]] = []
    size = 0
    for target in targets:
        for box, begin in target.boxes:
            into = target.memory[Box(begin, box.size).slices()]
            reads, when = _box(target.name, versions[target.name], box, into)
            wanted += reads
            whens.append(when)
            size += sum(one[3].nbytes for one in reads)
            if size >= _PART_BYTES:
                yield wanted, _all(whens)
                wanted, whens, size = [], [], 0
    yield wanted, _all(whens)


def _box(name: str, versions: list[Version], box: Box, into: Tensor) -> tuple[list[Wanted], Callable[[], None]]:
    copies = [into if into.device.type == "cpu" else torch.empty(box.size, dtype=into.dtype)]
    copies += [torch.empty(box.size, dtype=into.dtype) for _ in versions[1:]]
    wanted = []
    for version, copy in zip(versions, copies, strict=True):
        for place in version.distinct():
            common = place.box.common(box)
            if common is not None:
                at = common.within(place.box).moved(place.local.begin)
                wanted.append((place.shard, place.tensor, at, copy[common.within(box).slices()]))

    def when() -> None:
        for other in copies[1:]:
            if not torch.equal(_raw(copies[0]), _raw(other)):
                raise Error(
                    Status.MISMATCH,
                    f"tensor '{name}' is not split, and has different values on different ranks of the checkpoint. "
                    "The ranks split the state in another way now, so no value belongs to this rank; start the job "
                    "with the ranks, meshes and placements that stored it",
                )
        if copies[0] is not into:
            into.copy_(copies[0])

    return wanted, when


def _all(whens: list[Callable[[], None]]) -> Callable[[], None]:
    def when() -> None:
        with torch.no_grad():
            for one in whens:
                one()

    return when


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


# ---- Python state ----


def _choose(
    taken: Taken, inventory: Inventory, own: RankState, ranks: list[RankState]
) -> tuple[Chosen, dict[Moved, dict]]:
    """Returns what this rank's optimizers get, and the part of it that other ranks have taken over."""
    everyone = _agreed_all(lambda: choose(inventory, own, ranks, taken.options, taken.names))
    refuse_unwanted(taken.options, everyone)
    states: dict[Moved, dict] = {}
    if wanted := moved(everyone):
        for found in _agreed_all(lambda: taken.states(wanted)):
            states |= found
    return everyone[this_rank()], states


def _put_python_state(
    python_state: PythonState, own: RankState, names: Names, chosen: Chosen, states: dict[Moved, dict]
) -> None:
    state = own.python_state() or {}
    state |= chosen.common | {"optimizer": chosen.states(renamed(state.get("optimizer", {}), names), states)}
    python_state.put(state, adopted=own.rank != this_rank())


# ---- agreement of all ranks ----


def _agreed(make: Callable[[], Any]) -> Any:
    """Calls `make` and returns its result. If it raises on any rank, raises the same Error on all ranks."""
    result: list[Any] = []
    _agreed_all(lambda: result.append(make()))
    return result[0]


def _agreed_all(make: Callable[[], Any]) -> list[Any]:
    """The same, but returns the results of all ranks."""
    failure: Exception | None = None
    try:
        own: tuple[Any, int, str] = make(), Status.OK, ""
    except Exception as error:
        failure = error
        own = None, error.status if isinstance(error, Error) else Status.SYSTEM, str(error) or repr(error)
    told: list[Any] = [own]
    if is_distributed() and dist.get_world_size() > 1:
        told = [None] * dist.get_world_size()
        dist.all_gather_object(told, own)
    for _, status, text in told:
        if text:
            raise Error(Status(status), text) from failure
    return [one for one, _, _ in told]
