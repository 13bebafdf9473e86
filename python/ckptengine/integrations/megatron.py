"""Adapter for Megatron-Core's local checkpointing: a manager that replaces the one of NVRx (nvidia-resiliency-ext).
docs/frameworks.md has an example.

Megatron gives its manager a "tensor-aware" state dict, which can give its tensors away and get them back. The manager
captures the tensors as they are. It pickles the rest of the state dict, as NVRx does, and captures the pickle, too.
"""

from __future__ import annotations

import functools
import io
import logging
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import TensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import local_manager
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.base_manager import (
    BaseCheckpointManager,
    CheckpointingException,
    CkptID,
)

from .. import Capture, Engine, Error, Options, Restored, Stage, Status, Ticket
from ..torch._memory import Shown, create_as_stored, show, split_name
from ._common import refuse_older

log = logging.getLogger("ckptengine")

_HOLLOW = "hollow_state_dict"
_LENGTH = struct.Struct("<Q")


def install(**options: Any) -> None:
    """Makes Megatron's pretrain() use this manager if --non-persistent-ckpt-type is local.

    Replaces NVRx's class in NVRx's module, because pretrain() imports it from there.

    Args:
        **options: The arguments of LocalCheckpointManager.
    """
    local_manager.LocalCheckpointManager = functools.partial(_in_place_of_nvrx, options)


def _in_place_of_nvrx(options: dict, _root: Any = None, _session_id: str = "", repl_strategy: Any = None):
    if repl_strategy is not None:
        raise Error(
            Status.INVALID,
            "--replication is not supported: the engine itself replicates checkpoints. Leave out --replication, and "
            "give install() the option copies=2",
        )
    return LocalCheckpointManager(**options)


