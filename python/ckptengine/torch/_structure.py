"""Says by name what the training state is made of, so that a restart gives each object what belongs to it, or refuses.

    {"format": 1,
     "optimizers": {"": {"class": "AdamW", "groups": [{"params": ["fc.weight"], "tensors": {"lr": ["float32", []]}}]}},
     "scheduler": {"": "StepLR"}, "scaler": {},
     "extra": {"data": ["object"], "order": ["generator"], "scale": ["tensor", "float32", [3]]}}

Each rank stores this in its private shard, in the record `structure.<digest>`. If the restarted program has the same
digest, restore() writes the tensors in place. Otherwise it first reads all of them into memory apart, compares by name,
and then copies them or raises Error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._engine import Error, Status
from ._inventory import Inventory
from ._optimizer_state import of_optimizer

RECORD = "structure."
_FORMAT = 1
_ADVICE = "start the job as it was stored, or under another job name"


def describe(inventory: Inventory, stateful: Mapping[str, Mapping[str, Any]], extra: Mapping[str, Any]) -> dict:
    """Returns the structure of the state of these objects."""
    optimizers = {}
    for key, optimizer in inventory.optimizers.items():
        names = inventory.parameter_names(key)
        groups = [
            {"params": [names[p] for p in group["params"]], "tensors": _kinds_of_tensors(group)}
            for group in optimizer.param_groups
        ]
        optimizers[key] = {"class": type(optimizer).__name__, "groups": groups}
    classes = {what: {name: type(item).__name__ for name, item in items.items()} for what, items in stateful.items()}
    of_extra = {name: _kind(item) for name, item in extra.items()}
    return {"format": _FORMAT, "optimizers": optimizers, **classes, "extra": of_extra}


def record(structure: dict) -> tuple[str, bytes]:
    """Returns the name and the content of the record."""
    text = json.dumps(structure, separators=(",", ":")).encode()
    return RECORD + hashlib.sha256(text).hexdigest()[:16], text


def read(data: bytes | bytearray) -> dict | None:
    """Reads what record() wrote. Returns None if nothing was stored."""
    if not data:
        return None
    structure = json.loads(bytes(data))
    if structure.get("format") != _FORMAT:
        raise Error(
            Status.MISMATCH,
            f"the structure of the state is stored in format {structure.get('format')}, but this version only reads "
            f"format {_FORMAT}; use the version that stored it",
        )
    return structure


def refuse_others(here: dict, stored: dict, *, adopted: bool) -> None:
    """Raises Error if the objects of this program are not those of the checkpoint. `adopted`: the checkpoint is that of
    another rank, which may have other objects in `extra`."""
    classes = {key: one["class"] for key, one in here["optimizers"].items()}
    _refuse_other_classes("optimizer", classes, {key: one["class"] for key, one in stored["optimizers"].items()})
    for what in ("scheduler", "scaler"):
        _refuse_other_classes(what, here.get(what, {}), stored.get(what, {}))
    if not adopted:
        _refuse_other_names("extra", here["extra"], stored["extra"])
    for name in here["extra"].keys() & stored["extra"].keys():
        mine, theirs = here["extra"][name], stored["extra"][name]
        if mine != theirs:
            raise Error(
                Status.MISMATCH,
                f"extra '{name}' is {_words(mine)}, but {_words(theirs)} in the checkpoint; {_ADVICE}",
            )


def sources(key: str, here: dict, stored: dict, options: list[dict]) -> list[int | None]:
    """Returns for each parameter group of optimizer `key` the stored group whose options belong to its parameters. None
    if all of its parameters are new. `options`: those of the stored groups. Raises Error if its parameters come from
    groups with different options, or if a tensor among the options has another type or shape."""
    was_in = {name: n for n, group in enumerate(stored["optimizers"][key]["groups"]) for name in group["params"]}
    found: list[int | None] = []
    for number, group in enumerate(here["optimizers"][key]["groups"]):
        firsts: dict[int, str] = {}
        for name in group["params"]:
            if name in was_in:
                firsts.setdefault(was_in[name], name)
        first = next(iter(firsts), number if not group["params"] and number < len(options) else None)
        for other, name in firsts.items():
            if not _same(options[other], options[first]):
                raise Error(
                    Status.MISMATCH,
                    f"parameter group {number} of {of_optimizer(key)} has the parameters '{firsts[first]}' and "
                    f"'{name}', which have different options in the checkpoint; put them into groups as they were "
                    "stored",
                )
        if first is not None:
            kinds = stored["optimizers"][key]["groups"][first]["tensors"]
            _refuse_other_tensors(key, number, group["tensors"], kinds, options[first])
        found.append(first)
    return found


def refuse_other_numbers(inventory: Inventory, groups: Mapping[str, list[dict]]) -> None:
    """Raises Error if an optimizer has another number of parameter groups than are stored."""
    here = {key: len(optimizer.param_groups) for key, optimizer in inventory.optimizers.items()}
    there = {key: len(stored) for key, stored in groups.items()}
    for key in sorted(here.keys() | there.keys()):
        if here.get(key, 0) != there.get(key, 0):
            raise Error(
                Status.MISMATCH,
                f"{of_optimizer(key)} has {here.get(key, 0)} parameter groups, but {there.get(key, 0)} in the "
                f"checkpoint; {_ADVICE}",
            )


def _refuse_other_classes(what: str, here: Mapping[str, str], stored: Mapping[str, str]) -> None:
    _refuse_other_names(what, here, stored)
    for name, kind in here.items():
        if kind != stored[name]:
            raise Error(
                Status.MISMATCH,
                f"{_named(what, name)} is a {kind}, but a {stored[name]} in the checkpoint; {_ADVICE}",
            )


def _refuse_other_names(what: str, here: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    for name in sorted(here.keys() - stored.keys()):
        raise Error(Status.MISMATCH, f"{_named(what, name)} is missing in the checkpoint; {_ADVICE}")
    for name in sorted(stored.keys() - here.keys()):
        raise Error(Status.MISMATCH, f"{_named(what, name)} is in the checkpoint, but not in this program; {_ADVICE}")


def _refuse_other_tensors(key: str, number: int, here: dict, stored: dict, options: dict) -> None:
    for option, kind in here.items():
        if option in options and stored.get(option) != kind:
            theirs = _words(["tensor", *stored[option]]) if option in stored else "no tensor"
            raise Error(
                Status.MISMATCH,
                f"the option {option!r} of parameter group {number} of {of_optimizer(key)} is "
                f"{_words(['tensor', *kind])}, but {theirs} in the checkpoint; {_ADVICE}",
            )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def _kinds_of_tensors(group: Mapping[str, Any]) -> dict[str, list]:
    return {key: _kind(value)[1:] for key, value in group.items() if isinstance(value, Tensor)}


def _kind(item: Any) -> list:
    if isinstance(item, Tensor):
        return ["tensor", str(item.dtype).removeprefix("torch."), list(item.shape)]
    return ["generator" if isinstance(item, torch.Generator) else "object"]


def _words(kind: list) -> str:
    return f"a tensor of type {kind[1]} and shape {kind[2]}" if kind[0] == "tensor" else f"a {kind[0]}"


def _named(what: str, name: str) -> str:
    return f"{what} '{name}'" if name else f"the {what}"
