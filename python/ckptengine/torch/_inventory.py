"""Finds the tensors of the training state and names them.

    model.<parameter>          parameters                                   overlapped
    optim.<key>.<parameter>    optimizer state: optim.exp_avg.fc.weight     overlapped
    param.group<g>:<i>         parameters that only the optimizer knows     overlapped
    tensor.<name>              tensors given by the caller                  overlapped
    buffer.<buffer>            persistent module buffers                    synchronous: the forward pass changes them

Several models or optimizers have their names in between: model.ema.fc.weight. A tensor that appears twice (tied
weights) is captured once, under its first name.

gather() looks at the real objects each time, so it sees state that was created late, replaced or moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn

from .._abi import Capture
from .._engine import Error, Status
from ._memory import create_as_stored, split_name


class Inventory:
    def __init__(self, models: Mapping[str, nn.Module], optimizers: Mapping[str, Any], tensors: Mapping[str, Tensor]):
        self.models = models
        self.optimizers = optimizers
        self.tensors = tensors
        self._find_modules()

    def _find_modules(self) -> None:
        """Remembers the dicts in which modules keep their members, to compare members without walking the tree."""
        modules = list({id(m): m for model in self.models.values() for m in model.modules()}.values())
        self._children = [m._modules for m in modules]
        self._members = [d for m in modules for d in (m._parameters, m._buffers)]

    def identities(self) -> tuple[list[int], ...]:
        """Returns identities, addresses and lengths of all tensors. If they are equal at two calls, no tensor was
        replaced or moved. Every snapshot calls it, so it is cheap (some 150 ns per tensor)."""
        found: list[Any] = [member for members in self._members for member in members.values()]
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                found += group["params"]
            for state in optimizer.state.values():
                found += state.values()
        found += self.tensors.values()
        tensors = [value for value in found if isinstance(value, Tensor)]
        children = [child for members in self._children for child in members.values()]
        return (
            list(map(id, children)),
            list(map(id, tensors)),
            list(map(Tensor.data_ptr, tensors)),
            list(map(Tensor.numel, tensors)),
        )

    def gather(self) -> Iterator[tuple[str, Tensor, Capture]]:
        """Yields every tensor once, with its name. The order is the same in every run of the program."""
        self._find_modules()
        seen: set[tuple] = set()
        for name, tensor, capture in self._all():
            identity = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, capture)
            if tensor.numel() == 0:
                identity = (name,)
            if identity not in seen:
                seen.add(identity)
                yield name, tensor, capture

    def _all(self) -> Iterator[tuple[str, Tensor, Capture]]:
        for key, model in self.models.items():
            for name, parameter in model.named_parameters(_prefix("model", key)):
                yield name, parameter, Capture.OVERLAPPED
        for key, optimizer in self.optimizers.items():
            known = self._model_names()
            names = self.parameter_names(key)
            for parameter, name in names.items():
                if parameter not in known:
                    yield f"{_prefix('param', key)}.{name}", parameter, Capture.OVERLAPPED
            for parameter, state in optimizer.state.items():
                for state_key, value in state.items():
                    if parameter in names and _is_own_tensor(state_key, value):
                        yield self._state_name(key, state_key, names[parameter]), value, Capture.OVERLAPPED
        for name, tensor in self.tensors.items():
            yield f"tensor.{name}", tensor, Capture.OVERLAPPED
        for key, model in self.models.items():
            transient = _transient_buffers(model)
            for name, buffer in model.named_buffers(_prefix("buffer", key)):
                if id(buffer) not in transient:
                    yield name, buffer, Capture.SYNCHRONOUS

    def parameter_names(self, key: str) -> dict[Tensor, str]:
        """Maps the parameters of an optimizer to the names that the models give them, or else to their positions."""
        known = self._model_names()
        return {
            parameter: known.get(parameter, f"group{g}:{i}")
            for g, group in enumerate(self.optimizers[key].param_groups)
            for i, parameter in enumerate(group["params"])
        }

    def _model_names(self) -> dict[Tensor, str]:
        named = (model.named_parameters(key) for key, model in self.models.items())
        return {parameter: name for pairs in named for name, parameter in pairs}

    def _state_name(self, key: str, state_key: str, parameter: str) -> str:
        return f"{_prefix('optim', key)}.{quote(state_key, safe='').replace('.', '%2E')}.{parameter}"

    def other_state(self) -> dict[str, dict[str, dict]]:
        """Returns what optimizers keep per parameter besides tensors, by optimizer, parameter and key."""
        found: dict[str, dict[str, dict]] = {}
        for key, optimizer in self.optimizers.items():
            if all(_is_own_tensor(k, v) for state in optimizer.state.values() for k, v in state.items()):
                continue
            names = self.parameter_names(key)
            found[key] = {
                names[parameter]: {k: v for k, v in state.items() if not _is_own_tensor(k, v)}
                for parameter, state in optimizer.state.items()
                if parameter in names
            }
        return found

    def put_other_state(self, found: dict[str, dict[str, dict]]) -> None:
        for key, states in found.items():
            by_name = {name: parameter for parameter, name in self.parameter_names(key).items()}
            for name, state in states.items():
                self.optimizers[key].state[by_name[name]].update(state)

    def create_missing_state(self, stored_main: Mapping[str, dict]) -> None:
        """Creates optimizer state that is stored but does not exist yet, e.g. Adam's moments before its first step."""
        for key, optimizer in self.optimizers.items():
            stored = self._stored_state(key, stored_main)
            for parameter, name in self.parameter_names(key).items():
                for state_key, stored_name in stored.get(name, {}).items():
                    if state_key not in optimizer.state[parameter]:
                        entry = stored_main[stored_name]
                        device = _device_of_state(optimizer, parameter, state_key, entry["shape"])
                        optimizer.state[parameter][state_key] = create_as_stored(stored_name, entry, device)

    def _stored_state(self, key: str, stored_main: Mapping[str, dict]) -> dict[str, dict[str, str]]:
        """Returns the stored names of an optimizer's state, by parameter and key."""
        prefix = _prefix("optim", key) + "."
        found: dict[str, dict[str, str]] = {}
        for stored_name in stored_main:
            name = split_name(stored_name)[0]
            if name.startswith(prefix):
                state_key, _, parameter = name[len(prefix) :].partition(".")
                found.setdefault(parameter, {})[unquote(state_key)] = stored_name
        return found


