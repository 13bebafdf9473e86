"""One rank's engine: a thin, typed layer over the C ABI."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import NO_STREAM, Capture, DType, Memory, Protection, Stage, Status, Tier, byref
from ._options import Options

log = logging.getLogger("ckptengine")


class Error(RuntimeError):
    """A call failed. `status` says how; the text says what happened, why, and what to do."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message or status.name)
        self.status = status


@dataclass(frozen=True)
class Restored:
    """What restore() did. Times in milliseconds, sizes in bytes."""

    found: bool  # False: nothing is stored, a fresh start
    behind: bool  # a newer checkpoint was committed but is lost; `message` says so
    status_unknown: bool  # nodes that did not answer might know of a newer commit
    main_tier: Tier
    private_tier: Tier
    incarnation: int  # number of the current incarnation of the job, 1 is the first
    iteration: int  # -1 when not found
    next_iteration: int  # where the training loop goes on
    bytes: int
    fetch_ms: float
    load_ms: float
    message: str = ""


@dataclass(frozen=True)
class Stats:
    """Counters and the last measurements of an engine, as ckpt_stats_t explains them."""

    snapshots: int
    skipped: int
    discarded: int
    committed: int
    committed_iteration: int
    durable_iteration: int
    bytes_captured: int
    stall_ms: float
    capture_ms: float
    commit_ms: float
    gpu_staging_bytes: int


@dataclass(frozen=True)
class Health:
    """Whether the whole job is protected, as docs/protection.md explains it. Times in milliseconds."""

    state: Protection
    reason: str  # a word: "none", "rank_stopped", ...
    text: str  # why, for people; "" where there is nothing to say
    advice: str  # what to do
    since_ms: int  # so long the state has been the same
    at_risk_ms: int  # work since the newest commit
    at_risk_iterations: int
    allowed_ms: int  # without a commit, before the job is not protected
    committed_incarnation: int  # newest commit that is known of; 0: none
    committed_iteration: int  # -1: none
    copies_now: int
    copies_wanted: int
    parity_now: int
    parity_wanted: int
    node: str  # that holds commits up; "": none in particular
    rank: int  # likewise; -1

    def __str__(self) -> str:
        sentences = [f"the job is {self.state!s}" + (f": {self.text}" if self.text else ""), self.advice]
        if self.state is not Protection.PROTECTED:
            risk = f"{self.at_risk_iterations} iterations, {self.at_risk_ms / 1000:.1f} s of work are at risk"
            sentences.insert(1, risk)
        return ". ".join(sentence for sentence in sentences if sentence)


class Ticket:
    """One snapshot() call; true when the snapshot was taken. `status` is then OK, else SKIPPED or what went wrong;
    `message` says why. Any thread may use it as long as the engine is open."""

    __slots__ = ("_engine", "iteration", "message", "status")

    def __init__(self, engine: Engine, iteration: int, status: Status, message: str) -> None:
        self._engine = engine
        self.iteration = iteration
        self.status = status
        self.message = message

    @property
    def taken(self) -> bool:
        return self.status is Status.OK

    def __bool__(self) -> bool:
        return self.taken

    @property
    def skipped(self) -> bool:
        """All ranks skip this iteration, as earlier ones are not stored everywhere yet. No error."""
        return self.status is Status.SKIPPED

    @property
    def stage(self) -> Stage:
        """How far it has come; NONE when it was not taken, was dropped, or is forgotten by now."""
        return self._engine.stage(self.iteration) if self.taken else Stage.NONE

    def wait(self, stage: Stage = Stage.COMMITTED, timeout_ms: int = 10_000) -> bool:
        """Waits until this snapshot, or a newer one, has reached `stage`. False when it did not in time or never will;
        then `status` and `message` say why. A capture ends with before_update(): call that first."""
        if not self.taken:
            return False
        status, message = self._engine._wait(self.iteration, stage, timeout_ms)
        if status is Status.OK:
            return True
        self.message = message
        if status is not Status.TIMEOUT:
            self.status = status
        return False

    def __repr__(self) -> str:
        return f"Ticket(iteration={self.iteration}, status={self.status.name}, stage={self.stage.name})"


