"""Process groups of torch whose connections can be made anew, while the groups, and all that holds them (models, device
meshes), stay as they are. Backends "ckpt:gloo" and "ckpt:nccl":

    torch.distributed.init_process_group("ckpt:gloo")

They communicate as "gloo" and "nccl" do, bit for bit. After a failure run() calls interrupt(), close() and reopen().
Call these only if you do not use run().

All groups of a process are in the same state:

    open         They communicate.
    failed       A communication has failed, e.g. because a peer has gone.
    interrupted  interrupt() was called: whoever waits for a communication goes on.
    closed       They answer themselves, as if all ranks had sent what this rank sends. So a rank that takes the place
                 of another can build its model and warm up.

A process begins with open groups, or with closed ones if its rank was started before with the same store. When groups
have failed or were interrupted, a communication raises Interrupted. Within a backward pass it returns garbage instead,
so that the pass ends: call check() before you use gradients. Outside of guard(), a failed communication raises what it
would raise without this module.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._engine import Error, Halted, Status
from . import _alone, _internals, _sockets

log = logging.getLogger("ckptengine")

_OPENING_S = 60.0  # for ranks that are there to connect to each other
_CLOSING_S = 30.0  # for communications to end whose connections are shut
_POLL_MAX_S = 0.05
_START = "start"  # the prefix under which groups are opened first


class Interrupted(Halted):
    """Training was interrupted, because the job is halted or a communication has failed. Let it through: run() restores
    the state, and calls the training function again."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.HALTED, message)


