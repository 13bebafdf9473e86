"""Checkpointer: what a PyTorch training loop calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from .._abi import Capture
from .._engine import Engine, Error, Health, Restored, Stats, Status, Ticket
from .._options import Options
from . import _codec, _rng
from ._communication import Communication
from ._inventory import Inventory, named
from ._memory import Shown, show, show_as_stored, split_name

PYTHON_STATE = "python_state"
_BLOB_STEP_BYTES = 4096


class Checkpointer:
    """Captures a training loop's whole state every iteration, and brings it back after a failure.

        with Checkpointer(model, optimizer, schedulers=scheduler, job="run1", rank=rank, world_size=n) as ckpt:
            for k in range(ckpt.restore().next_iteration, iterations):
                loss = forward_backward()
                with ckpt.update(k):       # before_update(), then snapshot(k)
                    optimizer.step()
                    scheduler.step()

    model       a module, or several by name ({"net": net, "ema": ema}). Parameters are captured while training goes on,
                persistent buffers (BatchNorm statistics) at once.
    optimizer   an object with `param_groups` and `state` as torch's optimizers have them, or several by name. With an
                optimizer that is partitioned over the ranks (ZeRO) each rank gives its own part.
    schedulers, scaler   objects with state_dict() and load_state_dict(), one or several.
    tensors     further tensors by name that only the update changes: averaged or master weights.
    extra       by name, objects with state_dict() and load_state_dict(), torch.Generators, or tensors; captured at
                once, so that they may change at any time. Data positions belong here. Keep it small.
    rng         whether to keep the random number generators of torch, Python and numpy.
    communication   how the engine learns when training communicates, so that checkpoint traffic keeps out of the way.
                "hooks": by torch's own hooks. DDP models get a communication hook that changes no bit of their
                gradients; see watch(), too. "patch": by replacing methods of torch.distributed's classes in this
                process until close(), so that FSDP and plain calls are seen as well. None: not at all. What is not
                seen may call comm_begin() and comm_end() of `engine`.
    options     an Options, whose fields your editor knows; or give its fields as further arguments.

    Where torch.distributed is initialized, `rank` and `world_size` come from it. State that is no tensor is stored as
    JSON and raw bytes; an object that has no such representation is refused here, with its path, not in the middle of
    training.

    Everything is called from the training thread. All methods raise ckptengine.Error, except that a failed or skipped
    snapshot never raises: the ticket and the log say so.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        schedulers: Any = None,
        scaler: Any = None,
        tensors: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Any] | None = None,
        rng: bool = True,
        communication: Literal["hooks", "patch"] | None = "hooks",
        library: str | os.PathLike | None = None,
        options: Options | None = None,
        **more: Any,
    ) -> None:
        self._inventory = Inventory(named("model", model), named("optimizer", optimizer), dict(tensors or {}))
        self._stateful = {"scheduler": named("schedulers", schedulers), "scaler": named("scaler", scaler)}
        self._extra = dict(extra or {})
        self._rng = rng
        self._shown: dict[str, Shown] = {}
        self._staged: list[Shown] = []
        self._gpu: torch.device | None = None  # of the tensors that are on one
        self._identities: tuple | None = None
        self._capturing = False  # between snapshot() and before_update()
        self.ticket: Ticket | None = None  # of the last snapshot()
        self._blob = bytearray()
        self._hooks: list[Any] = []
        if communication not in ("hooks", "patch", None):
            raise Error(Status.INVALID, f"communication is {communication!r}; give 'hooks', 'patch' or None")
        first = self._encode()  # what cannot be represented is refused now
        self._blob_bytes_min = 2 * len(first)
        distributed = torch.distributed.is_available()
        if distributed and torch.distributed.is_initialized():
            given = options.given() if options is not None else {}
            for key, value in (
                ("rank", torch.distributed.get_rank()),
                ("world_size", torch.distributed.get_world_size()),
            ):
                if key not in given:
                    more.setdefault(key, value)
        self.engine = Engine(options, library=library, **more)
        tells = distributed and communication is not None
        self._communication = Communication(self.engine, patch=communication == "patch") if tells else None
        # An update is never missed where the optimizer can tell us.
        for known in self._inventory.optimizers.values():
            if hasattr(known, "register_step_pre_hook"):
                self._hooks.append(known.register_step_pre_hook(lambda *_: self._before_step()))

    # ---- what the training loop calls ----

    def restore(self) -> Restored:
        """Brings back the newest state that every rank can get: tensors in place, Python state through
        load_state_dict(), random number generators last. All ranks call it, before their first snapshot. A fresh start
        (found is False) changes nothing. Tensors that are replaced after it are let go of by the first snapshot()."""
        if self._communication is not None:
            self._communication.place(self._inventory.models.values())
        stored = self.engine.stored_layout()
        if not stored["found"]:
            with contextlib.suppress(Error, ValueError):  # what cannot be registered the first snapshot() tells
                self._register(self._wanted())  # now, so that restore() knows their GPU
            return self.engine.restore(self._current_stream())
        self._inventory.create_missing_state(stored["main"])
        self._register(self._wanted(as_stored={**stored["main"], **stored["private"]}))
        blob = stored["private"].get(PYTHON_STATE)
        if blob is not None:
            self._register_blob(blob["shape"][0])
        result = self.engine.restore(self._current_stream())
        if result.found:
            for shown in self._staged:
                shown.unstage()
            if blob is not None:
                self._put_python_state(_codec.decode(self._blob))
        self._identities = None
        return result

    def watch(self, *models: torch.nn.Module) -> None:
        """Learns when these DistributedDataParallel models reduce their gradients: for those whose inner module was
        given as `model`. Call it before their first backward pass."""
        if self._communication is not None:
            self._communication.place(models)

    def before_update(self, *streams: torch.cuda.Stream) -> bool:
        """Call before the next change of parameters, optimizer state or `tensors`; waits until they are captured. On a
        GPU it does not wait: `streams`, the current one if none is given, do, and must be all on which they change.
        optimizer.step() calls it too, for the current stream, where the optimizer has hooks."""
        self._capturing = False
        named = [stream.cuda_stream for stream in streams]
        current = self._current_stream()
        return self.engine.before_update(named if named or current is None else [current])

    def snapshot(self, iteration: int) -> Ticket:
        """Starts the snapshot of `iteration`; call it after all updates of that iteration, on a GPU with the stream
        current that they are on or that waits for them. Returns at once. A failed
        or skipped snapshot never raises and does not harm training; a wrong call does: a forgotten restore(), an
        iteration that is not larger than the last, tensors that moved before before_update()."""
        try:
            self._refresh()
        except Error as error:
            self.engine._report(error.status, str(error))
            self.ticket = Ticket(self.engine, iteration, error.status, str(error))
            return self.ticket
        self.ticket = self.engine.snapshot(iteration, self._current_stream())
        self._capturing = self.ticket.taken
        return self.ticket

    @contextlib.contextmanager
    def update(self, iteration: int) -> Iterator[None]:
        """Around the updates of an iteration: before_update() at its begin, snapshot(iteration) at its end, whose
        ticket is then in `ticket`. Nothing is captured when the block raises."""
        self.before_update()
        yield
        self.snapshot(iteration)

    def stats(self) -> Stats:
        return self.engine.stats()

    def health(self) -> Health:
        """Whether the job is protected, and if not, why. Any thread; does not wait."""
        return self.engine.health()

    def close(self) -> None:
        """Ends the engine; what was captured stays with the agent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._communication is not None:
            self._communication.close()
        self.engine.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- registration ----

    def _current_stream(self) -> int | None:
        """On which PyTorch enqueues this thread's work on the tensors' GPU; None where none is on one."""
        return None if self._gpu is None else torch.cuda.current_stream(self._gpu).cuda_stream

    def _refresh(self) -> None:
        """Makes registrations, staging copies and Python state those of now."""
        identities = self._inventory.identities()
        if identities != self._identities:
            if self._capturing:
                self._refuse_torn_capture()
            self._identities = None
            self._register(self._wanted())
            self._identities = identities
        for shown in self._staged:
            shown.stage()
        data = self._encode()
        if len(data) > len(self._blob):
            self._register_blob(max(self._blob_bytes_min, len(data) + len(data) // 2))
        self._blob[: len(data)] = data

    def _wanted(self, as_stored: Mapping[str, Any] | None = None) -> dict[str, Shown]:
        """All tensors as they are to be registered; with `as_stored` in the memory order that is stored."""
        stored_names = {split_name(name)[0]: name for name in as_stored or ()}
        wanted = {}
        for name, tensor, capture in self._inventory.gather():
            shown = show(name, tensor, capture)
            if name in stored_names:
                shown = show_as_stored(shown, tensor, stored_names[name])
            wanted[shown.name] = shown
        return wanted

    def _register(self, wanted: dict[str, Shown]) -> None:
        """Brings the engine from what is registered to `wanted` with as few calls as possible."""
        self._gpu = next((shown.memory.device for shown in wanted.values() if shown.memory.is_cuda), None)
        for name, old in list(self._shown.items()):
            new = wanted.get(name)
            if new is None or not new.fits(old):
                self.engine.unregister(name)
                del self._shown[name]
        for name, new in wanted.items():
            old = self._shown.get(name)
            if old is None:
                self.engine.register_pointer(
                    name,
                    new.memory.data_ptr(),
                    new.dtype,
                    new.memory.shape,
                    memory=new.place,
                    capture=new.capture,
                    owner=new.memory,
                )
            elif old.memory.data_ptr() != new.memory.data_ptr():
                self.engine.move(name, new.memory.data_ptr(), owner=new.memory)
            self._shown[name] = new
        self._staged = [shown for shown in wanted.values() if shown.source is not None]

    def _register_blob(self, size_bytes: int) -> None:
        """A new buffer of at least `size_bytes` for the Python state. It has room to spare, so that it is seldom
        replaced."""
        if self._blob:
            self.engine.unregister(PYTHON_STATE)
        self._blob = bytearray(-(-size_bytes // _BLOB_STEP_BYTES) * _BLOB_STEP_BYTES)
        self.engine.register(PYTHON_STATE, self._blob, capture=Capture.SYNCHRONOUS)

    def _refuse_torn_capture(self) -> None:
        """Tensors moved under a capture that before_update() has not ended. It must never be taken for whole, neither
        by a later before_update() nor by close()."""
        self._capturing = False
        self.engine.discard()
        raise RuntimeError(
            "tensors were replaced or moved between snapshot() and before_update(), so that what was being captured is "
            "torn and was discarded: call before_update() before each update"
        )

    def _before_step(self) -> None:
        self.before_update()

    # ---- Python state ----

    def _encode(self) -> bytes:
        inventory = self._inventory
        state: dict[str, Any] = {
            "groups": {
                key: [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
                for key, optimizer in inventory.optimizers.items()
            },
            "optimizer": inventory.other_state(),
            "extra": {name: _read_extra(item) for name, item in self._extra.items()},
        }
        for what, objects in self._stateful.items():
            state[what] = {name: item.state_dict() for name, item in objects.items()}
        if self._rng:
            state["rng"] = _rng.read()
        try:
            return _codec.encode(state, "training state")
        except _codec.Unrepresentable as error:
            raise Error(Status.INVALID, str(error)) from None

    def _put_python_state(self, state: dict[str, Any]) -> None:
        for key, groups in state["groups"].items():
            for group, saved in zip(self._inventory.optimizers[key].param_groups, groups, strict=True):
                _update_group(group, saved)
        self._inventory.put_other_state(state["optimizer"])
        for what, objects in self._stateful.items():
            for name, item in objects.items():
                item.load_state_dict(state[what][name])
        for name, item in self._extra.items():
            _write_extra(item, state["extra"][name])
        if self._rng and "rng" in state:
            _rng.write(state["rng"])


def _update_group(group: dict, saved: dict) -> None:
    for key, value in saved.items():
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            group[key].copy_(value)  # schedulers may hold the same object
        else:
            group[key] = value


def _read_extra(item: Any) -> Any:
    if isinstance(item, Tensor):
        return item
    if isinstance(item, torch.Generator):
        return item.get_state()
    return item.state_dict()


def _write_extra(item: Any, state: Any) -> None:
    if isinstance(item, Tensor):
        with torch.no_grad():
            item.copy_(state)
    elif isinstance(item, torch.Generator):
        item.set_state(state)
    else:
        item.load_state_dict(state)
