"""Reads and writes the Python state of a training loop: all that is captured besides registered tensors.

Every snapshot reads it, so it encodes only what may have changed, and never waits for a GPU. Tensors on the GPU that
are part of it (a tensor `lr`, the scale of a GradScaler, `extra`) are copied to a buffer on the GPU, which the engine
captures like any other tensor.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._abi import Capture, DType, Memory
from .._engine import Engine, Error, Status
from . import _codec, _rng
from ._inventory import Inventory

PYTHON_STATE = "python_state"
PYTHON_STATE_ON_GPU = "python_state.on_gpu"  # only if part of the state is on a GPU
_BLOB_STEP_BYTES = 4096
_NOTHING = _codec.encode({})
_IMMUTABLE = (type(None), bool, int, float, str)
_SCALER: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # torch before 2.3


class PythonState:
    """`stateful`: schedulers and scalers, by kind and name. Only the training thread uses it."""

    def __init__(
        self, inventory: Inventory, stateful: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Any], *, rng: bool
    ) -> None:
        self._inventory = inventory
        self._stateful = stateful
        self._extra = extra
        self._generators = _rng.Generators() if rng else None
        self._groups = {key: _Groups() for key in inventory.optimizers}
        self._facts: tuple[dict[str, Any], dict[str, bytes]] = ({}, {})
        self._size_bytes_min = 0
        self._blob = bytearray()  # registered
        self._gpu_blob: Tensor | None = None  # registered, in memory of any kind

    def check(self) -> None:
        """Raises Error if a part of the state cannot be stored."""
        self._size_bytes_min = 2 * len(self._encode({}, None))

    def capture(self, engine: Engine, gpu: torch.device | None, facts: dict[str, Any]) -> None:
        """Brings the registered buffers up to date, on the current stream of `gpu`, the GPU that has tensors. `facts`:
        more entries. Pass another dict if one of them changes. Raises Error."""
        on_gpu = None if gpu is None else _codec.OnGpu(gpu)
        data = self._encode(facts, on_gpu)
        if len(data) > len(self._blob):
            self._register(engine, max(self._size_bytes_min, len(data) + len(data) // 2))
        self._blob[: len(data)] = data
        needed_bytes = 0 if on_gpu is None else on_gpu.size_bytes
        self._fit_gpu_blob(engine, gpu, needed_bytes)
        if on_gpu is not None and self._gpu_blob is not None:
            on_gpu.copy_to(self._gpu_blob)

    def register_as_stored(self, engine: Engine, gpu: torch.device | None, stored: Mapping[str, dict]) -> None:
        """Registers buffers for the state that restore() will read. `stored` is the layout of the private shard."""
        if PYTHON_STATE in stored:
            self._register(engine, stored[PYTHON_STATE]["shape"][0])
        if PYTHON_STATE_ON_GPU in stored:
            self._register_gpu_blob(engine, gpu or torch.device("cpu"), stored[PYTHON_STATE_ON_GPU]["shape"][0])

    def put(self, *, adopted: bool) -> None:
        """Gives the restored state to the objects that have it. Does nothing if none was stored. `adopted`: the state
        is another rank's. Then keeps this rank's generators, because ranks must draw other numbers."""
        if not self._blob:
            return
        gpu_bytes = b"" if self._gpu_blob is None else _codec._tensor_bytes(self._gpu_blob.cpu())
        self._put(_codec.decode(self._blob, gpu_bytes), adopted)

    def read(self) -> bytes:
        """Returns the present state, for write(). Waits for the GPU if a part of the state is there. Raises Error."""
        return self._encode({}, None)

    def write(self, data: bytes) -> None:
        self._put(_codec.decode(data), adopted=False)

    def _put(self, state: dict[str, Any], adopted: bool) -> None:
        for key, groups in state["groups"].items():
            for group, saved in zip(self._inventory.optimizers[key].param_groups, groups, strict=True):
                _update_group(group, saved)
        self._inventory.put_other_state(state["optimizer"])
        for what, objects in self._stateful.items():
            for name, item in objects.items():
                item.load_state_dict(state[what][name])
        # Generators come last, because other objects may draw from them when they load their state.
        for name, item in sorted(self._extra.items(), key=lambda named: isinstance(named[1], torch.Generator)):
            if not (adopted and isinstance(item, torch.Generator)):
                _write_extra(item, state["extra"][name])
        if self._generators is not None and "rng" in state and not adopted:
            _rng.write(state["rng"])

    # ---- encoding ----

    def _encode(self, facts: dict[str, Any], on_gpu: _codec.OnGpu | None) -> bytes:
        if facts is not self._facts[0]:
            self._facts = facts, {name: _codec.encode(value, name) for name, value in facts.items()}
        other, optimizers = self._inventory.other_state(), self._inventory.optimizers
        try:
            parts = {
                **self._facts[1],
                "groups": _codec.join(
                    {key: self._groups[key].encoded(known.param_groups, on_gpu) for key, known in optimizers.items()}
                ),
                "optimizer": _codec.encode(other, "training state['optimizer']", on_gpu) if other else _NOTHING,
                "extra": self._all_of("extra", self._extra, _read_extra, on_gpu),
            }
            for what, objects in self._stateful.items():
                parts[what] = self._all_of(what, objects, _read_stateful, on_gpu)
        except _codec.Unrepresentable as error:
            raise Error(Status.INVALID, str(error)) from None
        if self._generators is not None:
            parts["rng"] = self._generators.encoded()
        return _codec.join(parts)

    @staticmethod
    def _all_of(what: str, objects: Mapping[str, Any], read: Any, on_gpu: _codec.OnGpu | None) -> bytes:
        if not objects:
            return _NOTHING
        return _codec.encode({name: read(item) for name, item in objects.items()}, f"training state[{what!r}]", on_gpu)

    # ---- buffers ----

    def _register(self, engine: Engine, size_bytes: int) -> None:
        """Registers a new buffer of at least `size_bytes`. Spare room makes replacements rare."""
        if self._blob:
            engine.unregister(PYTHON_STATE)
        self._blob = bytearray(-(-size_bytes // _BLOB_STEP_BYTES) * _BLOB_STEP_BYTES)
        engine.register(PYTHON_STATE, self._blob, capture=Capture.SYNCHRONOUS)

    def _fit_gpu_blob(self, engine: Engine, gpu: torch.device | None, needed_bytes: int) -> None:
        old = self._gpu_blob
        if needed_bytes == 0:
            if old is not None:
                engine.unregister(PYTHON_STATE_ON_GPU)
                self._gpu_blob = None
        elif old is None or old.device != gpu or old.numel() < needed_bytes:
            self._register_gpu_blob(engine, gpu, -(-needed_bytes // _BLOB_STEP_BYTES) * _BLOB_STEP_BYTES)

    def _register_gpu_blob(self, engine: Engine, device: torch.device | None, size_bytes: int) -> None:
        if self._gpu_blob is not None:
            engine.unregister(PYTHON_STATE_ON_GPU)
        self._gpu_blob = blob = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        engine.register_pointer(
            PYTHON_STATE_ON_GPU,
            blob.data_ptr(),
            DType.U8,
            blob.shape,
            memory=Memory.DEVICE if blob.is_cuda else Memory.HOST,
            capture=Capture.SYNCHRONOUS,
            owner=blob,
        )


class _Groups:
    """Encodes the parameter groups of an optimizer, and remembers the result while nothing changes."""

    def __init__(self) -> None:
        self._seen: list[Any] | None = None  # keys and values; None: one of the values may change in place
        self._encoded = b""

    def encoded(self, groups: list[dict], on_gpu: _codec.OnGpu | None) -> bytes:
        found = list(itertools.chain.from_iterable(itertools.chain(group, group.values()) for group in groups))
        seen = self._seen
        if seen is not None and len(found) == len(seen) and all(map(operator.is_, found, seen)):
            return self._encoded
        plain = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        self._encoded = _codec.encode(plain, "training state['groups']", on_gpu)
        self._seen = found if all(_is_immutable(v) for group in plain for v in group.values()) else None
        return self._encoded


def _is_immutable(value: Any) -> bool:
    return type(value) in _IMMUTABLE or (type(value) is tuple and all(map(_is_immutable, value)))


def _update_group(group: dict, saved: dict) -> None:
    for key, value in saved.items():
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            group[key].copy_(value)  # schedulers may hold the same object
        else:
            group[key] = value


def _read_stateful(item: Any) -> Any:
    """Returns item.state_dict(). GradScaler's waits for the GPU, so takes its tensors instead."""
    if not isinstance(item, _SCALER) or type(item).state_dict is not _SCALER.state_dict:
        return item.state_dict()
    scale, tracker = item._scale, item._growth_tracker
    if not item.is_enabled() or not isinstance(scale, Tensor) or not isinstance(tracker, Tensor):
        return item.state_dict()
    return {
        "scale": _codec.Number(scale),
        "growth_factor": item.get_growth_factor(),
        "backoff_factor": item.get_backoff_factor(),
        "growth_interval": item.get_growth_interval(),
        "_growth_tracker": _codec.Number(tracker),
    }


def _read_extra(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item
    if isinstance(item, torch.Generator):
        return item.get_state()
    return item.state_dict()


def _write_extra(item: Any, state: Any) -> None:
    if isinstance(item, Tensor):
        with torch.no_grad():
            item.copy_(state)
    elif isinstance(item, torch.Generator):
        item.set_state(state)
    else:
        item.load_state_dict(state)
        item.state_dict()  # makes torchdata's loader draw its random number now, not in the next iter()
