"""A checkpoint in memory: what the engines of all ranks have restored.

The engine gives each rank the bytes that the rank stored. A rank gets other ranks' bytes over torch.distributed, in
rounds. In a round each rank asks for a bounded number of bytes, and all ranks answer each other. So the memory needed
is bounded. Every rank takes part until all ranks have what they need.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .._abi import Capture, DType
from .._engine import Engine, Error, Restored, Status, Ticket
from ..torch._replicas import is_distributed, this_rank
from ..torch._split import RECORD
from ._boxes import Box, Parts, Read, Stored, Wanted
from ._index import METADATA, RankState, main_of

_ROUND_BYTES = 64 << 20  # how much a rank asks for in a round
_BOX_BYTES = 8 << 20  # how much a rank asks for in one box

_Request = tuple[str, Stored, Box]


@dataclass
class Held:
    """What an engine has restored. The next save frees the buffers."""

    start: Restored
    layouts: dict[str, dict[str, dict]] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    world_size: int = 1
    last: Ticket | None = None  # of the last save

    def read(self, shard: str) -> Read:
        return reader_of(self.buffers[shard])

    def small(self, shard: str, name: str) -> bytes:
        return bytes(self.read(shard)(*self.layouts[shard][name]["data_offsets"]))


_held: weakref.WeakKeyDictionary[Engine, Held] = weakref.WeakKeyDictionary()


def held_by(engine: Engine) -> Held:
    """Returns what the engine has restored. The first call restores. All ranks must call this."""
    if engine not in _held:
        _held[engine] = _restore(engine)
    return _held[engine]


def _restore(engine: Engine) -> Held:
    stored = engine.stored_layout()
    layouts, buffers = {}, {}
    for shard, capture in (("main", Capture.OVERLAPPED), ("private", Capture.SYNCHRONOUS)):
        layout = stored.get(shard, {}) if stored["found"] else {}
        size = max((entry["data_offsets"][1] for entry in layout.values()), default=0)
        buffers[shard], layouts[shard] = torch.empty(size, dtype=torch.uint8), layout
        for name, entry in layout.items():
            address = buffers[shard].data_ptr() + entry["data_offsets"][0] if size else 0
            dtype = DType[entry["dtype"]]
            engine.register_pointer(name, address, dtype, entry["shape"], capture=capture, owner=buffers[shard])
    start = engine.restore()
    for name in list(engine.registered):
        engine.unregister(name)
    return Held(start, layouts, buffers)


def reader_of(buffer: torch.Tensor) -> Read:
    view = memoryview((ctypes.c_char * buffer.numel()).from_address(buffer.data_ptr())) if buffer.numel() else b""
    plain = memoryview(view).cast("B")
    return lambda begin, end: plain[begin:end]


class Memory:
    """Reads from the memory of all ranks. All ranks must call the same methods in the same order."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: Held | None = None
        self._owners: dict[str, int] = {}
        self._local: dict[str, str] = {}
        self.iteration, self.world_size, self.name = -1, 1, "memory"

    def open(self, iteration: int | None) -> list[RankState]:
        found = _gathered(lambda: self._own(iteration))
        self.world_size = len(found)
        ranks = []
        self._owners = {}
        for rank, (main, layouts, small) in enumerate(found):
            private = f"rank{rank}.private"
            state = RankState(rank, main or f"rank{rank}", private, {}, small.__getitem__)
            state.layouts = {state.main: layouts["main"], private: layouts["private"]}
            for shard in state.layouts:
                self._owners.setdefault(shard, rank)
            ranks.append(state)
        own = ranks[this_rank()]
        held = self._held
        own.small = lambda name: held.small("private" if name in held.layouts["private"] else "main", name)
        self._local = {own.main: "main", own.private: "private"}
        self._owners |= dict.fromkeys(self._local, this_rank())
        return ranks

    def _own(self, iteration: int | None) -> tuple[str | None, dict, dict[str, bytes]]:
        self._held = held = held_by(self._engine)
        if not held.start.found:
            raise Error(
                Status.LOST,
                "memory holds no checkpoint of this job: this is a fresh start. Begin training without a load",
            )
        if not held.buffers:
            raise Error(
                Status.INVALID,
                "a checkpoint can be loaded only before the first save, because a save frees the memory of the "
                "restored checkpoint. This engine has already saved. To load again, close it and make another",
            )
        if iteration not in (None, held.start.iteration):
            raise Error(
                Status.INVALID,
                f"memory holds iteration {held.start.iteration}, not {iteration}; leave the iteration out to load this "
                "one, or load from storage",
            )
        self.iteration = held.start.iteration
        private = held.layouts["private"]
        small = {name: held.small("private", name) for name in private if name.startswith((RECORD, METADATA))}
        main = main_of(private, lambda name: held.small("private", name))
        return main, held.layouts, small

    # ---- reading ----

    def load(self, parts: Parts) -> None:
        """Reads the parts one after another. Calls each part's function once the part is read."""
        try:
            for wanted, done in parts:
                remote = []
                for shard, tensor, box, target in wanted:
                    if self._owners[shard] == this_rank():
                        tensor.read(self._read(shard), box, target)
                    else:
                        remote += [(shard, tensor, *cut) for cut in _cut(box, target)]
                for group in _rounds(remote):
                    self._exchange(group, last=False)
                done()
        finally:
            # Other ranks may need bytes of this rank, even if this rank has failed.
            while not self._exchange([], last=True):
                pass

    def _read(self, shard: str) -> Read:
        return self._held.read(self._local[shard])

    def _exchange(self, wanted: list[Wanted], last: bool) -> bool:
        """Sends what others ask for, receives what this rank asks for. Returns True if all ranks are done."""
        if self.world_size == 1:
            return True
        mine: dict[int, list[Wanted]] = {}
        for one in wanted:
            mine.setdefault(self._owners[one[0]], []).append(one)
        asked = {rank: [one[:3] for one in ones] for rank, ones in mine.items()}
        told: list[Any] = [None] * self.world_size
        dist.all_gather_object(told, (last, asked))
        me, device = this_rank(), _device()
        for step in range(1, self.world_size):
            to, source = (me + step) % self.world_size, (me - step) % self.world_size
            out = self._packed(told[to][1].get(me, []), device)
            into = torch.empty(sum(_bytes_of(one) for one in asked.get(source, [])), dtype=torch.uint8, device=device)
            work = [dist.isend(out, to)] if out.numel() else []
            work += [dist.irecv(into, source)] if into.numel() else []
            for each in work:
                each.wait()
            _unpack(into.cpu(), mine.get(source, []))
        return all(one[0] for one in told)

    def _packed(self, requests: list[_Request], device: torch.device) -> torch.Tensor:
        packed = torch.empty(sum(map(_bytes_of, requests)), dtype=torch.uint8)
        at = 0
        for shard, tensor, box in requests:
            size = _bytes_of((shard, tensor, box))
            found = torch.empty(box.size, dtype=tensor.dtype)
            tensor.read(self._read(shard), box, found)
            if size:
                packed[at : at + size] = found.reshape(-1).view(torch.uint8)
            at += size
        return packed.to(device)

    def close(self) -> None:
        self._held = None


