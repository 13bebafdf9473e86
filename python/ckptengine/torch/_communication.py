"""Tells the engine when training communicates, so that the training loop does not have to.

By default this uses torch's own hooks and changes nothing in torch. Each known DistributedDataParallel (DDP) model gets
a communication hook, which computes the same bits as DDP without it.

Under run(), the replaceable groups (_group.py) call mark() for all that they communicate, also for functional
collectives (DTensor). Then DDP's hook marks nothing.

With `patch`, the engine sees everything that goes through torch.distributed from Python, also FSDP's collectives. This
replaces methods of torch's classes in this process:

- The methods of ProcessGroup mark the begin of every collective, send and receive. An asynchronous communication ends
  when its future is done or its wait() returns, whichever is first. A communication without a future (a send), or one
  for which the caller waits at once, ends in Work.wait().
- A wait of the training thread for a communication of tensors in host memory is a bubble. With tensors on a GPU, a
  wait of the stream on which training computes is one.
- Sends and receives that torch coalesces, as torch.distributed.pipelining does with NCCL, count as one communication.
- A DDP model gets its hook at the first forward pass. Its broadcast of buffers, which C++ code makes, counts as one
  communication.

Communications of tensors on a GPU begin and end on the GPU's timeline. NCCL's futures are done, and wait() on NCCL's
work returns, when the work is queued. Both make the current stream wait for the work, so the end is marked on that
stream.

Without run(), the engine never sees functional collectives (DTensor). It never sees backends used without a
ProcessGroup, compiled code, the content of CUDA graphs, and DDP's map of unused parameters.

This module replaces methods of classes, not functions of modules, because torch compares some of its functions by
identity (P2POp, coalescing).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from .._engine import Engine, Error
from ._gradients import place
from ._group_state import state

log = logging.getLogger("ckptengine")

CHANNELS_MAX = 8

# Methods of ProcessGroup that return a Work. Versions of torch have different ones.
_METHODS = (
    "allreduce allreduce_coalesced reduce broadcast allgather _allgather_base all_gather_single allgather_coalesced "
    "allgather_into_tensor_coalesced all_gather_single_coalesced gather scatter reduce_scatter _reduce_scatter_base "
    "reduce_scatter_single reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced alltoall alltoall_base "
    "all_to_all_single send recv recv_anysource barrier"
).split()


def _gpu_of(value: Any) -> torch.device | None:
    """The GPU of the first GPU tensor in the arguments of a collective, or None."""
    if isinstance(value, torch.Tensor):
        return _gpu_of(value.device)
    if isinstance(value, torch.device):
        return value if value.type == "cuda" else None
    if isinstance(value, (list, tuple)):
        return next((gpu for gpu in map(_gpu_of, value) if gpu is not None), None)
    return None


def _is_waited_for(arguments: tuple, options: dict[str, Any]) -> bool:
    """Whether the arguments of a collective say that the caller waits for it at once."""
    how = options.get("opts", arguments[-1] if arguments else None)
    return getattr(how, "asyncOp", None) is False


class _Open:
    """A communication that has begun. end() ends it; further calls do nothing. Any thread may call end(). With a `gpu`,
    begin and end are marked on the stream that is current on this GPU at that moment.

    The caller waits for the communication between begin_waiting() and end_waiting(). That is a bubble: on the training
    thread with tensors in host memory, and on any thread with tensors on a GPU, because the engine knows the stream on
    which training computes."""

    __slots__ = ("_channel", "_gpu", "_open", "_owner", "_round", "_waits_where")

    def __init__(self, owner: Communication, channel: int, gpu: torch.device | None) -> None:
        self._owner = owner
        self._channel = channel
        self._gpu = gpu
        self._round = owner._round
        self._waits_where: tuple[int, ...] | None = None  # where the bubble is marked; None: there is none
        self._open = owner._tell("comm_begin", *self._where())

    def end(self, *_: object) -> None:
        with self._owner._lock:
            still_open, self._open = self._open, False
            if still_open and self._round == self._owner._round:
                self._owner._tell("comm_end", *self._where())

    def drop(self) -> None:
        """Nobody waits for this communication any more."""
        self.end_waiting()
        self.end()

    def begin_waiting(self) -> None:
        if self._waits_where is not None or (self._gpu is None and threading.get_ident() != self._owner._thread):
            return
        where = self._stream()
        if self._owner._tell("bubble_begin", *where):
            self._waits_where = where

    def end_waiting(self) -> None:
        where, self._waits_where = self._waits_where, None
        if where is not None:
            self._owner._tell("bubble_end", *where)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which the caller waits for this communication."""
        self.begin_waiting()
        try:
            yield
        finally:
            self.end_waiting()

    @property
    def is_on_gpu(self) -> bool:
        return self._gpu is not None

    def _stream(self) -> tuple[int, ...]:
        return () if self._gpu is None else (torch.cuda.current_stream(self._gpu).cuda_stream,)

    def _where(self) -> tuple[int, ...]:
        return (self._channel, *self._stream())


