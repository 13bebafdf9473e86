"""Takes the place of an engine and its agent: keeps checkpoints in a dict, so a restart takes milliseconds."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy
from ckptengine import Error, Status
from ckptengine._abi import Capture
from ckptengine._engine import Restored, Ticket
from ckptengine.torch._memory import _TORCH_DTYPES

SHARDS = {Capture.OVERLAPPED: "main", Capture.SYNCHRONOUS: "private"}


class EngineInMemory:
    """`stored`: the checkpoints, by job. Refuses other layouts as the engine does."""

    def __init__(self, options: Any = None, *, stored: dict[str, dict], job: str = "job", **_: Any) -> None:
        self.stored, self.job = stored, job
        self.registered: dict[str, tuple] = {}
        self.refused: list[str] = []
        self.writes = 0  # tensors that restore() has written
        self._pending = -1

    def register(self, name: str, buffer: bytearray, *, capture: Capture = Capture.OVERLAPPED) -> None:
        array = numpy.frombuffer(buffer, dtype=numpy.uint8)
        self.registered[name] = (array.ctypes.data, "U8", [len(buffer)], capture, array)

    def register_pointer(self, name: str, address: int, dtype: Any, shape: Any, *, capture: Capture, owner: Any,
                         memory: Any = None) -> None:
        assert name not in self.registered, name
        self.registered[name] = (address, dtype.name, list(shape), capture, owner)

    def move(self, name: str, address: int, *, owner: Any = None) -> None:
        self.registered[name] = (address, *self.registered[name][1:4], owner)

    def unregister(self, name: str) -> None:
        del self.registered[name]

    def stored_layout(self) -> dict[str, Any]:
        found = self.stored.get(self.job)
        layout = {"found": found is not None, "incarnation": 1, "main": {}, "private": {}}
        for name, (dtype, shape, capture, _) in (found or {"tensors": {}})["tensors"].items():
            layout[SHARDS[capture]][name] = {"dtype": dtype, "shape": shape}
        return layout

    def restore(self, stream: Any = None) -> Restored:
        found = self.stored.get(self.job)
        for name, (dtype, shape, capture, data) in (found or {"tensors": {}})["tensors"].items():
            if name not in self.registered or self.registered[name][1:4] != (dtype, shape, capture):
                raise Error(Status.MISMATCH, f"tensor '{name}' is stored, but registered otherwise")
            ctypes.memmove(self.registered[name][0], data, len(data))
            self.writes += 1
        extra = self.registered.keys() - (found or {"tensors": self.registered})["tensors"].keys()
        if extra:
            raise Error(Status.MISMATCH, f"tensor '{min(extra)}' is registered, but not stored")
        iteration = found["iteration"] if found else -1
        return Restored(found is not None, False, False, 0, 0, 1, iteration, iteration + 1, 0, 0.0, 0.0)

    def snapshot(self, iteration: int, stream: Any = None) -> Ticket:
        self._pending = iteration
        return Ticket(self, iteration, Status.OK, "")

    def before_update(self, streams: Any = ()) -> bool:
        if self._pending >= 0:
            tensors = {name: (dtype, shape, capture, ctypes.string_at(address, _bytes(dtype, shape)))
                       for name, (address, dtype, shape, capture, _) in self.registered.items()}
            self.stored[self.job] = {"iteration": self._pending, "tensors": tensors}
        self._pending = -1
        return True

    def wants_gradients(self) -> bool:
        return False

    def take_shards(self) -> None:
        pass

    def discard(self) -> None:
        self._pending = -1

    def close(self) -> None:
        self.before_update()

    def _report(self, status: Status, message: str) -> None:
        self.refused.append(message)


def _bytes(dtype: str, shape: list[int]) -> int:
    return math.prod(shape) * _TORCH_DTYPES[dtype].itemsize
