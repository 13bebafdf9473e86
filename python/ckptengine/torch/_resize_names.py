"""Finds stored tensors by the names that they have in this job, where wrappers have put other words into the names: DDP
"module", torch.compile "_orig_mod"."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..dcp._keys import plain_key
from ._split import is_of_optimizer

_MODEL = "model."
_WRAPPED = (_MODEL, "buffer.")  # tensors whose names come from modules


class Names:
    """`stored` and `here`: the names of all tensors of the checkpoint, and of all ranks of this job, without optimizer
    state. `optimizers`: the names of this job's optimizers. A stored name that this job has is kept, and so is one that
    several names would fit."""

    def __init__(self, stored: Collection[str], here: Collection[str], optimizers: Collection[str]) -> None:
        self._optimizers = optimizers
        ours, theirs = _by_plain(set(here) - set(stored)), _by_plain(set(stored) - set(here))
        only = ((names, ours.get(plain, ())) for plain, names in theirs.items())
        self._here = {names[0]: fits[0] for names, fits in only if len(names) == len(fits) == 1}

    def of_tensor(self, name: str) -> str:
        if not is_of_optimizer(name):
            return self._here.get(name, name)
        words = name.split(".", 3)
        parameter_at = 3 if words[1] in self._optimizers else 2  # after the optimizer's name, if any, and the key
        words = name.split(".", parameter_at)
        return ".".join((*words[:parameter_at], *map(self.of_parameter, words[parameter_at:])))

    def of_parameter(self, name: str) -> str:
        found = self._here.get(_MODEL + name)
        return name if found is None else found.removeprefix(_MODEL)


def _by_plain(names: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(_WRAPPED):
            found.setdefault(plain_key(name), []).append(name)
    return found
