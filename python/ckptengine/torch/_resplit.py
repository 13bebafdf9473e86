"""Finds out whether the ranks split their state in another way than in the checkpoint, although they are as many.

If main shards now have other names, the leader decides that all shards are taken over (ckpt_take_shards() in
ckptengine.h), and every rank learns it from the engine. If the names are the same, only the ranks can see it. Each
compares its own tensors with what is stored for it. If one rank sees a difference, all ranks must take over, because
tensors have moved between them. So the ranks tell each other, through the store of torch.distributed. It works without
a GPU, before any group communicates, and with a deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .._abi import Capture
from .._engine import Error, Status
from . import _internals
from ._inventory import Inventory
from ._memory import split_name
from ._python_state import COMMON_STATE, COMMON_STATE_ON_GPU
from ._replicas import given_option, is_distributed
from ._split import RECORD, is_of_optimizer

_TIMEOUT_MS = 60_000  # the default of the option restore_timeout_ms


class Resplit:
    """`given`: the engine's options, with rank and world size. `may_take_over`: the same on all ranks."""

    def __init__(self, inventory: Inventory, given: Mapping[str, Any], *, may_take_over: bool) -> None:
        self._inventory = inventory
        self._job = given_option(given, "job")
        self._timeout_s = int(given_option(given, "restore_timeout_ms") or _TIMEOUT_MS) / 1000
        self._calls = 0
        self._was_needed = False
        self._ranks = dist.get_world_size() if is_distributed() else 1
        self._store = None
        if may_take_over and self._ranks > 1 and given_option(given, "world_size") == str(self._ranks):
            self._store = _internals.default_store()

    def is_needed(self, stored: Mapping[str, Any], record: str | None) -> bool:
        """Whether any rank's tensors are split in another way than stored. All ranks must call it, and get the same
        answer. `stored`: the engine's stored_layout(). `record`: the name of the record of this rank's splits, if it
        has one. Raises Error if a rank does not call it in time, and if the answer has become no: the engine loads
        nothing any more once it was asked for shards to take over."""
        if self._store is None:  # then the rank that sees a difference refuses it
            return False
        self._calls += 1
        store = dist.PrefixStore(f"ckptengine/{self._job}/{stored['incarnation']}/{self._calls}", self._store)
        is_needed = self._any_rank(store, is_other(self._inventory, stored, record))
        if self._was_needed and not is_needed:
            raise Error(
                Status.INVALID,
                "an earlier restore() failed while it cut the tensors anew, and now they are split as they are stored; "
                "close this Checkpointer and make another",
            )
        self._was_needed = is_needed
        return is_needed

    def _any_rank(self, store: dist.Store, says_yes: bool) -> bool:
        try:
            if says_yes:
                store.add("yes", 1)
            if store.add("told", 1) == self._ranks:
                store.set("all", b"")
            store.wait(["all"], timedelta(seconds=self._timeout_s))
            return store.add("yes", 0) > 0
        except RuntimeError as error:
            raise Error(
                Status.TIMEOUT,
                f"not all {self._ranks} ranks have said within {self._timeout_s:g} s how they split the state, so "
                "nothing was restored; see which rank has failed, and start all ranks again",
            ) from error


def is_other(inventory: Inventory, stored: Mapping[str, Any], record: str | None) -> bool:
    """Whether this rank has other tensors than those stored for it, or other ranges of them. Optimizer state is split
    like its parameter, and may not exist yet."""
    here = {found.name for found in inventory.gather() if found.capture is Capture.OVERLAPPED and found.of is None}
    stored_record = next((name for name in stored["private"] if name.startswith(RECORD)), None)
    return here != set(_tensors(stored["main"])) or record != stored_record


def _tensors(main: Mapping[str, Any]) -> Iterator[str]:
    for stored_name in main:
        name, _ = split_name(stored_name)
        if not is_of_optimizer(name) and name not in (COMMON_STATE, COMMON_STATE_ON_GPU):
            yield name