def _is_own_tensor(key: Any, value: Any) -> bool:
    """Whether an entry of optimizer state is registered by itself. All else is part of the Python state."""
    return isinstance(value, Tensor) and isinstance(key, str)


def _prefix(kind: str, key: str) -> str:
    return f"{kind}.{key}" if key else kind


def _transient_buffers(model: nn.Module) -> set[int]:
    """Identities of the buffers that are not in the module's state_dict."""
    return {id(m._buffers[name]) for m in model.modules() for name in m._non_persistent_buffers_set}


def _device_of_state(optimizer: Any, parameter: Tensor, state_key: str, shape: list[int]) -> torch.device:
    """Where the optimizer would have created this state. torch keeps step counters on the CPU unless a kernel reads
    them."""
    group = next(g for g in optimizer.param_groups if any(p is parameter for p in g["params"]))
    on_device = group.get("capturable") or group.get("fused")
    return torch.device("cpu") if state_key == "step" and not shape and not on_device else parameter.device


def named(what: str, value: Any) -> dict[str, Any]:
    """Returns one object, a sequence or a dict as a dict. A single object has the empty name."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str) or not key or "." in key]
        if bad:
            raise Error(Status.INVALID, f"{what} has the name {bad[0]!r}: names are non-empty strings without a dot")
        return dict(value)
    if isinstance(value, (list, tuple)):
        return {str(i): item for i, item in enumerate(value)}
    return {"": value}
