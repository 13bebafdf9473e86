"""The class of replaceable groups (groups.py), and of their communications."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._engine import Error, Status
from . import _alone, _internals, _sockets
from ._group_state import Interrupted, state

log = logging.getLogger("ckptengine")

_OPENING_S = 60.0  # for ranks that are there to connect to each other
_POLL_MAX_S = 0.05
_STEP = timedelta(milliseconds=100)


class _Work(dist.Work):
    """A communication. If it fails while groups are guarded, its future is done, with a result that means nothing.

    `polls`: an interruption ends wait() even if the communication does not end. That is for gloo: sometimes it does not
    notice that a connection was shut during a send, and waits until the group's timeout.

    `mark`: the mark of this communication, or None. It ends with the communication's future or with wait(), whichever
    is first. Without a future, it ends with this object at the latest."""

    def __init__(self, inner: Any, outputs: list[torch.Tensor], *, polls: bool = False, mark: Any = None) -> None:
        super().__init__()
        self._mark = mark
        self._inner = inner  # None: it is done already
        self._outputs = outputs
        self._polls = polls
        self._future: Any = None
        self._lock = threading.Lock()
        self._is_settled = False  # the future has its result, or is about to get it

        if mark is not None and self._has_future():
            self._inner.get_future().add_done_callback(mark.end)
        elif mark is not None:
            weakref.finalize(self, mark.drop).atexit = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._inner is None:
            return True
        if self._mark is None:
            return self._wait(timeout)
        try:
            with self._mark.waiting():
                return self._wait(timeout)
        finally:
            self._mark.end()

    def _wait(self, timeout: timedelta | None) -> bool:
        try:
            if timeout:
                return self._inner.wait(timeout)
            if self._polls:
                return self._wait_in_steps() if self._has_future() else self._wait_in_thread()
            return self._inner.wait()
        except RuntimeError as error:
            state.fail(error)
            state.raise_or_go_on(error)
            return True

    def _has_future(self) -> bool:
        try:
            self._inner.get_future()
        except RuntimeError:
            return False
        return True

    def _wait_in_thread(self) -> bool:
        """Waits on a thread, for communications whose wait() has no timeout, or has one that closes the connections:
        gloo's sends and receives, and those that consist of several works."""
        result: list[Any] = []
        is_done = threading.Event()

        def wait() -> None:
            try:
                result.append(self._inner.wait())
            except RuntimeError as error:
                result.append(error)
            is_done.set()

        threading.Thread(target=wait, name="ckpt-wait", daemon=True).start()
        while not is_done.wait(_STEP.total_seconds()):
            state.raise_if_interrupted()
        if isinstance(result[0], RuntimeError):
            raise result[0]
        return result[0]

    def _wait_in_steps(self) -> bool:
        while not state.is_interrupted:
            try:
                return self._inner.wait(_STEP)
            except RuntimeError:
                if self._inner.is_completed():
                    return self._inner.wait()
        raise Interrupted(state.why_not())

    def get_future(self) -> Any:
        if self._future is None:
            self._future = torch.futures.Future()
            self._settle_future()
        return self._future

    def _settle_future(self) -> None:
        try:
            inner = None if self._inner is None else self._inner.get_future()
        except RuntimeError:  # this communication has no future
            self.wait()
            inner = None
        if inner is None:
            self.settle(self._outputs)
            return
        state.works.add(self)
        inner.add_done_callback(self._take)
        if state.is_interrupted:
            self.settle()

    def _take(self, inner: Any) -> None:
        """Takes the result from the library's future. Runs on a thread of the library. Never lets our future fail,
        because DDP does not survive that."""
        try:
            value = inner.value()
        except Exception as error:
            state.fail(error)
            value = self._outputs
        self.settle(value)

    def settle(self, value: Any = None) -> None:
        """Gives the future its result, once. Without a value, the result means nothing. Any thread may call it."""
        with self._lock:
            if self._is_settled:
                return
            self._is_settled = True
        self._future.set_result(self._outputs if value is None else value)

    def is_completed(self) -> bool:
        return self._inner is None or self._inner.is_completed()

    def is_success(self) -> bool:
        return self._inner is None or self._inner.is_success()

    def exception(self) -> Any:
        return None if self._inner is None else self._inner.exception()

    def result(self) -> list[torch.Tensor]:
        return self._outputs if self._inner is None else self._inner.result()

    def synchronize(self) -> None:
        if self._inner is not None:
            self._inner.synchronize()

    def block_current_stream(self) -> None:
        if self._inner is not None:
            self._inner.block_current_stream()

    def source_rank(self) -> int:
        return 0 if self._inner is None else self._inner._source_rank()

    def _source_rank(self) -> int:
        return self.source_rank()


