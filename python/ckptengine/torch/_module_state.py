"""Reads and loads what modules keep besides parameters and persistent buffers.

The modules say it themselves: it is what state_dict() shows and load_state_dict() takes. Most modules show parameters
and persistent buffers alone. A module *speaks for itself* if its class or a hook shows more, or does more than copy:
extra state, overridden methods, hooks, packed weights. A snapshot asks only these modules. A restore calls
load_state_dict() of the whole model if any module speaks for itself, once the captured tensors are restored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from .._engine import Error, Status
from ._speaks import is_of, is_overridden
from ._split import is_dtensor

EXTRA_STATE = "_extra_state"  # torch's key
_HOOKS_TO_SHOW = ("_state_dict_hooks", "_state_dict_pre_hooks")
_HOOKS_TO_LOAD = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
_HOOKS = (*_HOOKS_TO_SHOW, *_HOOKS_TO_LOAD)
_TO_LOAD = ("load_state_dict", "_load_from_state_dict", "set_extra_state")
_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state", *_TO_LOAD)
# Code of torch that only renames, gathers or checks versions.
_OF_TORCH = ("torch.nn.", "torch.distributed.")

IsCaptured = Callable[[Tensor], bool]


class ModuleState:
    """The state of one model. `what` names the model in errors."""

    def __init__(self, what: str, model: nn.Module) -> None:
        self._what = what
        self._model = model
        self._sources: list[_Source] = []
        self._speaks = False

    def look(self, is_captured: IsCaptured) -> None:
        """Finds the modules that speak for themselves. Compares what is captured with all that state_dict() shows.
        Call it when modules, hooks or tensors may be others."""
        self._sources = list(_sources(self._model, ""))
        self._speaks = any(map(_speaks, self._model.modules()))
        if any(map(_is_flattened, self._model.modules())):
            return  # FSDP1's state_dict() gathers the whole parameters; this rank's parts are captured
        known = set(self._shown())
        self._refuse_what_nobody_loads(is_captured)
        for name, value in _Source(self._model, "", "state_dict").shown().items():
            if name not in known and not _is_tensor(value, is_captured):
                self._sources, self._speaks = [_Source(self._model, "", "state_dict")], True
                return

    def read(self, is_captured: IsCaptured) -> dict[str, Any]:
        """Returns what state_dict() shows besides captured tensors, by key."""
        return {name: value for name, value in self._shown().items() if not _is_tensor(value, is_captured)}

    def load(self, stored: dict[str, Any], is_captured: IsCaptured) -> None:
        """Calls load_state_dict() with the captured tensors, which are restored already, and with what read() returned
        when they were captured. Does nothing if no module speaks for itself."""
        if not stored and not self._speaks:
            return
        shown = self._model.state_dict()
        state: OrderedDict[str, Any] = OrderedDict()
        for name, value in shown.items():
            if name in stored:
                state[name] = stored[name]
            elif _is_tensor(value, is_captured):
                state[name] = _copied(value)
        state.update(stored)
        if hasattr(shown, "_metadata"):
            state._metadata = shown._metadata  # type: ignore[attr-defined]
        try:
            self._model.load_state_dict(state)
        except Exception as error:
            raise Error(Status.MISMATCH, f"load_state_dict() of {self._what} failed: {error}") from error

    def _refuse_what_nobody_loads(self, is_captured: IsCaptured) -> None:
        for source in self._sources:
            more = [name for name, value in source.shown().items() if not _is_tensor(value, is_captured)]
            if more and not any(map(_loads, source.module.modules())) and not _loads(self._model):
                raise Error(
                    Status.INVALID,
                    f"state_dict() of {self._what} shows '{more[0]}', but its load_state_dict() is torch's and does "
                    f"not know it; let {type(source.module).__name__} load it, too, for example in set_extra_state()",
                )

    def _shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for source in self._sources:
            shown |= source.shown()
        return shown


class _Source(NamedTuple):
    """A part of state_dict(), and the method of a module that shows it."""

    module: nn.Module
    prefix: str
    method: str

    def shown(self) -> dict[str, Any]:
        shown: OrderedDict[str, Any] = OrderedDict()
        shown._metadata = OrderedDict()  # type: ignore[attr-defined]
        if self.method == "get_extra_state":
            shown[self.prefix + EXTRA_STATE] = self.module.get_extra_state()
        elif self.method == "_save_to_state_dict":
            self.module._save_to_state_dict(shown, self.prefix, False)
        elif not self.prefix:
            return self.module.state_dict()  # the model's own may take no arguments
        else:
            shown = self.module.state_dict(destination=shown, prefix=self.prefix, keep_vars=False) or shown
        return shown


def hooks_of_modules(modules: Iterable[nn.Module]) -> list[dict]:
    """Returns the dicts in which modules keep the hooks of their protocol."""
    return [getattr(module, kind) for module in modules for kind in _HOOKS if hasattr(module, kind)]


def _sources(module: nn.Module, prefix: str) -> Iterator[_Source]:
    """Yields the smallest parts of state_dict() that may show more than parameters and persistent buffers."""
    if _is_overridden(module, "state_dict") or _has_hooks(module, _HOOKS_TO_SHOW):
        yield _Source(module, prefix, "state_dict")
        return
    for method in ("_save_to_state_dict", "get_extra_state"):
        if _is_overridden(module, method):
            yield _Source(module, prefix, method)
            break
    for name, child in module._modules.items():
        if child is not None:
            yield from _sources(child, f"{prefix}{name}.")


def _speaks(module: nn.Module) -> bool:
    return _has_hooks(module, _HOOKS) or any(_is_overridden(module, method) for method in _METHODS)


def _loads(module: nn.Module) -> bool:
    return _has_hooks(module, _HOOKS_TO_LOAD) or any(_is_overridden(module, method) for method in _TO_LOAD)


def _is_overridden(module: nn.Module, method: str) -> bool:
    return is_overridden(module, method, _OF_TORCH)


def _has_hooks(module: nn.Module, kinds: tuple[str, ...]) -> bool:
    hooks = (hook for kind in kinds for hook in getattr(module, kind, {}).values())
    return any(not is_of(hook, _OF_TORCH) for hook in hooks)


def _is_flattened(module: nn.Module) -> bool:
    return type(module).__name__ == "FullyShardedDataParallel"


def _is_tensor(value: Any, is_captured: IsCaptured) -> bool:
    return isinstance(value, Tensor) and is_captured(value)


def _copied(tensor: Tensor) -> Tensor:
    """Returns a copy, as if it had been read from a file. A hook may change it, or write to the original first."""
    copy = tensor.detach()
    return copy.clone() if is_dtensor(copy) or not copy.is_cuda else copy.cpu()
