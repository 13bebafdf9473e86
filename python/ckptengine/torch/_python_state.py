"""Reads and writes the Python state of a training loop: all that is captured besides registered tensors.

Every snapshot reads it, so it encodes only what may have changed, and never waits for a GPU. Tensors on the GPU that
are part of it (a tensor `lr`, the scale of a GradScaler, `extra`) are copied to a buffer on the GPU, which the engine
captures like any other tensor.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .._abi import Capture, DType, Memory
from .._engine import Engine, Error, Status
from . import _codec, _rng, _structure
from ._inventory import Inventory
from ._module_state import ModuleState
from ._optimizer_protocol import OptimizerProtocol
from ._optimizer_state import of_optimizer, prefix

PYTHON_STATE = "python_state"
PYTHON_STATE_ON_GPU = "python_state.on_gpu"  # only if part of the state is on a GPU
COMMON_STATE = "common_state"  # in the main shard, only if common state is apart
COMMON_STATE_ON_GPU = "common_state.on_gpu"
log = logging.getLogger("ckptengine")

_BLOB_STEP_BYTES = 4096
_NOTHING = _codec.encode({})
_IMMUTABLE = (type(None), bool, int, float, str)
_SCALER: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler  # torch before 2.3


class PythonState:
    """`stateful`: schedulers and scalers, by kind and name. Only the training thread uses it.

    With `splits`, parameter groups, schedulers and scalers are *common* state, which is a tensor of the main shard. So
    they must be equal on all ranks that share the main shard. Everything else is the rank's *own* state, in its private
    shard (docs/jit.md). Without `splits`, everything is own state. `asks_optimizers`: whether the optimizers'
    state_dict() says what their state is."""

    def __init__(
        self,
        inventory: Inventory,
        stateful: Mapping[str, Mapping[str, Any]],
        extra: Mapping[str, Any],
        *,
        rng: bool,
        splits: bool = False,
        asks_optimizers: bool = True,
    ) -> None:
        self._inventory = inventory
        self._stateful = stateful
        self._extra = extra
        self._generators = _rng.Generators() if rng else None
        self._models = {key: ModuleState(prefix("model", key), model) for key, model in inventory.models.items()}
        self._protocols = {
            key: OptimizerProtocol(of_optimizer(key), optimizer, functools.partial(inventory.parameter_names, key))
            for key, optimizer in (inventory.optimizers.items() if asks_optimizers else ())
        }
        self._groups = {key: _Groups(is_sorted=splits) for key in inventory.optimizers}
        self._facts: tuple[dict[str, Any], dict[str, bytes]] = ({}, {})
        self._splits = splits
        self._own = _Blob(PYTHON_STATE, PYTHON_STATE_ON_GPU, Capture.SYNCHRONOUS)
        self._common = _Blob(COMMON_STATE, COMMON_STATE_ON_GPU, Capture.OVERLAPPED)

    def look(self) -> None:
        """Compares what is captured with what models and optimizers show in state_dict(). Call it when the inventory
        has gathered other tensors. Raises Error if something cannot be captured."""
        for protocol in (*self._models.values(), *self._protocols.values()):
            protocol.look(self._inventory.is_captured)

    def check(self) -> None:
        """Raises Error if a part of the state cannot be stored. Warns of tensors that may be state, and are not
        captured."""
        for key, protocol in self._protocols.items():
            for name in protocol.unseen():
                log.warning(
                    "%s has a tensor in its attribute %r, which state_dict() does not show, so it is not captured",
                    of_optimizer(key), name,
                )
        common, own = self._encode_common(None), self._encode_own({}, None)
        if self._splits:
            self._own.size_bytes_min = 2 * len(_codec.join(own))
            self._common.size_bytes_min = 2 * len(_codec.join(common))
        else:
            self._own.size_bytes_min = 2 * len(_codec.join({**own, **common}))

    def capture(self, engine: Engine, gpu: torch.device | None, facts: dict[str, Any]) -> None:
        """Brings the registered buffers up to date, on the current stream of `gpu`, the GPU that has tensors. `facts`:
        more entries. Pass another dict if one of them changes. Raises Error."""
        on_gpu = None if gpu is None else _codec.OnGpu(gpu)
        if self._splits:
            common_on_gpu = None if gpu is None else _codec.OnGpu(gpu)
            self._common.fill(engine, gpu, _codec.join(self._encode_common(common_on_gpu)), common_on_gpu)
            own = self._encode_own(facts, on_gpu)
        else:
            self._common.forget(engine)
            own = {**self._encode_own(facts, on_gpu), **self._encode_common(on_gpu)}
        self._own.fill(engine, gpu, _codec.join(own), on_gpu)

    def capture_own(self, facts: dict[str, Any]) -> bool:
        """Brings the buffer of the own state up to date, for state in host memory. Returns false, and changes nothing,
        if it has no room, or if common state is not apart. Raises Error."""
        return self._splits and self._own.refill(_codec.join(self._encode_own(facts, None)))

    def register_as_stored(self, engine: Engine, gpu: torch.device | None, stored: Mapping[str, dict]) -> None:
        """Registers buffers for the state that restore() will read. `stored`: the layouts of both shards."""
        self._own.register_as_stored(engine, gpu, stored)
        self._common.register_as_stored(engine, gpu, stored)

    def structure(self) -> dict[str, Any]:
        """Returns the structure of the state, as _structure.describe() has it."""
        return _structure.describe(self._inventory, self._stateful, self._extra)

    def restored(self, structure: dict[str, Any] | None, *, adopted: bool) -> dict[str, Any]:
        """Returns the restored state, for put(). It is empty if none was stored. `structure`: that of the checkpoint,
        if it has one. Raises Error if the state does not fit the objects. `adopted`: see put()."""
        if not self._own.data:
            return {}
        state = {**self._own.decoded(), **self._common.decoded()}
        if structure is None:
            _structure.refuse_other_numbers(self._inventory, state["groups"])
        else:
            here = self.structure()
            _structure.refuse_others(here, structure, adopted=adopted)
            for key, options in state["groups"].items():
                found = _structure.sources(key, here, structure, options)
                state["groups"][key] = [{} if source is None else options[source] for source in found]
        return state

    def put(self, state: dict[str, Any], *, adopted: bool) -> None:
        """Gives the objects a state that belongs to them. `adopted`: the state is another rank's. Then keeps this
        rank's generators, because ranks must draw other numbers."""
        if state:
            self._put(state, adopted)

    def read(self) -> bytes:
        """Returns the present state, for write(). Waits for the GPU if a part of the state is there. Raises Error."""
        return _codec.join({**self._encode_own({}, None), **self._encode_common(None)})

    def write(self, data: bytes) -> None:
        self._put(_codec.decode(data), adopted=False)

    def _put(self, state: dict[str, Any], adopted: bool) -> None:
        self._put_optimizers(state)
        options = [(group, set(group)) for o in self._inventory.optimizers.values() for group in o.param_groups]
        self.look()
        is_captured = self._inventory.is_captured
        for key, model in self._models.items():
            model.load(state.get("model", {}).get(key, {}), is_captured)
        for key, protocol in self._protocols.items():
            protocol.load(state.get("shown", {}).get(key, {}), is_captured)
        for what, objects in self._stateful.items():
            for name, item in objects.items():
                item.load_state_dict(state[what][name])
        simple = {name: item for name, item in self._extra.items() if isinstance(item, (Tensor, torch.Generator))}
        for name, item in self._extra.items():
            if name not in simple and name in state["extra"]:
                item.load_state_dict(state["extra"][name])
                item.state_dict()  # makes torchdata's loader draw its random number now, not in the next iter()
        # What these objects wrote into optimizers, tensors and generators while they loaded is not what was captured.
        for group, known in options:
            for option in group.keys() - known:
                del group[option]
        self._put_optimizers(state)
        for name, item in simple.items():
            if name in state["extra"] and not (adopted and isinstance(item, torch.Generator)):
                _write_simple(item, state["extra"][name])
        if self._generators is not None and "rng" in state and not adopted:
            _rng.write(state["rng"])

    def _put_optimizers(self, state: dict[str, Any]) -> None:
        for key, groups in state["groups"].items():
            for group, saved in zip(self._inventory.optimizers[key].param_groups, groups, strict=True):
                _update_group(group, saved)
        self._inventory.put_other_state(state["optimizer"])
        self._inventory.put_keyed_state(state.get("keyed", {}))

    # ---- encoding ----

    def _encode_own(self, facts: dict[str, Any], on_gpu: _codec.OnGpu | None) -> dict[str, bytes]:
        if facts is not self._facts[0]:
            self._facts = facts, {name: _codec.encode(value, name) for name, value in facts.items()}
        with _told():
            parts = {**self._facts[1], "extra": _all_of("extra", self._extra, _read_extra, on_gpu)}
            models = {key: model.read(self._inventory.is_captured) for key, model in self._models.items()}
            if any(models.values()):
                parts["model"] = _codec.encode(models, "training state['model']", on_gpu)
        if self._generators is not None:
            parts["rng"] = self._generators.encoded()
        return parts

    def _encode_common(self, on_gpu: _codec.OnGpu | None) -> dict[str, bytes]:
        other, optimizers = self._inventory.other_state(), self._inventory.optimizers
        with _told():
            parts = {
                "groups": _codec.join(
                    {key: self._groups[key].encoded(known.param_groups, on_gpu) for key, known in optimizers.items()}
                ),
                "optimizer": _codec.encode(other, "training state['optimizer']", on_gpu) if other else _NOTHING,
            }
            shown = {key: protocol.read(self._inventory.is_captured) for key, protocol in self._protocols.items()}
            for what, found in (("keyed", self._inventory.keyed_state()), ("shown", shown)):
                if any(found.values()):
                    parts[what] = _codec.encode(found, f"training state[{what!r}]", on_gpu)
            read = _read_sorted if self._splits else _read_stateful
            for what, objects in self._stateful.items():
                parts[what] = _all_of(what, objects, read, on_gpu)
        return parts