class Group(dist.ProcessGroup):
    """A replaceable group. torch makes it for the backends ckpt:gloo and ckpt:nccl."""

    def __init__(self, kind: str, store: Any, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self.kind = kind
        self._store, self._rank, self._size = store, rank, size
        self._timeout, self._name, self._description = timeout, name, ""
        self._inner: dist.ProcessGroup | None = None
        self._here: set[_sockets.Address] = set()  # where this rank listens for this group, and where the others do
        self._there: set[_sockets.Address] = set()

    # ---- the connections ----

    def _open(self, prefix: str) -> None:
        store = dist.PrefixStore(prefix, self._store)
        self._meet(store, "ready", b"1")
        before = _sockets.listening()
        make = _internals.make_gloo if self.kind == "gloo" else _internals.make_nccl
        opening = min(self._timeout, timedelta(seconds=_OPENING_S))
        inner = make(store, self._rank, self._size, opening, self._name)
        _internals.set_timeout(inner, self._timeout)
        if self.kind == "gloo":
            self._here = _sockets.listening() - before
            told = self._meet(store, "listens", json.dumps(sorted(self._here)).encode())
            self._there = {
                tuple(address) for rank, text in told.items() if rank != self._rank for address in json.loads(text)
            }
        self._inner = inner

    def _meet(self, store: Any, key: str, value: bytes) -> dict[int, bytes]:
        """Sends `value` to all ranks of the group through the store, and returns all ranks' values. Waits for all
        ranks, at most the group's timeout. Raises Interrupted if the groups are interrupted."""
        keys = [f"{key}/{rank}" for rank in range(self._size)]
        store.set(keys[self._rank], value)
        begun_s = time.monotonic()
        while not store.check(keys):  # wait() could not be interrupted
            waited_s = time.monotonic() - begun_s
            state.raise_if_interrupted()
            state.raise_if_started_anew()
            if waited_s > self._timeout.total_seconds():
                absent = [rank for rank in range(self._size) if not store.check([keys[rank]])]
                raise Error(
                    Status.TIMEOUT,
                    f"ranks {absent} have not connected to process group '{self._name}' within {waited_s:.0f} s; see "
                    "whether these ranks run, and what they wait for",
                )
            time.sleep(min(_POLL_MAX_S, waited_s / 10))
        return dict(enumerate(store.multi_get(keys)))

    def _interrupt(self) -> None:
        inner = self._inner
        if inner is None:
            return
        if self.kind == "gloo":
            _sockets.shut(self._here, self._there)
        else:
            inner.abort()

    def _let_go(self) -> dist.ProcessGroup | None:
        inner, self._inner = self._inner, None
        if inner is not None:
            with contextlib.suppress(RuntimeError, AttributeError):
                self._timeout = _internals.timeout_of(inner)  # somebody may have changed it
        return inner

    # ---- what torch calls ----

    def _communicate(self, name: str, arguments: tuple, options: dict[str, Any]) -> Any:
        if state.is_open:
            mark = None if state.watcher is None else state.watcher.mark_call(self, arguments, options)
            try:
                work = getattr(self._inner, name)(*arguments, **options)
            except BaseException as error:
                if mark is not None:
                    mark.drop()
                if state.is_open or not isinstance(error, RuntimeError):
                    raise  # wrong use
                state.raise_or_go_on(error)
            else:
                _note(name)
                if work is None and mark is not None:  # the backend has waited
                    mark.drop()
                if not state.guarded or work is None:
                    return work
                return _Work(work, _outputs(arguments), polls=self.kind == "gloo", mark=mark)
        elif state.is_closed:
            if not state.guarded and name != "barrier" and not _is_of_torch():
                raise RuntimeError(
                    f"this process has taken the place of an earlier one, and gets no answer ({name}) before "
                    "ckptengine.torch.run() lets it join the others; communicate within the training function"
                )
            if not _alone.answer(name, arguments, options, self._rank, self._size):
                state.unanswered = state.unanswered if state.guarded else name
        else:
            state.raise_or_go_on(None)
        return _Work(None, _outputs(arguments))

    def _get_backend(self, device: torch.device) -> Any:
        if self._inner is None:
            raise RuntimeError(f"process group '{self._name}' is closed and has no backend; call reopen() first")
        return self._inner._get_backend(device)

    @property
    def _device_types(self) -> list[torch.device]:
        return _internals.devices_of(self.kind)

    def _get_backend_name(self) -> str:
        return self.kind  # SyncBatchNorm asks what gloo lacks

    def getBackendName(self) -> str:
        return f"ckpt:{self.kind}"  # C++ asks: if it is one of torch's, it looks for that backend

    name = getBackendName

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def get_group_store(self) -> Any:
        return self._store

    def _set_group_desc(self, text: str) -> None:
        self._description = text

    def _start_coalescing(self, device: torch.device) -> None:
        if self._inner is not None:
            self._inner._start_coalescing(device)

    def _end_coalescing(self, device: torch.device) -> Any:
        return None if self._inner is None else self._inner._end_coalescing(device)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout
        if self._inner is not None:
            _internals.set_timeout(self._inner, timeout)

    def abort(self) -> None:
        self._interrupt()

    def shutdown(self) -> None:
        """torch calls this in destroy_process_group()."""
        state.forget(self)

    def __repr__(self) -> str:
        return f"<ckpt:{self.kind} group '{self._name}', rank {self._rank} of {self._size}>"


def _method(name: str) -> Callable[..., Any]:
    def call(self: Group, *arguments: Any, **options: Any) -> Any:
        return self._communicate(name, arguments, options)

    call.__name__ = name
    return call


for _name in _internals.COLLECTIVES:
    setattr(Group, _name, _method(_name))


def _outputs(arguments: tuple) -> list[torch.Tensor]:
    return list(_alone.tensors_in(arguments[0])) if arguments else []


# Modules whose frames lie between the caller of a communication and a group.
_BETWEEN = ("ckptengine.", "torch.distributed.distributed_c10d", "torch.distributed.c10d_logger")


def _is_of_torch() -> bool:
    """Whether a part of torch (a model, a device mesh) began this communication, not the program itself."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_BETWEEN):
            return module.startswith("torch.")
        frame = frame.f_back
    return False


_noted: list[str] = []  # the first communication of which _note() has warned


def _note(name: str) -> None:
    """Warns once if the program communicates outside of run(), because a process that joins later cannot do that."""
    if not state.guarded and not _noted and name != "barrier" and not _is_of_torch():
        _noted.append(name)
        log.warning(
            "the program communicates (%s) outside of ckptengine.torch.run(). After a failure, a process that replaces "
            "this one gets no answer there. Communicate within the training function",
            name,
        )


def make(kind: str, options: Any) -> Group:
    """Makes a group of this kind for torch. `options`: torch's _DistributedBackendOptions."""
    group = Group(kind, options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
    if not options.global_ranks_in_group:  # the default group
        state.begin(group, options.store)
    state.add(group)
    return group
