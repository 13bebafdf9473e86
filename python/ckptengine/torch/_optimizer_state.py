"""Names the state of optimizers, and creates state that a fresh optimizer lacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import Tensor

from .._engine import Error, Status
from ._memory import create_as_stored, split_name
from ._split import split_of


class OptimizerState:
    """The part of the inventory that concerns optimizers. `optimizers`: by name."""

    def __init__(self, optimizers: Mapping[str, Any]) -> None:
        self.optimizers = optimizers
        self._all_are_tensors = False  # all of their state, when look_at_states() looked

    def _model_names(self) -> dict[Tensor, str]:
        """Maps the parameters of the models to their names."""
        raise NotImplementedError

    def parameter_names(self, key: str) -> dict[Tensor, str]:
        """Maps the parameters of an optimizer to the names that the models give them, or else to their positions."""
        known = self._model_names()
        return {
            parameter: known.get(parameter, f"group{g}:{i}")
            for g, group in enumerate(self.optimizers[key].param_groups)
            for i, parameter in enumerate(group["params"])
        }

    def captured_names(self, key: str) -> dict[Tensor, str]:
        """Maps the parameters of an optimizer to the names under which they are captured."""
        known = self._model_names()
        return {
            parameter: f"model.{name}" if parameter in known else f"{prefix('param', key)}.{name}"
            for parameter, name in self.parameter_names(key).items()
        }

    def state_name(self, key: str, state_key: str, parameter: str) -> str:
        return f"{prefix('optim', key)}.{quote(state_key, safe='').replace('.', '%2E')}.{parameter}"

    # ---- state that is no tensor ----

    def look_at_states(self) -> None:
        """Finds out which state is no tensor. Raises Error for state of a tensor that is no parameter."""
        self._all_are_tensors = True
        for key, optimizer in self.optimizers.items():
            parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
            for owner, state in optimizer.state.items():
                if isinstance(owner, Tensor) and id(owner) not in parameters:
                    raise Error(
                        Status.INVALID,
                        f"{of_optimizer(key)} has state for a tensor of shape {list(owner.shape)} that is in none of "
                        "its parameter groups, so the state has no name; add the tensor to a group, or remove the "
                        "state",
                    )
                is_of_tensors = isinstance(owner, Tensor) and all(is_own_tensor(k, v) for k, v in state.items())
                self._all_are_tensors = self._all_are_tensors and is_of_tensors

    def other_state(self) -> dict[str, dict[str, dict]]:
        """Returns what optimizers keep per parameter besides tensors, by optimizer, parameter and key."""
        found: dict[str, dict[str, dict]] = {}
        if self._all_are_tensors:
            return found
        for key, optimizer in self.optimizers.items():
            states = [(owner, state) for owner, state in optimizer.state.items() if isinstance(owner, Tensor)]
            if all(is_own_tensor(k, v) for _, state in states for k, v in state.items()):
                continue
            names = self.parameter_names(key)
            found[key] = {
                names[parameter]: {k: v for k, v in state.items() if not is_own_tensor(k, v)}
                for parameter, state in states
            }
        return found

    def put_other_state(self, found: Mapping[str, Mapping[str, dict]]) -> None:
        for key, states in found.items():
            by_name = {name: parameter for parameter, name in self.parameter_names(key).items()}
            for name, state in states.items():
                self.optimizers[key].state[by_name[name]].update(state)

    def keyed_state(self) -> dict[str, dict]:
        """Returns state of optimizers that belongs to no parameter, by optimizer and key."""
        if self._all_are_tensors:
            return {}
        found = {
            key: {owner: state for owner, state in optimizer.state.items() if not isinstance(owner, Tensor)}
            for key, optimizer in self.optimizers.items()
        }
        return {key: states for key, states in found.items() if states}

    def put_keyed_state(self, found: Mapping[str, Mapping]) -> None:
        for key, states in found.items():
            self.optimizers[key].state.update(states)

    # ---- state that is not there yet ----

    def create_missing_state(self, stored_main: Mapping[str, dict]) -> None:
        """Creates optimizer state that is stored but does not exist yet, e.g. Adam's moments before its first step."""
        for key, _, parameter, state_key, stored_name in self._missing(stored_main):
            entry = stored_main[stored_name]
            device = self._device(key, parameter, state_key, entry["shape"])
            self.optimizers[key].state[parameter][state_key] = create_as_stored(stored_name, entry, device)

    def create_resized_state(self, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Creates optimizer state that does not exist yet, for a checkpoint whose tensors were split otherwise.
        `stored` has the whole shape and the type of each tensor, by name. State of a parameter's shape is split like
        the parameter."""
        for key, name, parameter, state_key, stored_name in self._missing(stored):
            split = split_of(name, parameter)
            shape, dtype = stored[stored_name]
            if shape == (tuple(parameter.shape) if split is None else split.shape):
                created = torch.zeros_like(parameter.detach(), dtype=dtype)
            else:
                created = torch.zeros(shape, dtype=dtype, device=self._device(key, parameter, state_key, list(shape)))
            self.optimizers[key].state[parameter][state_key] = created

    def _missing(self, stored: Mapping[str, Any]) -> Iterator[tuple[str, str, Tensor, str, str]]:
        """Yields what is stored but does not exist: optimizer, parameter's name, parameter, key and stored name."""
        for key, optimizer in self.optimizers.items():
            names = self._stored_state(key, stored)
            for parameter, name in self.parameter_names(key).items():
                for state_key, stored_name in names.get(name, {}).items():
                    if state_key not in optimizer.state[parameter]:
                        yield key, name, parameter, state_key, stored_name

    def _stored_state(self, key: str, stored_main: Iterable[str]) -> dict[str, dict[str, str]]:
        """Returns the stored names of an optimizer's state, by parameter and key."""
        begin = prefix("optim", key) + "."
        found: dict[str, dict[str, str]] = {}
        for stored_name in stored_main:
            if stored_name.startswith(begin):
                state_key, _, parameter = split_name(stored_name)[0][len(begin) :].partition(".")
                found.setdefault(parameter, {})[unquote(state_key)] = stored_name
        return found

    def _device(self, key: str, parameter: Tensor, state_key: str, shape: list[int]) -> torch.device:
        """Returns the device on which the optimizer would have created this state. torch keeps step counters on the CPU
        unless a GPU kernel reads them."""
        if state_key != "step" or shape or parameter.device.type == "cpu":
            return parameter.device
        groups = self.optimizers[key].param_groups
        group = next(group for group in groups if any(p is parameter for p in group["params"]))
        return parameter.device if group.get("capturable") or group.get("fused") else torch.device("cpu")


def is_own_tensor(key: Any, value: Any) -> bool:
    """Whether an entry of optimizer state is registered by itself. All else is part of the Python state."""
    return isinstance(value, Tensor) and isinstance(key, str)


def prefix(kind: str, key: str) -> str:
    return f"{kind}.{key}" if key else kind


def of_optimizer(key: str) -> str:
    return f"optimizer '{key}'" if key else "the optimizer"