@contextlib.contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except _codec.Unrepresentable as error:
        raise Error(Status.INVALID, str(error)) from None


def _all_of(what: str, objects: Mapping[str, Any], read: Any, on_gpu: _codec.OnGpu | None) -> bytes:
    if not objects:
        return _NOTHING
    return _codec.encode({name: read(item) for name, item in objects.items()}, f"training state[{what!r}]", on_gpu)


class _Blob:
    """Encoded state in a registered buffer, and in a second one on the GPU if part of it is there. Spare room makes
    replacements rare."""

    def __init__(self, name: str, gpu_name: str, capture: Capture) -> None:
        self._name, self._gpu_name, self._capture = name, gpu_name, capture
        self.size_bytes_min = 0
        self.data = bytearray()  # registered
        self._used_bytes = 0
        self._on_gpu: Tensor | None = None  # registered, in memory of any kind

    def fill(self, engine: Engine, gpu: torch.device | None, data: bytes, on_gpu: _codec.OnGpu | None) -> None:
        if not self.refill(data):
            self._register(engine, max(self.size_bytes_min, len(data) + len(data) // 2))
            self.refill(data)
        self._fit_gpu(engine, gpu, 0 if on_gpu is None else on_gpu.size_bytes)
        if on_gpu is not None and self._on_gpu is not None:
            on_gpu.copy_to(self._on_gpu)

    def refill(self, data: bytes) -> bool:
        """Returns false if there is no room. Zeros follow the data, so equal data make equal buffers."""
        if len(data) > len(self.data):
            return False
        self.data[: len(data)] = data
        self.data[len(data) : self._used_bytes] = bytes(max(0, self._used_bytes - len(data)))
        self._used_bytes = len(data)
        return True

    def forget(self, engine: Engine) -> None:
        if self.data:
            engine.unregister(self._name)
            self.data = bytearray()
        self._fit_gpu(engine, None, 0)

    def register_as_stored(self, engine: Engine, gpu: torch.device | None, stored: Mapping[str, dict]) -> None:
        if self._name not in stored:
            self.forget(engine)
        elif len(self.data) != stored[self._name]["shape"][0]:  # else a rank that has rejoined may keep it
            self._register(engine, stored[self._name]["shape"][0])
        self._used_bytes = len(self.data)
        if self._gpu_name in stored:
            self._register_gpu(engine, gpu or torch.device("cpu"), stored[self._gpu_name]["shape"][0])

    def decoded(self) -> dict[str, Any]:
        gpu_bytes = b"" if self._on_gpu is None else _codec._tensor_bytes(self._on_gpu.cpu())
        return _codec.decode(self.data, gpu_bytes) if self.data else {}

    def _register(self, engine: Engine, size_bytes: int) -> None:
        if self.data:
            engine.unregister(self._name)
        self.data = bytearray(-(-size_bytes // _BLOB_STEP_BYTES) * _BLOB_STEP_BYTES)
        self._used_bytes = 0
        engine.register(self._name, self.data, capture=self._capture)

    def _fit_gpu(self, engine: Engine, gpu: torch.device | None, needed_bytes: int) -> None:
        old = self._on_gpu
        if needed_bytes == 0:
            if old is not None:
                engine.unregister(self._gpu_name)
                self._on_gpu = None
        elif old is None or old.device != gpu or old.numel() < needed_bytes:
            self._register_gpu(engine, gpu, -(-needed_bytes // _BLOB_STEP_BYTES) * _BLOB_STEP_BYTES)

    def _register_gpu(self, engine: Engine, device: torch.device | None, size_bytes: int) -> None:
        if self._on_gpu is not None:
            engine.unregister(self._gpu_name)
        self._on_gpu = blob = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        engine.register_pointer(
            self._gpu_name,
            blob.data_ptr(),
            DType.U8,
            blob.shape,
            memory=Memory.DEVICE if blob.is_cuda else Memory.HOST,
            capture=self._capture,
            owner=blob,
        )


class _Groups:
    """Encodes the parameter groups of an optimizer, and remembers the result while nothing changes."""

    def __init__(self, *, is_sorted: bool) -> None:
        self._is_sorted = is_sorted
        self._seen: list[Any] | None = None  # keys and values; None: one of the values may change in place
        self._encoded = b""

    def encoded(self, groups: list[dict], on_gpu: _codec.OnGpu | None) -> bytes:
        found = list(itertools.chain.from_iterable(itertools.chain(group, group.values()) for group in groups))
        seen = self._seen
        if seen is not None and len(found) == len(seen) and all(map(operator.is_, found, seen)):
            return self._encoded
        plain = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        if self._is_sorted:
            plain = sorted_by_key(plain)
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
    """Returns item.state_dict(). A GradScaler's state_dict() waits for the GPU, so this takes its tensors instead."""
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


def _read_sorted(item: Any) -> Any:
    return sorted_by_key(_read_stateful(item))


def sorted_by_key(value: Any) -> Any:
    """Sorts dicts by key. So equal state is equal bytes on all ranks, even if attributes were set in another order."""
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: sorted_by_key(value[key]) for key in sorted(value)}
    return [sorted_by_key(item) for item in value] if type(value) is list else value


def _read_extra(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item
    if isinstance(item, torch.Generator):
        return item.get_state()
    return item.state_dict()


def _write_simple(item: Tensor | torch.Generator, state: Tensor) -> None:
    if isinstance(item, torch.Generator):
        item.set_state(state)
    else:
        with torch.no_grad():
            item.copy_(state)