class LocalCheckpointManager(BaseCheckpointManager):
    """Saves and loads Megatron's local checkpoints.

    Megatron takes it as checkpointing_context["local_checkpoint_manager"]. save() returns only after all tensors are
    captured, so they may change at once. Without is_async, it also waits for the commit. With is_async, other nodes get
    their copies while training goes on, and the finalization of the returned request waits for the commit.

    Args:
        commit_timeout_ms: How long a save may wait until the checkpoint is committed, in milliseconds. After that time
            it raises CheckpointingException.
        library: Path of libckptengine, as for ckptengine.Engine.
        options: Options of the engine. Rank and world size come from torch.distributed.
        **more: Further options, by name. They override `options`.
    """

    def __init__(
        self,
        *,
        commit_timeout_ms: int = 60_000,
        library: Any = None,
        options: Options | None = None,
        **more: Any,
    ) -> None:
        if torch.distributed.is_initialized():
            more = {"rank": torch.distributed.get_rank(), "world_size": torch.distributed.get_world_size()} | more
        super().__init__(session_id="ckptengine")
        self.engine = Engine(options, library=library, **more)
        self.ticket: Ticket | None = None  # of the last save()
        self._commit_timeout_ms = commit_timeout_ms
        self._stored: dict[str, Any] | None = None
        self._restored = False
        self._shown: dict[str, Shown] = {}
        self._hollow = bytearray()
        self._gpu: torch.device | None = None

    @property
    def local_ckpt_dir(self) -> Path:
        """A folder for Megatron to print. Nothing is written there."""
        return Path("memory")

    # ---- what find_latest() and load() of the base class call ----

    def _my_ckpt_ids(self) -> Iterable[CkptID]:
        if self._restored:
            iteration = self.engine.stats().committed_iteration
        else:
            iteration = self._stored_layout()["iteration"] if self._stored_layout()["found"] else -1
        return [self._ckpt_id(iteration)] if iteration >= 0 else []

    def _load(self, ckpt_id: CkptID) -> TensorAwareStateDict:
        if self._restored or not self._stored_layout()["found"]:
            raise CheckpointingException(
                "a process can load a checkpoint only once, before its first save(). Restart the job to load again"
            )
        stored = self._stored_layout()
        restored, tensors = self._restore()
        refuse_older(restored, stored)
        (length,) = _LENGTH.unpack_from(self._hollow)
        pickled = io.BytesIO(self._hollow[_LENGTH.size : _LENGTH.size + length])
        state_dict = torch.load(pickled, weights_only=False)
        state_dict.insert_tensors(tensors)
        return state_dict

    # ---- saving ----

    def save(self, state_dict: TensorAwareStateDict, iteration: int, is_async: bool = False) -> AsyncRequest | None:
        """Saves a checkpoint. Returns after all tensors are captured.

        Args:
            state_dict: Megatron's state.
            iteration: The iteration of the checkpoint.
            is_async: Whether to return before the checkpoint is committed.

        Returns:
            With `is_async`, a request whose finalization waits for the commit. Else None.

        Raises:
            CheckpointingException: The checkpoint was not committed in time.
        """
        if not self._restored:
            self._restore()  # load() was not called: nothing is stored, or Megatron loaded something newer
        self.latest_iteration = -1
        tensors = list(state_dict.tensors)
        self._register([show(_name(i), tensor, Capture.OVERLAPPED) for i, tensor in enumerate(tensors)], tensors)
        self._put_hollow(state_dict)
        timeout_ms = self._commit_timeout_ms
        if is_async:
            self.ticket = self.engine.snapshot(iteration, self._stream())
            self.engine.before_update([] if self._gpu is None else [self._stream()])
            return AsyncRequest(None, (), [functools.partial(_finish, self.ticket, timeout_ms)])
        self.ticket = self.engine.snapshot(iteration, self._stream(), wait=True, timeout_ms=timeout_ms)
        _await_commit(self.ticket, 0)
        return None

    def close(self) -> None:
        """Closes the engine. The agent keeps what was saved."""
        self.engine.close()

    def _save(self, state_dict: TensorAwareStateDict, ckpt_id: CkptID) -> None:
        raise NotImplementedError("call save(), which replaces _save()")

    def _cleanup(self, iteration: int) -> None:
        """Does nothing: the agents free checkpoints that are older than the newest commit."""

    def _cleanup_failed_save(self, iteration: int) -> None:
        """Does nothing: the agents free abandoned checkpoints."""

    # ---- registration ----

    def _stored_layout(self) -> dict[str, Any]:
        if self._stored is None:
            self._stored = self.engine.stored_layout()
        return self._stored

    def _restore(self) -> tuple[Restored, list[torch.Tensor]]:
        """Restores the stored checkpoint into new tensors and returns these."""
        stored = self._stored_layout()
        tensors = []
        if stored["found"]:
            names = sorted(stored["main"], key=lambda name: int(split_name(name)[0].removeprefix(_name(""))))
            tensors = [create_as_stored(name, stored["main"][name], torch.device("cpu")) for name in names]
            self._register([show(_name(i), tensor, Capture.OVERLAPPED) for i, tensor in enumerate(tensors)], tensors)
            self._register_hollow(stored["private"][_HOLLOW]["shape"][0])
        self._stored = None  # if restore() fails, the engine may tell another layout
        restored = self.engine.restore()
        self._stored, self._restored = stored, True
        return restored, tensors

    def _register(self, all_shown: list[Shown], tensors: list[torch.Tensor]) -> None:
        for shown, tensor in zip(all_shown, tensors, strict=True):
            if shown.memory.dtype != tensor.dtype:
                raise Error(
                    Status.INVALID,
                    f"tensor {shown.name} has the type {tensor.dtype}, which the engine cannot capture; convert it, or "
                    "use NVRx's own LocalCheckpointManager",
                )
        wanted = {shown.name: shown for shown in all_shown}
        for name, old in list(self._shown.items()):
            if name not in wanted or not wanted[name].fits(old):
                self.engine.unregister(name)
                del self._shown[name]
        for name, new in wanted.items():
            address, old = new.memory.data_ptr(), self._shown.get(name)
            if old is None:
                shape, place = new.memory.shape, new.place
                self.engine.register_pointer(
                    name, address, new.dtype, shape, memory=place, capture=new.capture, owner=new.memory
                )
            elif old.memory.data_ptr() != address:
                self.engine.move(name, address, owner=new.memory)
            new.stage()
        self._shown = wanted
        self._gpu = next((shown.memory.device for shown in all_shown if shown.memory.is_cuda), None)

    def _put_hollow(self, state_dict: TensorAwareStateDict) -> None:
        pickled = io.BytesIO()
        tensors = state_dict.pop_tensors()
        try:
            torch.save(state_dict, pickled)
        finally:
            state_dict.insert_tensors(tensors)
        data = _LENGTH.pack(pickled.tell()) + pickled.getvalue()
        if len(data) > len(self._hollow):
            self._register_hollow(2 * len(data))  # with spare room, because the length varies
        self._hollow[: len(data)] = data

    def _register_hollow(self, size_bytes: int) -> None:
        if self._hollow:
            self.engine.unregister(_HOLLOW)
        self._hollow = bytearray(size_bytes)
        self.engine.register(_HOLLOW, self._hollow, capture=Capture.SYNCHRONOUS)

    def _stream(self) -> int | None:
        return None if self._gpu is None else torch.cuda.current_stream(self._gpu).cuda_stream


def _name(index: int | str) -> str:
    return f"tensor.{index}"


def _finish(ticket: Ticket, timeout_ms: int) -> None:
    """Ends an asynchronous save: waits for the commit. If the ranks skipped the iteration, only logs a warning."""
    if ticket.skipped:
        log.warning("the save of iteration %d was skipped: %s. Training goes on", ticket.iteration, ticket.message)
    else:
        _await_commit(ticket, timeout_ms)


def _await_commit(ticket: Ticket, timeout_ms: int) -> None:
    if not ticket.wait(Stage.COMMITTED, timeout_ms):
        raise CheckpointingException(
            f"the save of iteration {ticket.iteration} is not committed: "
            f"{ticket.message or 'the commit took too long'}. Earlier checkpoints are kept"
        )
