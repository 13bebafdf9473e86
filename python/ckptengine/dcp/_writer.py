"""Writer: lets torch.distributed.checkpoint save into the memory tiers of an engine.

A save is a snapshot. The planner of torch.distributed.checkpoint (DCP) says which boxes of which tensors a rank writes,
so that none is written twice. These boxes are the rank's main shard. A box is named by its key and offsets, as in
fc.weight[5,0]. Pickled values are in the private shard, named as in step[bytes]. The coordinator's private shard also
has the Metadata, named dcp.metadata. All other ranks take their snapshot in write_data(). The coordinator takes its own
in finish(), because only then does it have the Metadata. Then it waits for the commit.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from .._abi import Capture, DType, Stage
from .._engine import Engine, Error, Status, Ticket
from ..torch import Unrepresentable, encode
from ..torch._memory import _DTYPES
from ._index import METADATA, encodable, stored_name
from ._memory import Held, held_by
from ._reader import iteration_in

_RANK = "dcp.rank"  # a tensor of every rank, because the planner may give a rank nothing


class Writer(StorageWriter):
    """Writes a checkpoint of torch.distributed.checkpoint.save() or async_save() into memory.

        dcp.save(state, storage_writer=Writer(engine, iteration))

    Before the first save the engine restores. The first save frees what was restored, so load before it.

    Args:
        engine: The Engine of this rank, which nothing else may use. Its rank and world size are torch.distributed's.
        iteration: The number of the checkpoint. It must be larger than that of the last checkpoint. Default: one
            larger. You can also name it in `checkpoint_id` of dcp.save(): the last number in that text is the
            iteration.
        timeout_ms: How long a save waits until its checkpoint is committed: all copies and parity exist. In
            milliseconds.

    Raises:
        Error: While it saves, if the checkpoint is not captured or not committed in time.
    """

    def __init__(self, engine: Engine, iteration: int | None = None, *, timeout_ms: int = 60_000) -> None:
        super().__init__()
        self._engine = engine
        self._iteration = iteration
        self._timeout_ms = timeout_ms
        self._captures_at_finish = False
        self.ticket: Ticket | None = None  # of the last save

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        if checkpoint_id is not None:
            self._iteration = iteration_in(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._captures_at_finish = is_coordinator or not kwargs.get("use_collectives", True)
        self._held: Held = held_by(self._engine)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        held = self._held
        held.layouts, held.buffers = {}, {}
        if held.last is not None:
            held.last.wait(Stage.COMMITTED, self._timeout_ms)  # otherwise this save might be skipped
        self._forget()
        self._register(_RANK, torch.zeros(1, dtype=torch.uint8), Capture.SYNCHRONOUS)
        results = [self._write(item, planner) for item in plan.items]
        if not self._captures_at_finish:
            self._capture()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        try:
            data = encode(encodable(metadata), "metadata")
        except Unrepresentable as error:
            raise Error(Status.INVALID, str(error)) from None
        self._register(METADATA, as_tensor(data), Capture.SYNCHRONOUS)
        ticket = self._capture()
        if not ticket.wait(Stage.COMMITTED, self._timeout_ms):
            raise Error(
                ticket.status if ticket.status is not Status.OK else Status.TIMEOUT,
                f"the save of iteration {ticket.iteration} is not committed: {ticket.message}. Earlier checkpoints are "
                "kept",
            )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        try:
            return iteration_in(checkpoint_id) >= 0
        except ValueError:
            return False

    # ---- inside ----

    def _write(self, item: WriteItem, planner: SavePlanner) -> WriteResult:
        data = planner.resolve_data(item)
        if item.type is WriteItemType.BYTE_IO:
            taken = as_tensor(data.getvalue())
            self._register(stored_name(item.index.fqn, None), taken, Capture.SYNCHRONOUS)
        else:
            taken = _in_host_memory(item.index.fqn, data)
            offsets = tuple(item.tensor_data.chunk.offsets)
            self._register(stored_name(item.index.fqn, offsets), taken, Capture.OVERLAPPED)
        return WriteResult(item.index, taken.nbytes, None)

    def _register(self, name: str, tensor: torch.Tensor, capture: Capture) -> None:
        dtype: DType = _DTYPES[tensor.dtype]
        self._engine.register_pointer(name, tensor.data_ptr(), dtype, tensor.shape, capture=capture, owner=tensor)

    def _capture(self) -> Ticket:
        """Takes the snapshot and waits until it is captured. Then the registered memory may be freed. Raises Error if
        it was not captured."""
        held = self._held
        if self._iteration is None:
            self._iteration = held.start.next_iteration if held.last is None else held.last.iteration + 1
        self._engine.capture_next()  # a save is whole, whatever the option capture_every says
        self.ticket = held.last = self._engine.snapshot(self._iteration)
        self._iteration = None
        self.ticket.wait(Stage.CAPTURING, self._timeout_ms)  # waits until a slot is free
        captured = self.ticket.taken and self._engine.before_update()
        self._forget()
        if not captured:
            why = self.ticket.message or "its capture failed"
            raise Error(self.ticket.status, f"the save of iteration {self.ticket.iteration} was not captured: {why}")
        return self.ticket

    def _forget(self) -> None:
        for name in list(self._engine.registered):
            self._engine.unregister(name)


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _in_host_memory(key: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor itself if it can be registered as it is, otherwise a copy in host memory."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise Error(
            Status.INVALID,
            f"'{key}' cannot be saved: its layout is {tensor.layout}, but only dense, unquantized tensors can be "
            "stored",
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if plain.dtype in _DTYPES:
        return plain
    return plain.reshape(-1).view(torch.uint8) if plain.ndim == 0 else plain.view(torch.uint8)
