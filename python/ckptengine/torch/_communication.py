"""Tells the engine when training communicates, so that the training loop need not.

All that goes through torch.distributed from Python is seen, FSDP's collectives included, and DDP's:

- The methods of ProcessGroup begin every collective, send and receive. What is asynchronous ends when its future is
  done or it was waited for, whichever is first; what has no future (a send), and what the caller waits for at once,
  ends in Work.wait().
- DistributedDataParallel reduces gradients and broadcasts buffers in C++. A communication hook that computes the same
  bits brings the former back to Python, and the method that does the latter is counted as one communication.

What communicates tensors on a GPU begins and ends there, on the GPU's timeline: NCCL's futures are done and its wait()
returns when work is queued, but both make the current stream one that waits for it, and so the end goes onto that.

Not seen: functional collectives (DTensor), backends that are used without a ProcessGroup, what compiled code does, what
a CUDA graph holds, and DDP's map of unused parameters.

Methods are replaced on the classes, not functions in modules: torch compares its functions by identity in places
(P2POp, coalescing).
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from .._engine import Engine, Error
from ._gradients import place

log = logging.getLogger("ckptengine")

STREAMS_MAX = 8

# Methods of ProcessGroup that return a Work; which of them there are differs between versions of torch.
_METHODS = (
    "allreduce allreduce_coalesced reduce broadcast allgather _allgather_base all_gather_single allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single_coalesced gather scatter reduce_scatter _reduce_scatter_base "
    "reduce_scatter_single reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced alltoall alltoall_base "
    "all_to_all_single send recv recv_anysource barrier"
).split()


def _gpu_of(value: Any) -> torch.device | None:
    """That of the first tensor on a GPU in the arguments of a collective."""
    if isinstance(value, torch.Tensor):
        return value.device if value.is_cuda else None
    if isinstance(value, (list, tuple)):
        return next((gpu for gpu in map(_gpu_of, value) if gpu is not None), None)
    return None


class _Open:
    """A communication that has begun. end() ends it, once; any thread. With a `gpu` both are what its current stream is
    at that moment."""

    __slots__ = ("_gpu", "_open", "_owner", "_stream")

    def __init__(self, owner: Communication, stream: int, gpu: torch.device | None) -> None:
        self._owner = owner
        self._stream = stream
        self._gpu = gpu
        self._open = owner._tell("comm_begin", *self._where())

    def end(self, *_: object) -> None:
        with self._owner._lock:
            still_open, self._open = self._open, False
            if still_open:
                self._owner._tell("comm_end", *self._where())

    def _where(self) -> tuple[int, ...]:
        if self._gpu is None:
            return (self._stream,)
        return (self._stream, torch.cuda.current_stream(self._gpu).cuda_stream)


class Communication:
    """In place from construction to close(), which takes everything back but DDP's hooks: these cannot be taken back,
    and go on computing what DDP would without them. An engine that is only dropped is as good as closed. Nothing here
    raises because the engine could not be told."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Callable[[], Engine | None] = weakref.ref(engine)
        self._lock = threading.RLock()  # entered again where an object is collected within
        self._streams: dict[str, int] = {}  # by name of the process group
        self._waited_for: weakref.WeakKeyDictionary[Any, _Open] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # DDP's, looked at
        self._replaced: list[tuple[type, str, Any, Any]] = []
        for name in _METHODS:
            if hasattr(dist.ProcessGroup, name):
                self._replace(dist.ProcessGroup, name, self._counted)
        self._replace(dist.Work, "wait", self._waiting)
        ddp = torch.nn.parallel.DistributedDataParallel
        self._replace(ddp, "forward", self._forward)
        if hasattr(ddp, "_distributed_broadcast_coalesced"):
            self._replace(ddp, "_distributed_broadcast_coalesced", self._broadcasting)
        weakref.finalize(engine, self.close).atexit = False

    def place(self, modules: Iterable[torch.nn.Module]) -> None:
        """Looks for DDP models here. Others are found at their first forward pass that is not compiled; so late,
        because a model takes one communication hook, and its owner's comes first."""
        for module in modules:
            for part in module.modules():
                if isinstance(part, torch.nn.parallel.DistributedDataParallel):
                    self._place_in(part)

    def close(self) -> None:
        with self._lock:
            self._engine = lambda: None
        for owner, name, original, ours in reversed(self._replaced):
            if owner.__dict__.get(name) is ours:  # else somebody has replaced it since, and calls ours, which is idle
                setattr(owner, name, original)
        self._replaced.clear()

    # ---- inside ----

    def _replace(self, owner: type, name: str, wrap: Callable[[Any], Any]) -> None:
        original = owner.__dict__[name]
        ours = functools.wraps(original)(wrap(original))
        setattr(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    def _tell(self, call: str, *where: int) -> bool:
        """False where nobody is there to be told. Errors are wrong use, which only restore() in the middle of a
        communication makes of this: what began before it was not told, and its end counts for nothing."""
        with self._lock:
            engine = self._engine()
            if engine is None:
                return False
            try:
                getattr(engine, call)(*where)
            except Error as error:
                log.debug("%s", error)
            return True

    def _begin(self, group: dist.ProcessGroup, tensors: Any) -> _Open:
        name = group.group_name
        with self._lock:
            stream = self._streams.setdefault(name, min(len(self._streams), STREAMS_MAX - 1))
        return _Open(self, stream, _gpu_of(tensors))

    def _counted(self, original: Callable) -> Callable:
        def call(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
            if self._engine() is None:
                return original(group, *arguments, **options)
            opened = self._begin(group, arguments)
            try:
                work = original(group, *arguments, **options)
            except BaseException:
                opened.end()
                raise
            how = options.get("opts", arguments[-1] if arguments else None)
            self._end_with(work, opened, waited_for=getattr(how, "asyncOp", None) is False)
            return work

        return call

    def _end_with(self, work: Any, opened: _Open, waited_for: bool) -> None:
        if work is None:  # the backend has waited
            opened.end()
            return
        self._waited_for[work] = opened
        if not waited_for:
            try:
                work.get_future().add_done_callback(opened.end)
                return
            except RuntimeError:  # a Work without a future
                pass
        # Should nobody wait, then when nobody can wait any more.
        weakref.finalize(work, opened.end).atexit = False

    def _waiting(self, original: Callable) -> Callable:
        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return original(work, *arguments, **options)
            finally:
                opened = self._waited_for.pop(work, None)
                if opened is not None:
                    opened.end()

        return wait

    def _broadcasting(self, original: Callable) -> Callable:
        def broadcast(model: Any, *arguments: Any, **options: Any) -> Any:
            opened = self._begin(model.process_group, arguments)
            try:
                return original(model, *arguments, **options)
            finally:
                opened.end()

        return broadcast

    def _forward(self, original: Callable) -> Callable:
        def forward(model: Any, *arguments: Any, **options: Any) -> Any:
            # What is compiled stays free of what is no business of it.
            if not torch.compiler.is_compiling() and self._engine() is not None:
                self._place_in(model)
            return original(model, *arguments, **options)

        return forward

    def _place_in(self, model: Any) -> None:
        if model in self._models:
            return
        self._models.add(model)
        why_not = place(model)
        if not why_not:
            return
        log.warning(
            "the gradients of a DistributedDataParallel model are reduced as before, unseen by the engine unless that "
            "goes through torch.distributed: %s; call Engine.comm_begin() and comm_end() around it yourself, or let "
            "checkpoint traffic run beside it",
            why_not,
        )