class Communication:
    """Watches communications from construction to close(). close() undoes everything except DDP's hooks, which cannot
    be removed: they go on to compute what DDP would compute without them. When the engine is garbage-collected, the
    object closes itself. If it cannot tell the engine something, no method raises."""

    def __init__(self, engine: Engine, *, patch: bool = False) -> None:
        self._patches = patch
        self._round = 0  # how often forget() was called
        self._thread = threading.get_ident()  # the training thread: the one that made this object
        self._engine: Callable[[], Engine | None] = weakref.ref(engine)
        self._lock = threading.RLock()  # reentrant, because garbage collection under the lock may call end()
        self._channels: dict[str, int] = {}  # by name of the process group
        self._waited_for: weakref.WeakKeyDictionary[Any, _Open] = weakref.WeakKeyDictionary()
        self._coalesced: dict[dist.ProcessGroup, _Open] = {}  # of groups that coalesce communications now
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()  # DDP models that were looked at
        self._replaced: list[tuple[type, str, Any, Any]] = []
        if patch:
            self._replace_methods()
        weakref.finalize(engine, self.close).atexit = False

    def place(self, modules: Iterable[torch.nn.Module]) -> None:
        """Places a hook in the DDP models among `modules`. With `patch`, other models get a hook at their first forward
        pass that is not compiled. That is late on purpose: a model takes only one hook, and a hook of the model's owner
        has priority."""
        for module in modules:
            for part in module.modules():
                if isinstance(part, torch.nn.parallel.DistributedDataParallel):
                    self._place_in(part)

    def close(self) -> None:
        with self._lock:
            self._engine = lambda: None
        for owner, name, original, ours in reversed(self._replaced):
            # If somebody replaced the method later, it may call ours, which does nothing now.
            if owner.__dict__.get(name) is ours:
                setattr(owner, name, original)
        self._replaced.clear()

    @property
    def may_watch_groups(self) -> bool:
        """Whether replaceable groups may tell this object what they communicate. Otherwise it sees that already."""
        return not self._patches

    def begin(self, group: dist.ProcessGroup, tensors: Any) -> _Open | None:
        """As mark(). Returns None if the group itself marks what it communicates."""
        return None if state.watcher is self and state.has(group) else self.mark(group, tensors)

    def forget(self) -> None:
        """Communications that have begun until now have no end any more. Call it before the engine rejoins the job."""
        with self._lock:
            self._round += 1

    def mark(self, group: dist.ProcessGroup, tensors: Any) -> _Open:
        """Marks the begin of a communication of this group. Call end() of the result to mark its end."""
        name = group.group_name
        with self._lock:
            channel = self._channels.setdefault(name, min(len(self._channels), CHANNELS_MAX - 1))
        return _Open(self, channel, _gpu_of(tensors))

    def mark_call(self, group: dist.ProcessGroup, arguments: tuple, options: dict[str, Any]) -> _Open:
        """As mark(), for a method of the group that is about to be called with these arguments. On a GPU, NCCL runs a
        communication on the current stream if the caller waits for it at once. So this stream waits from the begin."""
        opened = self.mark(group, arguments)
        if opened.is_on_gpu and _is_waited_for(arguments, options):
            opened.begin_waiting()
        return opened

    # ---- inside ----

    def _replace_methods(self) -> None:
        for name in _METHODS:
            if hasattr(dist.ProcessGroup, name):
                self._replace(dist.ProcessGroup, name, self._counted)
        self._replace(dist.ProcessGroup, "_start_coalescing", self._starting_to_coalesce)
        self._replace(dist.ProcessGroup, "_end_coalescing", self._coalescing)
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
        """Calls the engine. Returns False if the engine is gone or raises. It can only raise if a restore() came in the
        middle of a communication: then it did not see the begin, so the end does not count."""
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
            if self._engine() is None or group in self._coalesced:
                return original(group, *arguments, **options)
            opened = self.mark_call(group, arguments, options)
            try:
                work = original(group, *arguments, **options)
            except BaseException:
                opened.drop()
                raise
            self._end_with(work, opened, waited_for=_is_waited_for(arguments, options))
            return work

        return call

    def _starting_to_coalesce(self, original: Callable) -> Callable:
        def start(group: dist.ProcessGroup, device: torch.device) -> None:
            original(group, device)
            if self._engine() is not None:
                self._coalesced[group] = self.mark(group, device)

        return start

    def _coalescing(self, original: Callable) -> Callable:
        """The Work of all that was coalesced has no future."""

        def end(group: dist.ProcessGroup, device: torch.device) -> Any:
            opened = self._coalesced.pop(group, None)
            try:
                work = original(group, device)
            except BaseException:
                if opened is not None:
                    opened.end()
                raise
            if opened is not None:
                self._end_with(work, opened, waited_for=True)
            return work

        return end

    def _end_with(self, work: Any, opened: _Open, waited_for: bool) -> None:
        if work is None:  # the backend has waited
            opened.drop()
            return
        self._waited_for[work] = opened
        if not waited_for:
            try:
                work.get_future().add_done_callback(opened.end)
                return
            except RuntimeError:  # a Work without a future
                pass
        # If nobody waits for the work, the communication ends when the Work object is destroyed.
        weakref.finalize(work, opened.drop).atexit = False

    def _waiting(self, original: Callable) -> Callable:
        def wait(work: Any, *arguments: Any, **options: Any) -> Any:
            opened = self._waited_for.get(work)
            if opened is None:
                return original(work, *arguments, **options)
            try:
                with opened.waiting():
                    return original(work, *arguments, **options)
            finally:
                self._waited_for.pop(work, None)
                opened.end()

        return wait

    def _broadcasting(self, original: Callable) -> Callable:
        def broadcast(model: Any, *arguments: Any, **options: Any) -> Any:
            opened = self.mark(model.process_group, arguments)
            try:
                return original(model, *arguments, **options)
            finally:
                opened.end()

        return broadcast

    def _forward(self, original: Callable) -> Callable:
        def forward(model: Any, *arguments: Any, **options: Any) -> Any:
            # Keep this out of compiled code.
            if not torch.compiler.is_compiling() and self._engine() is not None:
                self._place_in(model)
            return original(model, *arguments, **options)

        return forward

    def _place_in(self, model: Any) -> None:
        if model in self._models:
            return
        self._models.add(model)
        # With `patch`, the replaced all_reduce marks the communication, so the hook needs no listener.
        why_not = place(model, None if self._patches else self)
        if not why_not:
            return
        log.warning(
            "the engine cannot see when a DistributedDataParallel model reduces gradients (%s), so checkpoint traffic "
            "may run at the same time. To avoid that, call Engine.comm_begin() and comm_end() around the reduction, or "
            "give communication='patch' if the reduction goes through torch.distributed",
            why_not,
        )