class _Work(dist.Work):
    """A communication. If it fails while groups are guarded, its future is done with garbage."""

    def __init__(self, inner: Any, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._inner = inner  # None: it is done already
        self._outputs = outputs
        self._future: Any = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._inner is None:
            return True
        try:
            return self._inner.wait() if not timeout else self._inner.wait(timeout)
        except RuntimeError as error:
            _state.fail(error)
            _state.raise_or_go_on(error)
            return True

    def get_future(self) -> Any:
        if self._future is None:
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Any:
        if self._inner is not None:
            try:
                return self._inner.get_future().then(self._settle)
            except RuntimeError:  # this communication has no future
                self.wait()
        future = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    def _settle(self, future: Any) -> Any:
        """Runs on a thread of the communication library. DDP does not survive futures that fail."""
        try:
            return future.value()
        except Exception as error:
            _state.fail(error)
            return self._outputs

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
    """A replaceable group. torch makes it, by the names of its backends."""

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
        """Tells all ranks of the group `value`, and returns theirs. Ends when the groups are interrupted."""
        keys = [f"{key}/{rank}" for rank in range(self._size)]
        store.set(keys[self._rank], value)
        begun_s = time.monotonic()
        while not store.check(keys):  # wait() could not be interrupted
            waited_s = time.monotonic() - begun_s
            _state.raise_if_interrupted()
            _state.raise_if_started_anew()
            if waited_s > self._timeout.total_seconds():
                absent = [rank for rank in range(self._size) if not store.check([keys[rank]])]
                raise Error(
                    Status.TIMEOUT,
                    f"ranks {absent} of process group '{self._name}' have not come within {waited_s:.0f} s; see what holds "
                    "them up",
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
        if _state.is_open:
            try:
                work = getattr(self._inner, name)(*arguments, **options)
            except RuntimeError as error:
                if _state.is_open:
                    raise  # wrong use
                _state.raise_or_go_on(error)
            else:
                _state.note(name)
                return _Work(work, _outputs(arguments)) if _state.guarded and work is not None else work
        elif _state.is_closed:
            if not _state.guarded and name != "barrier" and not _is_of_torch():
                raise RuntimeError(
                    f"this process has taken the place of an earlier one, and gets no answer ({name}) before "
                    "ckptengine.torch.run() lets it join the others; communicate within the training function"
                )
            if not _alone.answer(name, arguments, options, self._rank, self._size):
                _state.unanswered = _state.unanswered if _state.guarded else name
        else:
            _state.raise_or_go_on(None)
        return _Work(None, _outputs(arguments))

    def _get_backend(self, device: torch.device) -> Any:
        if self._inner is None:
            raise RuntimeError(f"process group '{self._name}' is closed: it has no backend now")
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
        """torch calls it in destroy_process_group()."""
        _state.forget(self)

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


# Modules between whoever communicates and a group.
_BETWEEN = ("ckptengine.", "torch.distributed.distributed_c10d", "torch.distributed.c10d_logger")


def _is_of_torch() -> bool:
    """Whether a communication was begun by a part of torch (a model, a device mesh), and not by the program itself."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(_BETWEEN):
            return module.startswith("torch.")
        frame = frame.f_back
    return False


class _State:
    """Of all replaceable groups of this process. Any thread may call interrupt() and fail(), the others belong to the
    training thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: list[Group] = []
        self._prefix = ""
        self._store: Any = None  # of the default group
        self._ranks = 0
        self._reason = ""  # why they were interrupted
        self._failure = ""  # the first communication that failed
        self.failures = 0
        self.is_closed = False
        self.is_open = True  # neither closed, nor failed, nor interrupted
        self.guarded = False
        self._noted = False
        self.unanswered = ""  # a communication in closed groups that only another rank could have answered

    # ---- making groups ----

    def make(self, kind: str, options: Any) -> Group:
        group = Group(kind, options.store, options.group_rank, options.group_size, options.timeout, options.group_id)
        if not options.global_ranks_in_group:  # the default group
            self._groups.clear()
            # A rank that starts again finds the number of its first process. The others may be training.
            self.is_closed = options.store.add(f"starts/{group.rank()}", 1) > 1
            self._store, self._ranks = options.store, group.size()
            self._reason = self._failure = self.unanswered = ""
            self._prefix = _START
            self._judge()
        if not self.is_closed:
            self.raise_if_interrupted()
            group._open(self._prefix)
        self._groups.append(group)
        return group

    def forget(self, group: Group) -> None:
        if group in self._groups:
            self._groups.remove(group)
        _drop([group._let_go()])

    # ---- interruptions ----

    def _judge(self) -> None:
        self.is_open = not (self.is_closed or self._reason or self._failure)

    def fail(self, error: BaseException) -> None:
        if not self.guarded:
            return
        with self._lock:
            self.failures += 1
            if not self._failure and not self._reason and not self.is_closed:
                self._failure = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                log.warning("a communication has failed, so this rank begins no update: %s", self._failure)
            self._judge()

    def interrupt(self, reason: str) -> None:
        with self._lock:
            if not self._reason:
                self._reason = reason or "interrupted"
            self._judge()
            groups = list(self._groups)
        for group in groups:
            group._interrupt()

    def why_not(self) -> str:
        return self._reason or (f"a communication has failed: {self._failure}" if self._failure else "")

    def raise_if_interrupted(self) -> None:
        if self._reason:
            raise Interrupted(self._reason)

    def raise_if_started_anew(self) -> None:
        """Groups that are opened for the first time wait for ranks that may have begun already, and have ended."""
        if self._prefix == _START:
            again = [rank for rank in range(self._ranks) if self._store.add(f"starts/{rank}", 0) > 1]
            if again:
                raise Error(
                    Status.SUPERSEDED,
                    f"ranks {again} have started anew before all ranks had begun; end this process, so that all begin "
                    "anew",
                )

    def raise_or_go_on(self, error: BaseException | None) -> None:
        """A communication did not succeed. Returns if it may have garbage for a result."""
        if not self.guarded and error is not None and not self._reason:
            raise error
        if not (self.guarded and _internals.in_backward()):
            raise Interrupted(self.why_not()) from error

    def close(self) -> None:
        self.interrupt("the groups are closed")
        _drop([group._let_go() for group in self._groups])
        with self._lock:
            self.is_closed, self._reason, self._failure, self.failures = True, "", "", 0
            self._judge()

    def reopen(self, prefix: str) -> None:
        if not self.is_closed or any(group._inner is not None for group in self._groups):
            self.close()
        self._prefix = prefix
        for group in self._groups:
            group._open(prefix)
        with self._lock:
            self.is_closed = False
            self._judge()
        self.raise_if_interrupted()

    def note(self, name: str) -> None:
        """Warns once of what a process that joins later cannot do."""
        if not self.guarded and not self._noted and name != "barrier" and not _is_of_torch():
            self._noted = True
            log.warning(
                "the program communicates (%s) outside of ckptengine.torch.run(): a process that takes the place of "
                "this one gets no answer there; communicate within the training function",
                name,
            )


def _drop(inner: list[dist.ProcessGroup | None]) -> None:
    """Ends connections and threads of groups. Waits until no communication uses a tensor any more."""
    live = [group for group in inner if group is not None]
    inner.clear()
    if not live:
        return
    thread = threading.Thread(target=live.clear, daemon=True)  # their destructors wait without a deadline
    thread.start()
    thread.join(_CLOSING_S)
    if thread.is_alive():
        raise Error(
            Status.TIMEOUT,
            f"communications have not ended {_CLOSING_S:.0f} s after their connections were shut; end this process",
        )


_state = _State()


# ---- the interface ----


def interrupt(reason: str) -> None:
    """Lets whoever waits for a communication go on, within milliseconds. Any thread may call it."""
    _state.interrupt(reason)


def close() -> None:
    """Ends all connections. Returns once no communication changes tensors any more. Raises Error if that takes long."""
    _state.close()


def reopen(prefix: str) -> None:
    """Connects all groups anew, in the order in which they were made. All ranks must give the same `prefix`, which must
    be new. Waits for the other ranks, at most for the timeout of a group. Raises Interrupted if interrupt() is called
    meanwhile, and Error."""
    _state.reopen(prefix)


def check() -> None:
    """Raises Interrupted if the groups were interrupted or a communication has failed: then results are garbage."""
    why = _state.why_not()
    if why:
        raise Interrupted(why)


def why_not() -> str:
    """Why check() raises. "" if it does not."""
    return _state.why_not()


def failures() -> int:
    """How many communications have failed since the groups were opened."""
    return _state.failures


def unanswered() -> str:
    """The communication in closed groups, while nothing was guarded, that only another rank could have answered. "" if
    there is none."""
    return _state.unanswered


def is_closed() -> bool:
    return _state.is_closed


@contextlib.contextmanager
def guard() -> Iterator[None]:
    """Context for training that calls check() before it uses results. Meanwhile failed communications have garbage for
    a result in a backward pass, and raise Interrupted otherwise."""
    before, _state.guarded = _state.guarded, True
    try:
        yield
    finally:
        _state.guarded = before


def _register() -> None:
    for kind in ("gloo", "nccl"):
        name = f"ckpt:{kind}"
        if name not in dist.Backend.backend_list:
            devices = list(dist.Backend.backend_capability[kind])
            make = lambda options, _, kind=kind: _state.make(kind, options)  # noqa: E731
            dist.Backend.register_backend(name, make, extended_api=True, devices=devices)


if not _internals.missing():
    _register()
