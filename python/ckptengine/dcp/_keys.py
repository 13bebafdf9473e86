"""Maps the names that a Checkpointer stored to keys in a state dict of torch.distributed.checkpoint.

    stored                        key in the state dict
    model.<parameter>             model.<parameter>
    buffer.<buffer>               model.<buffer>
    optim.<key>.<parameter>       optim.state.<parameter>.<key>     as torch's get_optimizer_state_dict() has it
    param.<position>              param.<position>
    tensor.<name>                 tensor.<name>
    Python state                  optim.param_groups, scheduler, scaler, extra, rng

With several models or optimizers, each one's name follows the first word: model.ema.fc.weight,
optim.ema.state.fc.weight.exp_avg. `at` replaces the first word: {"model": "", "optim": "optimizer"} is for a model at
the root of the state dict and optimizer state under "optimizer". Wrappers of torch put words into names (module,
_orig_mod). torch leaves these words out of most state dicts, and so do keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from .._stored import StorageError

KINDS = ("model", "optim", "param", "tensor", "scheduler", "scaler", "extra", "rng")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_DDP = "module"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Members:
    """A placeholder for the names of the parameters in an optimizer's group. `stored`: these names; None if they were
    not stored."""

    stored: list[str] | None

    def of(self, state: Mapping[str, Any], key: str) -> list[str]:
        """Returns the names: the list in the program's flat state dict under `key`, or else the stored ones."""
        if isinstance(state.get(key), list):
            return state[key]
        if self.stored is None:
            raise StorageError(
                f"'{key}', the parameters of a group, is not stored if the optimizer has several groups; load into a "
                "state dict that already has this key, as get_optimizer_state_dict() returns it"
            )
        return self.stored


class Keys:
    """Turns stored names into paths. `state` is the Python state, or None if no Checkpointer made the checkpoint."""

    def __init__(self, state: Mapping[str, Any] | None, at: Mapping[str, str]) -> None:
        unknown = [word for word in at if word not in KINDS]
        if unknown:
            raise ValueError(f"the argument `at` has the unknown key '{unknown[0]}'; it can have {', '.join(KINDS)}")
        self._state = state
        self._at = at
        self._optimizers = [key for key in (state or {}).get("groups", {}) if key]

    def path(self, name: str) -> Path:
        """Returns the path of a stored tensor in the state dict."""
        if self._state is None:
            return (name,)
        kind, _, rest = name.partition(".")
        if kind in ("model", "buffer"):
            return self._moved("model", (plain(rest),))
        if kind == "optim":
            return self._optimizer_path(rest)
        return self._moved(kind, (rest,)) if kind in KINDS else (name,)

    def _optimizer_path(self, rest: str) -> Path:
        key, _, after = rest.partition(".")
        named = (key,) if key in self._optimizers else ()
        state_key, _, parameter = (after if named else rest).partition(".")
        return self._moved("optim", (*named, "state", plain(parameter), unquote(state_key)))

    def python_state(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the state dict of all state that is not in tensors. `names`: the names of the stored tensors."""
        found: dict[str, Any] = {}
        if self._state is None:
            return found
        members = self._members(names)
        for key, groups in self._state.get("groups", {}).items():
            known = members.get(key, []) if len(groups) == 1 else None
            listed = [group | {"params": Members(known)} for group in groups]
            _put(found, self._moved("optim", (*([key] if key else []), "param_groups")), listed)
        for key, states in self._state.get("optimizer", {}).items():
            for parameter, state in states.items():
                for state_key, value in state.items():
                    path = (*([key] if key else []), "state", plain(parameter), state_key)
                    _put(found, self._moved("optim", path), value)
        for kind in ("scheduler", "scaler", "extra"):
            for key, value in self._state.get(kind, {}).items():
                _put(found, self._moved(kind, (key,) if key else ()), value)
        if "rng" in self._state:
            _put(found, self._moved("rng", ()), self._state["rng"])
        return found

    def _members(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Returns the names of the parameters that have optimizer state, by optimizer."""
        found: dict[str, dict[str, None]] = {}
        for name in names:
            if name.startswith("optim."):
                key = name.split(".")[1]
                rest = name.split(".", 2 + (key in self._optimizers))[-1]
                found.setdefault(key if key in self._optimizers else "", {})[plain(rest)] = None
        return {key: list(members) for key, members in found.items()}

    def _moved(self, kind: str, path: Path) -> Path:
        to = self._at.get(kind, kind)
        return (*to.split("."), *path) if to else path


def plain(name: str) -> str:
    """Returns the name without the words of wrappers."""
    words = name.split(".")
    if words[0] == _DDP and len(words) > 1:
        words = words[1:]
    return ".".join(word for word in words if word not in _WRAPPERS)


def plain_key(key: str) -> str:
    """Returns a key of a wrapped module's own state_dict() as it would be without the wrappers."""
    words = key.split(".")
    return ".".join(w for i, w in enumerate(words) if w not in _WRAPPERS and (w != _DDP or i == len(words) - 1))


def _put(tree: dict[str, Any], path: Path, value: Any) -> None:
    for word in path[:-1]:
        tree = tree.setdefault(word, {})
    tree[path[-1]] = value