def _gathered(make: Callable[[], Any]) -> list[Any]:
    """Calls `make` and returns the results of all ranks. If it raises on one rank, raises on all of them."""
    if not is_distributed() or dist.get_world_size() == 1:
        return [make()]
    try:
        own: tuple[Any, str] = make(), ""
    except Exception as error:
        failure: Exception | None = error
        own = None, f"rank {this_rank()}: {error}"
    else:
        failure = None
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, own)
    if failure is not None:
        raise failure
    for _, why in told:
        if why:
            raise Error(Status.SYSTEM, why)
    return [one for one, _ in told]


def _device() -> torch.device:
    group = dist.group.WORLD
    on_cpu = torch.device("cpu") in group._device_types
    return torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())


def _bytes_of(request: tuple) -> int:
    return request[2].elements() * request[1].dtype.itemsize


def _cut(box: Box, target: torch.Tensor) -> list[tuple[Box, torch.Tensor]]:
    """Cuts a box and its target into boxes of at most _BOX_BYTES."""
    if target.nbytes <= _BOX_BYTES or target.numel() <= 1:
        return [(box, target)]
    dim = max(range(target.ndim), key=lambda dim: target.shape[dim] > 1 and target.ndim - dim)
    step = max(1, target.shape[dim] * _BOX_BYTES // target.nbytes)
    found = []
    for at in range(0, box.size[dim], step):
        size = min(step, box.size[dim] - at)
        begin = (*box.begin[:dim], box.begin[dim] + at, *box.begin[dim + 1 :])
        smaller = Box(begin, (*box.size[:dim], size, *box.size[dim + 1 :]))
        found += _cut(smaller, target.narrow(dim, at, size))
    return found


def _rounds(wanted: list[Wanted]) -> Iterable[list[Wanted]]:
    total = itertools.accumulate(_bytes_of(one) for one in wanted)
    numbered = zip(total, wanted, strict=True)
    for _, group in itertools.groupby(numbered, key=lambda one: one[0] // _ROUND_BYTES):
        yield [one for _, one in group]


def _unpack(packed: torch.Tensor, wanted: list[Wanted]) -> None:
    at = 0
    for one in wanted:
        size = _bytes_of(one)
        if size:
            found = packed[at : at + size].clone().view(one[1].dtype)  # in new memory, which is aligned for the type
            one[3].copy_(found.reshape(one[2].size))
        at += size