class Engine:
    """The engine of one rank.

    Options come as an `Options`, or as further arguments of the same names (docs/options.md), which count before it.
    Values become text by str(), in lower case where they are bool. What is not given is taken from the environment
    (CKPTENGINE_<KEY>), then from the file that the option `config` names.

    Close it, or use it in a `with` block: one that is only dropped gives up the capture that is under way.

    A stream is the handle of a CUDA stream as an integer, as `torch.cuda.Stream.cuda_stream` is; 0 is the legacy
    default stream. Name it where tensors are in GPU memory; leave it out where all are in host memory.

    Warnings and changes of the job's protection go to the logger "ckptengine".

    One thread at a time (the training thread), except Ticket, stage(), stats(), health(), comm_begin(), comm_end()
    and communication(). Registered memory is kept alive until it is moved, unregistered or the engine is closed. Every
    method raises Error on failure, except snapshot().
    """

    def __init__(
        self, options: Options | None = None, *, library: str | os.PathLike | None = None, **more: Any
    ) -> None:
        self._handle: int | None = None
        self._library = _abi.load_library(library)
        self._alive: dict[str, Any] = {}
        self._last_status = Status.OK
        given = (options.given() if options is not None else {}) | more
        pairs = [(_c_text(key), _c_text(_text_of(value))) for key, value in given.items() if value is not None]
        array = (_abi.COption * max(1, len(pairs)))(*pairs)
        handle = ctypes.c_void_p()
        self._check(self._library.ckpt_create(array, len(pairs), byref(handle)))
        self._handle = handle.value
        self._finalizer = weakref.finalize(self, _let_go, self._library, self._handle, self._alive)
        self._check(self._library.ckpt_on_health(self._handle, _log_health, None))
        self._check(self._library.ckpt_on_warning(self._handle, _log_warning, None))

    # ---- registration ----

    def register(self, name: str, buffer: Any, *, capture: Capture = Capture.OVERLAPPED) -> None:
        """Registers a writable, contiguous object with the buffer protocol: a numpy array, bytearray, array.array.
        The object is held, so that a bytearray cannot be resized while it is registered."""
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise Error(Status.INVALID, f"buffer '{name}' is {'read-only' if view.readonly else 'not contiguous'}")
        dtype = _dtype_of(view)
        address = ctypes.addressof(ctypes.c_char.from_buffer(view)) if view.nbytes else 0
        self.register_pointer(name, address, dtype, view.shape, capture=capture, owner=view)

    def register_pointer(
        self,
        name: str,
        address: int,
        dtype: DType,
        shape: Sequence[int],
        *,
        memory: Memory = Memory.HOST,
        capture: Capture = Capture.OVERLAPPED,
        owner: Any = None,
    ) -> None:
        """Registers contiguous memory in row-major order. `owner` is held as long as the memory is registered."""
        extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        tensor = _abi.CTensor(
            name=_c_text(name),
            data=address or None,
            shape=extents,
            ndim=len(shape),
            dtype=dtype,
            memory=memory,
            capture=capture,
        )
        self._check(self._library.ckpt_register_tensor(self._open(), byref(tensor)))
        self._alive[name] = owner

    def move(self, name: str, address: int, *, owner: Any = None) -> None:
        """Tells that a registered tensor is now at `address`. Not between snapshot() and before_update()."""
        self._check(self._library.ckpt_move_tensor(self._open(), _c_text(name), address or None))
        self._alive[name] = owner

    def unregister(self, name: str) -> None:
        """Forgets a tensor. Not between snapshot() and before_update()."""
        self._check(self._library.ckpt_unregister_tensor(self._open(), _c_text(name)))
        self._alive.pop(name, None)

    @property
    def registered(self) -> Iterable[str]:
        return self._alive.keys()

    # ---- restore ----

    def stored_layout(self) -> dict[str, Any]:
        """What an earlier incarnation left for this rank: {"found", "iteration", "incarnation", "main", "private"},
        the last
        two as {name: {"dtype", "shape", "data_offsets"}}. Every rank calls this or restore()."""
        text = ctypes.c_char_p()
        self._check(self._library.ckpt_stored_layout(self._open(), byref(text)))
        return json.loads(text.value or b"{}")

    def restore(self, stream: int | None = None) -> Restored:
        """Brings the newest checkpoint that every rank can get into the registered memory, after what is on `stream`.
        All ranks call it, once in each incarnation, before its first snapshot."""
        c = _abi.CRestored()
        self._check(self._library.ckpt_restore(self._open(), _c_stream(stream), byref(c)))
        behind, status_unknown = bool(c.behind), bool(c.status_unknown)
        return Restored(
            found=bool(c.found),
            behind=behind,
            status_unknown=status_unknown,
            main_tier=Tier(c.main_tier),
            private_tier=Tier(c.private_tier),
            incarnation=c.incarnation,
            iteration=c.iteration,
            next_iteration=c.next_iteration,
            bytes=c.bytes,
            fetch_ms=c.fetch_ms,
            load_ms=c.load_ms,
            message=(c.message or b"").decode("utf-8", "replace"),
        )

    # ---- per iteration ----

    def snapshot(self, iteration: int, stream: int | None = None) -> Ticket:
        """Starts the snapshot of `iteration`, after all of its updates, those on `stream` included. Never raises
        because a snapshot was skipped or failed: the ticket says so, and the log does. Raises Error (INVALID) for a
        wrong call."""
        status = Status(self._library.ckpt_snapshot(self._open(), iteration, _c_stream(stream)))
        message = "" if status is Status.OK else self._library.last_error()
        if status is Status.INVALID:
            raise Error(status, message)
        self._report(status, message)
        return Ticket(self, iteration, status, message)

    def before_update(self, streams: Sequence[int] = ()) -> bool:
        """Call it before the next change of the overlapped tensors. Blocks until they are captured. With tensors in GPU
        memory `streams` wait instead: name all that change them. Never raises because the capture failed; False
        then."""
        handles = (ctypes.c_void_p * len(streams))(*streams)
        status = Status(self._library.ckpt_before_update(self._open(), handles, len(streams)))
        if status is Status.OK:
            return True
        message = self._library.last_error()
        if status is Status.INVALID:
            raise Error(status, message)
        self._report(status, message)
        return False

    def discard(self) -> None:
        """Gives up the capture that snapshot() began and before_update() has not ended, which is never made known: for
        state that was changed too early. Without effect where none is pending."""
        self._check(self._library.ckpt_discard(self._open()))

    # ---- communication ----

    def comm_begin(self, channel: int = 0, stream: int | None = None) -> None:
        """A communication of training begins: checkpoint traffic keeps out of its way. Call comm_end() once for each,
        with the same channel; from any thread. Communications that run beside each other take different channels, 0 to
        7. Before restore() nothing happens.

        With `stream` it begins when the GPU gets to what is enqueued there next; with one in comm_end() it ends when
        the GPU has done what was enqueued there before. Name one in both or in neither."""
        self._check(self._library.ckpt_comm_begin(self._open(), _c_channel(channel), _c_stream(stream)))

    def comm_end(self, channel: int = 0, stream: int | None = None) -> None:
        """A communication of training has ended. Raises Error (INVALID) where none had begun."""
        self._check(self._library.ckpt_comm_end(self._open(), _c_channel(channel), _c_stream(stream)))

    @contextlib.contextmanager
    def communication(self, channel: int = 0, stream: int | None = None) -> Iterator[None]:
        """Around a communication of training: comm_begin() and, whatever happens in the block, comm_end()."""
        self.comm_begin(channel, stream)
        try:
            yield
        finally:
            self.comm_end(channel, stream)

    # ---- state ----

    def stage(self, iteration: int) -> Stage:
        """How far the snapshot of `iteration` has come."""
        stage = ctypes.c_int()
        self._check(self._library.ckpt_snapshot_stage(self._open(), iteration, byref(stage)))
        return Stage(stage.value)

    def stats(self) -> Stats:
        c = _abi.CStats()
        self._check(self._library.ckpt_stats(self._open(), byref(c)))
        return Stats(**{name: getattr(c, name) for name, _ in _abi.CStats._fields_ if name != "struct_size"})

    def health(self) -> Health:
        """Whether the job is protected, and if not, why. Any thread; does not wait. Changes are warnings of the logger
        "ckptengine", too."""
        c = _abi.CHealth()
        self._check(self._library.ckpt_health(self._open(), byref(c)))
        return _health_of(c)

    # ---- the end ----

    def close(self) -> None:
        """Ends the engine, waiting for a pending capture. The agent and all that was captured stay."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._finalizer.detach()
            self._library.ckpt_close(handle)
            self._alive.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inside ----

    def _open(self) -> int:
        if self._handle is None:
            raise Error(Status.INVALID, "the engine is closed")
        return self._handle

    def _check(self, status: int) -> None:
        if status != Status.OK:
            raise Error(Status(status), self._library.last_error())

    def _wait(self, iteration: int, stage: Stage, timeout_ms: int) -> tuple[Status, str]:
        status = Status(self._library.ckpt_wait(self._open(), iteration, stage, timeout_ms))
        return status, "" if status is Status.OK else self._library.last_error()

    def _report(self, status: Status, message: str) -> None:
        """Logs a failed snapshot, once per run of equal failures: a failure must not hide, nor fill the log."""
        if status not in (Status.OK, Status.SKIPPED) and status is not self._last_status:
            log.warning("snapshot failed (%s): %s", status.name, message)
        self._last_status = status


def _health_of(c: _abi.CHealth) -> Health:
    texts = {name: getattr(c, name).decode("utf-8", "replace") for name in ("node", "reason", "text", "advice")}
    numbers = {name: getattr(c, name) for name, _ in _abi.CHealth._fields_ if name not in texts}
    del numbers["struct_size"]
    return Health(**texts, **(numbers | {"state": Protection(c.state)}))


@_abi.HealthCallback
def _log_health(health: Any, _user: Any) -> None:
    """On a thread of the engine, at each change and once a minute while it lasts."""
    told = _health_of(health.contents)
    log.log(logging.INFO if told.state is Protection.PROTECTED else logging.WARNING, "%s", told)


@_abi.WarningCallback
def _log_warning(_warning: int, text: bytes, _user: Any) -> None:
    log.warning("%s", text.decode("utf-8", "replace"))


def _let_go(library: _abi.Library, handle: int, alive: dict[str, Any]) -> None:
    """Of an engine that nobody closed before it was collected or the program ended. What was being captured may have
    changed since, so it is given up. The registered memory, `alive`, outlives the engine that reads it."""
    library.ckpt_discard(handle)
    library.ckpt_close(handle)
    alive.clear()


def _text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _c_text(text: str) -> bytes:
    """UTF-8 for C, which would silently cut the text off at a null character."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Error(Status.INVALID, f"{text!r} is no UTF-8 ({error.reason}); name it otherwise") from None
    if 0 in data:
        raise Error(Status.INVALID, f"{text!r} holds a null character; leave it out")
    return data


def _c_stream(stream: int | None) -> int:
    return NO_STREAM if stream is None else stream


def _c_channel(channel: int) -> int:
    """As C takes it, to which ctypes would silently cut the number off."""
    if not 0 <= channel < 2**32:
        raise Error(Status.INVALID, f"channel {channel} is out of range; use 0 to 7")
    return channel


# Buffer formats (PEP 3118) whose size does not depend on the platform.
_FORMATS = {
    "?": DType.BOOL,
    "b": DType.I8,
    "B": DType.U8,
    "c": DType.U8,
    "h": DType.I16,
    "H": DType.U16,
    "e": DType.F16,
    "f": DType.F32,
    "d": DType.F64,
    "Zf": DType.C64,
}
_INTEGERS = {4: (DType.I32, DType.U32), 8: (DType.I64, DType.U64)}


def _dtype_of(view: memoryview) -> DType:
    code = view.format.lstrip("@=<")
    if code in _FORMATS:
        return _FORMATS[code]
    if code in ("i", "l", "q", "n", "I", "L", "Q", "N"):
        return _INTEGERS[view.itemsize][code.isupper()]
    raise Error(Status.INVALID, f"a buffer of format '{view.format}' has no element type that can be stored")
