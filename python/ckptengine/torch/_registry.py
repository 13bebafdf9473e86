"""Keeps the engine's registrations equal to the tensors of the training state, with as few calls as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._abi import Capture
from .._engine import Engine
from ._inventory import Inventory
from ._memory import Shown, apart, show, show_as_stored, split_name


class Registry:
    """The registered tensors. Only the training thread uses it."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.shown: dict[str, Shown] = {}  # by registered name
        self.gpu: torch.device | None = None  # the GPU that has tensors; None: all are in host memory
        self._staged: list[Shown] = []

    def wanted(self, as_stored: Mapping[str, Any] | None = None, *, is_apart: bool = False) -> dict[str, Shown]:
        """Returns how to register all tensors. With `as_stored`, a stored layout, they get its memory order.
        `is_apart`: in host memory beside the tensors, which only unstage() changes."""
        stored_names = {split_name(name)[0]: name for name in as_stored or ()}
        wanted = {}
        for name, tensor, capture, _ in self._inventory.gather():
            shown = show(name, tensor, capture)
            if name in stored_names:
                shown = show_as_stored(shown, tensor, stored_names[name])
            wanted[shown.name] = apart(shown) if is_apart else shown
        return wanted

    def register(self, engine: Engine, wanted: dict[str, Shown]) -> None:
        """Changes the registrations to `wanted`."""
        self.gpu = next((shown.memory.device for shown in wanted.values() if shown.memory.is_cuda), None)
        for name, old in list(self.shown.items()):
            new = wanted.get(name)
            if new is None or not new.fits(old):
                engine.unregister(name)
                del self.shown[name]
        for name, new in wanted.items():
            old = self.shown.get(name)
            if old is None:
                engine.register_pointer(
                    name,
                    new.memory.data_ptr(),
                    new.dtype,
                    new.memory.shape,
                    memory=new.place,
                    capture=new.capture,
                    owner=new.memory,
                )
            elif old.memory.data_ptr() != new.memory.data_ptr():
                engine.move(name, new.memory.data_ptr(), owner=new.memory)
            self.shown[name] = new
        self._staged = [shown for shown in wanted.values() if shown.source is not None]

    def stage(self, capture: Capture | None = None) -> None:
        """Refreshes the staging copies, or only those that are captured in this way."""
        for shown in self._staged:
            if capture is None or shown.capture is capture:
                shown.stage()

    def unstage(self) -> None:
        """Copies the staging copies back to the tensors, after a restore."""
        for shown in self._staged:
            shown.unstage()


class Record:
    """A registered blob of the private shard. Its name is `prefix` and a digest of what it says, so a restore can
    compare the names before it changes anything."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._registered: tuple[str, bytearray] | None = None

    @property
    def data(self) -> bytearray:
        """What is registered, or what restore() has read. Empty if nothing is registered."""
        return self._registered[1] if self._registered is not None else bytearray()

    def register(self, engine: Engine, wanted: tuple[str, bytes] | None) -> None:
        """Registers a record of this name and content in place of the last one. None: none."""
        blob = None if wanted is None else (wanted[0], bytearray(wanted[1]))
        if blob == self._registered:
            return
        if self._registered is not None:
            engine.unregister(self._registered[0])
        self._registered = blob
        if blob is not None:
            engine.register(*blob, capture=Capture.SYNCHRONOUS)

    def register_as_stored(self, engine: Engine, stored: Mapping[str, Any]) -> None:
        """Registers room for the stored record, if there is one."""
        name = self.stored_name(stored)
        self.register(engine, None if name is None else (name, bytes(stored[name]["shape"][0])))

    def stored_name(self, stored: Iterable[str]) -> str | None:
        return next((name for name in stored if name.startswith(self._prefix)), None)
