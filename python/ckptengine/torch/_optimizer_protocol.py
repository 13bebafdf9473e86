"""Reads and loads what an optimizer shows in state_dict() besides its parameter groups and the state of parameters.

torch's optimizers show these two alone, and their load_state_dict() only copies them. An optimizer *speaks for itself*
if its class overrides these methods or __setstate__(), or if it has hooks. A snapshot asks it only if it had something
to add when it was looked at. A restore calls its load_state_dict(), once tensors and groups are restored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from .._engine import Error, Status
from ._speaks import is_of, is_overridden

_TO_LOAD = ("load_state_dict", "__setstate__")
_HOOKS_TO_LOAD = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks", *_HOOKS_TO_LOAD)
_OF_TORCH = ("torch.optim.", "builtins")
_DISTRIBUTED = ("ZeroRedundancyOptimizer",)  # its state_dict() gathers the state of all ranks

IsCaptured = Callable[[Tensor], bool]


class OptimizerProtocol:
    """The protocol of one optimizer. `what` names the optimizer in errors. `names` returns its parameters' names."""

    def __init__(self, what: str, optimizer: Any, names: Callable[[], dict[Tensor, str]]) -> None:
        self._what = what
        self._optimizer = optimizer
        self._names = names
        self._adds = False  # whether state_dict() showed more when look() looked

    @property
    def speaks(self) -> bool:
        optimizer = self._optimizer
        if type(optimizer).__name__ in _DISTRIBUTED or not hasattr(optimizer, "state_dict"):
            return False
        return _is_overridden(optimizer, ("state_dict", *_TO_LOAD), _HOOKS)

    def look(self, is_captured: IsCaptured) -> None:
        """Finds out whether the optimizer adds something. Call it at first and when its state has other members."""
        self._adds = False
        more = self._more(is_captured) if self.speaks else {}
        dropped = sorted(key for key in more if key != "state")
        if dropped and not _is_overridden(self._optimizer, _TO_LOAD, _HOOKS_TO_LOAD):
            raise Error(
                Status.INVALID,
                f"state_dict() of {self._what} shows {dropped[0]!r}, but its load_state_dict() is torch's and drops "
                "it; override load_state_dict(), too",
            )
        self._adds = bool(more)

    def unseen(self) -> list[str]:
        """Returns the names of attributes that are tensors which state_dict() does not show."""
        attributes = getattr(self._optimizer, "__dict__", {})
        tensors = {name: value for name, value in attributes.items() if isinstance(value, Tensor)}
        if not tensors:
            return []
        shown = {id(value) for value in self._shown().values()} if self.speaks else set()
        return [name for name, value in tensors.items() if id(value) not in shown]

    def read(self, is_captured: IsCaptured) -> dict[str, Any]:
        """Returns what state_dict() shows besides parameter groups and captured state: entries by key, and within
        "state" by parameter."""
        return self._more(is_captured) if self._adds else {}

    def load(self, stored: dict[str, Any], is_captured: IsCaptured) -> None:
        """Calls load_state_dict() with the groups and state that are restored already, and with what read() returned
        when they were captured. The captured state and the groups stay the objects that they are. Does nothing for an
        optimizer of torch."""
        if not stored and not self.speaks:
            return
        groups = [(group, dict(group)) for group in self._optimizer.param_groups]
        states = {key: dict(state) for key, state in self._optimizer.state.items() if isinstance(state, dict)}
        try:
            self._optimizer.load_state_dict(self._merged(stored, is_captured))
        except Exception as error:
            raise Error(Status.MISMATCH, f"load_state_dict() of {self._what} failed: {error}") from error
        _put_back_groups(self._optimizer, groups)
        for key, state in states.items():
            self._optimizer.state[key].update(state)

    def _merged(self, stored: dict[str, Any], is_captured: IsCaptured) -> dict[str, Any]:
        shown, more = self._shown(), self._more(is_captured)
        merged = {key: value for key, value in shown.items() if key not in more or key in ("state", "param_groups")}
        of_parameters = stored.get("state", {})
        indices = self._indices(shown)
        merged["state"] = {
            key: {**state, **of_parameters.get(indices.get(key), {})} if isinstance(state, dict) else state
            for key, state in shown["state"].items()
        }
        return merged | {key: value for key, value in stored.items() if key != "state"}

    def _shown(self) -> dict[str, Any]:
        try:
            shown = self._optimizer.state_dict()
            shown["state"], shown["param_groups"]
        except Exception as error:
            kind = type(self._optimizer).__name__
            raise Error(
                Status.INVALID,
                f"state_dict() of {self._what}, a {kind}, failed ({type(error).__name__}: {error}), so nothing proves "
                "that all of its state is captured; give the optimizers in it instead, or correct it",
            ) from error
        return shown

    def _more(self, is_captured: IsCaptured) -> dict[str, Any]:
        shown = self._shown()
        found = {key: value for key, value in shown.items() if key not in ("state", "param_groups")}
        self._refuse_other_options(shown["param_groups"])
        own = {name: self._optimizer.state.get(parameter, {}) for parameter, name in self._names().items()}
        states: dict[str, dict] = {}
        for key, name in self._indices(shown).items():
            state = shown["state"].get(key, {})
            if state is own[name]:
                continue
            for k, value in state.items():
                is_known = k in own[name] and own[name][k] is value
                if not is_known and not (isinstance(value, Tensor) and is_captured(value)):
                    states.setdefault(name, {})[k] = value
        return found | ({"state": states} if states else {})

    def _indices(self, shown: dict[str, Any]) -> dict[Any, str]:
        """Returns the names of parameters by the keys that state_dict() gives to them."""
        names, found = self._names(), {}
        for group, packed in zip(self._optimizer.param_groups, shown["param_groups"], strict=False):
            found |= dict(zip(packed.get("params", ()), (names[p] for p in group["params"]), strict=False))
        return found

    def _refuse_other_options(self, shown: list[dict]) -> None:
        for number, (group, packed) in enumerate(zip(self._optimizer.param_groups, shown, strict=False)):
            for option in packed:
                if option not in group:
                    raise Error(
                        Status.INVALID,
                        f"state_dict() of {self._what} shows the option {option!r} of parameter group {number}, which "
                        "param_groups does not have, so it would not be captured; let the optimizer keep it in "
                        "param_groups, or show it outside of them",
                    )


def hooks_of_optimizers(optimizers: Iterable[Any], kinds: tuple[str, ...] = _HOOKS) -> list[dict]:
    """Returns the dicts in which optimizers keep the hooks of their protocol."""
    return [getattr(optimizer, kind) for optimizer in optimizers for kind in kinds if hasattr(optimizer, kind)]


def _is_overridden(optimizer: Any, methods: tuple[str, ...], hooks: tuple[str, ...]) -> bool:
    """Whether code that is not torch's takes part in one of these methods."""
    found = (hook for of_kind in hooks_of_optimizers([optimizer], hooks) for hook in of_kind.values())
    return any(is_overridden(optimizer, method, _OF_TORCH) for method in methods) or any(
        not is_of(hook, _OF_TORCH) for hook in found
    )


def _put_back_groups(optimizer: Any, before: list[tuple[dict, dict]]) -> None:
    """Puts the dicts of the groups back, which schedulers may hold, with the values that they had. Options that
    load_state_dict() has added stay."""
    groups = optimizer.param_groups
    for number, (group, values) in enumerate(before):
        added = groups[number]
        if added is not group:
            group.update({key: value for key, value in added.items() if key not in values})
            groups[number] = group
        group.update(values)
