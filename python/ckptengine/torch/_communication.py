"""Tells the engine when training communicates, so that the training loop need not.

By default this uses what torch offers for it and changes nothing of torch's: a communication hook in each
DistributedDataParallel model that is known here. The hook computes the same bits as DDP without it.

With `patch` all that goes through torch.distributed from Python is seen, FSDP's collectives included. That replaces
methods of torch's classes in this process:

- The methods of ProcessGroup begin every collective, send and receive. What is asynchronous ends when its future is
  done or it was waited for, whichever is first; what has no future (a send), and what the caller waits for at once,
  ends in Work.wait().
- DistributedDataParallel finds its hook at the first forward pass, and its broadcast of buffers, which is made in C++,
  is counted as one communication.

What communicates tensors on a GPU begins and ends there, on the GPU's timeline: NCCL's futures are done and its wait()
returns when work is queued, but both make the current stream one that waits for it, and so the end goes onto that.

Never seen: functional collectives (DTensor), backends that are used without a ProcessGroup, what compiled code does,
what a CUDA graph holds, and DDP's map of unused parameters.

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

CHANNELS_MAX = 8

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

    __slots__ = ("_channel", "_gpu", "_open", "_owner")

    def __init__(self, owner: Communication, channel: int, gpu: torch.device | None) -> None:
        self._owner = owner
        self._channel = channel
        self._gpu = gpu
        self._open = owner._tell("comm_begin", *self._where())

    def end(self, *_: object) -> None:
        with self._owner._lock:
            still_open, self._open = self._open, False
            if still_open:
                self._owner._tell("comm_end", *self._where())

    def _where(self) -> tuple[int, ...]:
        if self._gpu is None:
            return (self._channel,)
        return (self._channel, torch.cuda.current_stream(self._gpu).cuda_stream)


class Communication:
    """In place from construction to close(), which takes everything back but DDP's hooks: these cannot be taken back,
    and go on computing what DDP would without them. An engine that is only dropped is as good as closed. Nothing here
    raises because the engine could not be told."""

    def __init__(self, engine: Engine, *, patch: bool = False) -> None:
        self._patches = patch
        self._engine: Callable[[], Engine | None] = weakref.ref(engine)
        self._lock = threading.RLock()  # entered again where an object is collected within
        self._channels: dict[str, int] = {}  # by name of the process group
        self._waited_for: weakref.WeakKeyDictionary[Any, _Open] = weakref.WeakKeyDictionary()
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # DDP's, looked at
        self._replaced: list[tuple[type, str, Any, Any]] = []
        if patch:
            self._replace_methods()
        weakref.finalize(engine, self.close).atexit = False

    def place(self, modules: Iterable[torch.nn.Module]) -> None:
        """Looks for DDP models here. With `patch` others are found at their first forward pass that is not compiled; so
        late, because a model takes one communication hook, and its owner's comes first."""
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

    def begin(self, group: dist.ProcessGroup, tensors: Any) -> _Open:
        """A communication of this group begins; end() of what is returned ends it."""
        name = group.group_name
        with self._lock:
            channel = self._channels.setdefault(name, min(len(self._channels), CHANNELS_MAX - 1))
        return _Open(self, channel, _gpu_of(tensors))

    # ---- inside ----

    def _replace_methods(self) -> None:
        for name in _METHODS:
            if hasattr(dist.ProcessGroup, name):
                self._replace(dist.ProcessGroup, name, self._counted)
        self._replace(dist.Work, "wait", self._waiting)
        ddp = torch.nn.parallel.DistributedDataParallel
        self._replace(ddp, "forward", self._forward)
        if hasattr(ddp, "_distributed_broadcast_coalesced"):
            self._replace(ddp, "_distributed_broadcast_coalesced", self._broadcasting)

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

    def _counted(self, original: Callable) -> Callable:
        def call(group: dist.ProcessGroup, *arguments: Any, **options: Any) -> Any:
            if self._engine() is None:
                return original(group, *arguments, **options)
            opened = self.begin(group, arguments)
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
            opened = self.begin(model.process_group, arguments)
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
        # A patched all_reduce is seen by itself.
        why_not = place(model, None if self._patches else self)
        if not why_not:
            return
        log.warning(
            "the engine does not see when a DistributedDataParallel model reduces gradients, unless that goes through "
            "torch.distributed and communication='patch' is given: %s; call Engine.comm_begin() and comm_end() around "
            "it, or let checkpoint traffic run beside it",
            why_not,
        )
