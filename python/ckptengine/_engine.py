"""The engine of one rank: a thin, typed layer over the C API."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._abi import NO_STREAM, Capture, DType, Memory, Protection, Stage, Status, Tier, byref
from ._options import Options

log = logging.getLogger("ckptengine")

_PLACES = {
    Tier.NONE: "nowhere",
    Tier.LOCAL: "this node's memory",
    Tier.PEER: "a peer's memory",
    Tier.DECODED: "parity",
    Tier.PERSISTENT: "storage",
    Tier.LIVE: "its own tensors",
}


class Error(RuntimeError):
    """A call failed. `status` is the kind of failure. The text says what happened, why, and what to do."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message or status.name)
        self.status = status


class Halted(Error):
    """The job was halted, because some rank died or makes no progress (docs/jit.md). No update may begin any more: the
    engine captures the state as it is. Call rejoin() and restore(). Or close the engine, end the process, and start all
    ranks again."""


class NotProtected(RuntimeError):
    """snapshot() raises it if the job is not protected and the engine has `require_protected`. `health` is the
    verdict."""

    def __init__(self, health: Health) -> None:
        super().__init__(str(health))
        self.health = health


@dataclass(frozen=True)
class Restored:
    """What restore() did. Times are in milliseconds, sizes in bytes."""

    found: bool  # False: nothing is stored, so this is a fresh start
    behind: bool  # a newer checkpoint was committed and is lost; `message` names it
    status_unknown: bool  # nodes that did not answer may know of a newer commit; `message` names them
    main_tier: Tier  # where the main shard came from
    private_tier: Tier  # where the private shard came from
    incarnation: int  # which start of the job this is; the first is 1
    iteration: int  # the restored iteration; -1 if not found
    next_iteration: int  # where the training loop continues
    bytes: int  # bytes restored into the caller's memory
    fetch_ms: float  # time until this node's agent had all bytes and had verified them
    load_ms: float  # from then on, until they were in the caller's memory and verified
    message: str = ""  # what a person should know about this restore
    stored_world_size: int = 0  # number of ranks of the job that captured the checkpoint; 0 if not found
    adopted: bool = False  # this rank got rank 0's private shard, since none is stored for it (docs/elastic.md)

    def __str__(self) -> str:
        if not self.found:
            text = "nothing is stored: a fresh start at iteration 0"
        else:
            tiers = sorted({self.main_tier, self.private_tier})
            text = (
                f"restored iteration {self.iteration} from {' and '.join(_PLACES[tier] for tier in tiers)}: "
                f"{self.bytes / 2**20:.1f} MiB in {self.fetch_ms + self.load_ms:.0f} ms"
            )
        return f"{text}. {self.message[0].upper()}{self.message[1:]}" if self.message else text


@dataclass(frozen=True)
class Halt:
    """A halt that has frozen this rank."""

    captured: bool  # this rank's state of `iteration` is captured; False: it cannot be, and `text` says why
    incarnation: int  # that was halted
    iteration: int  # whose update this rank has finished last; -1 if none
    text: str  # for people

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Stats:
    """Counters and latest measurements of an engine. ckpt_stats_t in the C header explains each."""

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
    bubble_bytes: int
    compute_bytes: int
    update_bytes: int
    layered: int
    layered_late: int


@dataclass(frozen=True)
class Health:
    """The verdict whether the job is protected. docs/protection.md explains it. Times are in milliseconds."""

    state: Protection
    reason: str  # one word for programs: "none", "rank_stopped", ...
    text: str  # the reason, for people; "" if there is nothing to say
    advice: str  # what to do
    since_ms: int  # how long this state has lasted
    at_risk_ms: int  # training time since the newest commit, lost if the job fails now
    at_risk_iterations: int
    allowed_ms: int  # time without a commit after which the job is not protected
    committed_incarnation: int  # newest known commit; 0 if none
    committed_iteration: int  # its iteration; -1 if none
    copies_now: int  # newest commit: the fewest copies that any shard has
    copies_wanted: int
    parity_now: int  # newest commit: lost nodes that each parity group can still replace
    parity_wanted: int
    node: str  # the node that holds up commits; "" if no single one
    rank: int  # the rank that holds up commits; -1 if no single one
    suspicion: str = ""  # which ranks hold training up, for people (docs/jit.md)

    def __str__(self) -> str:
        verdict = f"the job is {self.state!s}" + (f": {self.text}" if self.text else "")
        sentences = [verdict, self.advice, self.suspicion]
        if self.state is not Protection.PROTECTED:
            risk = f"{self.at_risk_iterations} iterations, {self.at_risk_ms / 1000:.1f} s of work are at risk"
            sentences.insert(1, risk)
        return ". ".join(sentence for sentence in sentences if sentence)


class Ticket:
    """The result of snapshot(). A ticket is true if the snapshot was taken, or still waits for a slot. If it is false,
    `status` and `message` say why. before_update() may skip a snapshot that waits, and then makes the ticket false. Any
    thread may use a ticket while the engine is open."""

    __slots__ = ("__weakref__", "_engine", "iteration", "message", "status")

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
        """True if all ranks skip this iteration, because earlier snapshots are still being stored. This is no error."""
        return self.status is Status.SKIPPED

    @property
    def stage(self) -> Stage:
        """How far the snapshot has come. NONE if it was not taken, waits for a slot, was discarded, or is too old to be
        remembered."""
        return self._engine.stage(self.iteration) if self.taken else Stage.NONE

    def wait(self, stage: Stage = Stage.COMMITTED, timeout_ms: int = 10_000) -> bool:
        """Waits until this snapshot, or a newer one, has reached `stage`. Returns False if that takes longer than
        `timeout_ms`, or can never happen. `message` then says why. If it can never happen, `status` says why, too. Call
        before_update() first, because it finishes the capture. Only stage CAPTURING needs no before_update(): it is
        reached when the copy has begun."""
        if not self.taken:
            return False
        status, message = self._engine._wait(self.iteration, stage, timeout_ms)
        if status is Status.OK:
            return True
        self._failed(self.status if status is Status.TIMEOUT else status, message)
        return False

    def _failed(self, status: Status, message: str) -> None:
        self.status, self.message = status, message

    def __repr__(self) -> str:
        return f"Ticket(iteration={self.iteration}, status={self.status.name}, stage={self.stage.name})"


class Engine:
    """The engine of one rank.

    Options: give an `Options` object, or keyword arguments of the same names (docs/options.md), or both. Arguments
    override the object. An option that you do not give comes from the environment (CKPTENGINE_<OPTION>), or else from
    the file that the option `config` names.

    Close the engine, or use it in a `with` block. An engine that is collected without close() discards its pending
    capture.

    Streams: a stream is the handle of a CUDA stream as an integer, e.g. `torch.cuda.Stream.cuda_stream`. 0 is the
    legacy default stream. Pass a stream if any tensor is in GPU memory. Leave it out if all are in host memory.

    Logging: warnings and changes of the job's protection go to the logger "ckptengine".

    Threads: one thread at a time uses the engine, the training thread. Any thread may use Ticket, stage(), stats(),
    health(), wait_halt(), comm_begin(), comm_end() and communication().

    Memory: the engine holds a reference to the owner of registered memory until the tensor is moved or unregistered, or
    the engine is closed.

    Errors: every method raises Error if it fails. snapshot() and before_update() raise only for wrong use, and Halted.
    before_update() also raises if the GPU does not get to the update.

    Protection: with `require_protected`, snapshot() raises NotProtected while health() says that the job is not
    protected. It does not raise within `allowed_ms` of health() after restore(), so that the job has time for its first
    commit. Without `require_protected`, the engine logs a warning and training goes on.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        library: str | os.PathLike | None = None,
        require_protected: bool = False,
        **more: Any,
    ) -> None:
        self._require_protected = require_protected
        self._newest_taken = -1
        self._newest: weakref.ref[Ticket] | None = None  # its ticket
        self._restored_at = time.monotonic()
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
        """Registers a writable, contiguous object with the buffer protocol, e.g. a numpy array, bytearray or
        array.array. The engine holds the object, so a bytearray cannot be resized while it is registered."""
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            raise Error(
                Status.INVALID,
                f"buffer '{name}' cannot be registered: it is {'read-only' if view.readonly else 'not contiguous'}; "
                "register a writable, contiguous copy",
            )
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
        """Registers contiguous memory in row-major order. `shape` is in elements. The engine holds `owner` while the
        memory is registered, so that the memory is not freed."""
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
        """Tells the engine a registered tensor's new address. Not between snapshot() and before_update()."""
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

    def take_shards(self) -> None:
        """Says that this rank can take over shards that other ranks captured, see ckpt_take_shards() in ckptengine.h.
        Call it before stored_layout() and restore()."""
        self._check(self._library.ckpt_take_shards(self._open()))

    def load_taken(self, shard: str, address: int, size_bytes: int) -> None:
        """Copies a shard that this rank takes over, or one of its own, to host memory at `address`, and verifies it.
        `size_bytes` is the shard's length. Call it between stored_layout() and restore(), which then loads nothing."""
        self._check(self._library.ckpt_load_taken(self._open(), _c_text(shard), address or None, size_bytes))

    def stored_layout(self) -> dict[str, Any]:
        """Returns the layout of the checkpoint that restore() would restore for this rank: {"found", "iteration",
        "incarnation", "main", "private"}. "main" and "private" are {name: {"dtype", "shape", "data_offsets"}}. Every
        rank must call this function or restore(), because each waits for all ranks. "shards" has the names of the two
        shards. If the rank takes over shards, "taken" instead has the layout of each, by the shard's name. It may
        return while the bytes are still coming from other nodes. If the last copy is lost before they are here,
        restore() raises Error (LOST), or restores an older checkpoint that has the same layout: compare
        `iteration`."""
        text = ctypes.c_char_p()
        self._check(self._library.ckpt_stored_layout(self._open(), byref(text)))
        return json.loads(text.value or b"{}")

    def restore(self, stream: int | None = None) -> Restored:
        """Restores the newest checkpoint that every rank can get into the registered memory, after the work that is
        already on `stream`. Every rank calls it once in each incarnation, before its first snapshot."""
        c = _abi.CRestored()
        self._check(self._library.ckpt_restore(self._open(), _c_stream(stream), byref(c)))
        behind, status_unknown = bool(c.behind), bool(c.status_unknown)
        result = Restored(
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
            stored_world_size=c.stored_world_size,
            adopted=bool(c.adopted),
        )
        log.log(logging.WARNING if result.message else logging.INFO, "%s", result)
        self._restored_at = time.monotonic()
        return result

    # ---- per iteration ----

    def snapshot(
        self, iteration: int, stream: int | None = None, *, wait: bool = False, timeout_ms: int = 30_000
    ) -> Ticket:
        """Starts the snapshot of `iteration` and returns at once. Call it after all updates of that iteration. The
        snapshot captures the state after the work that is already on `stream`. A skipped or failed snapshot does not
        raise: the ticket says so, and failures are logged. If no slot is free, the copy begins as soon as one is. If
        none becomes free in time, before_update() skips the snapshot. It is also skipped in iterations that the option
        `capture_every` leaves out. Raises Error (INVALID) for wrong use, and Halted as before_update() does.

        `wait` is for a job that is about to end. With it, this function first waits until the previous snapshot is
        committed, at most half of `timeout_ms`, so that this one is not skipped. Then it takes this snapshot, calls
        before_update(), and waits until the snapshot is committed. All of this ends within `timeout_ms`. The ticket's
        stage says whether the snapshot is committed. Every rank must call this for the same iteration. The snapshot is
        taken whatever `capture_every` says."""
        deadline = time.monotonic() + timeout_ms / 1000

        def left_ms() -> int:
            return max(0, int(1000 * (deadline - time.monotonic())))

        if wait and self._newest_taken >= 0:
            self.before_update([] if stream is None else [stream])
            # Half: if another rank skipped that snapshot, it is never committed.
            self._wait(self._newest_taken, Stage.COMMITTED, left_ms() // 2)
        if wait:
            self.capture_next()
        ticket = self._snapshot(iteration, stream)
        if wait and ticket.taken:
            ticket.wait(Stage.CAPTURING, left_ms())
            self.before_update([] if stream is None else [stream])
            ticket.wait(Stage.COMMITTED, left_ms())
        return ticket

    def _snapshot(self, iteration: int, stream: int | None) -> Ticket:
        status = Status(self._library.ckpt_snapshot(self._open(), iteration, _c_stream(stream)))
        message = "" if status is Status.OK else self._library.last_error()
        if status in (Status.INVALID, Status.HALTED):
            raise _error_of(status, message)
        self._report(status, message)
        ticket = Ticket(self, iteration, status, message)
        if ticket.taken:
            self._newest_taken, self._newest = iteration, weakref.ref(ticket)
        if self._require_protected:
            self._raise_if_not_protected()
        return ticket

    def _raise_if_not_protected(self) -> None:
        health = self.health()
        trained_ms = 1000 * (time.monotonic() - self._restored_at)  # no commit is possible before restore()
        if health.state is Protection.NOT_PROTECTED and trained_ms > health.allowed_ms:
            raise NotProtected(health)

    def before_update(self, streams: Sequence[int] = ()) -> bool:
        """Finishes the pending capture. Call it before the overlapped tensors change again. Blocks until they are
        captured. For tensors in GPU memory it does not block, but lets `streams` wait: name every stream that changes
        them. With on_suspicion=halt it also waits until the GPU has done what is on these streams, at most an hour.
        Returns False if the capture failed, or was skipped because no slot became free. The snapshot's ticket then says
        so. Raises Error (INVALID) for wrong use. Raises Error (TIMEOUT) if the GPU takes longer, and Halted if the job
        was halted: then do not change the tensors."""
        handles = (ctypes.c_void_p * len(streams))(*streams)
        status = Status(self._library.ckpt_before_update(self._open(), handles, len(streams)))
        if status is Status.OK:
            return True
        message = self._library.last_error()
        if status in (Status.INVALID, Status.HALTED, Status.TIMEOUT):
            raise _error_of(status, message)
        self._report(status, message)
        if self._newest is not None and (ticket := self._newest()) is not None:
            ticket._failed(status, message)
        return False

    def wants_gradients(self) -> bool:
        """Whether gradients of the coming update are of use, see ckpt_wants_gradients() in ckptengine.h."""
        wants = ctypes.c_int32()
        self._check(self._library.ckpt_wants_gradients(self._open(), byref(wants)))
        return bool(wants.value)

    def add_gradient(
        self, *, data: int, elements: int, dtype: DType = DType.F32, **more: str | float | bool | None
    ) -> bool:
        """Gives the gradient of one parameter for the coming update, so that other nodes can repeat that update. `data`
        is the address of `elements` numbers, which are copied. `more` has the other members of ckpt_gradient_t in
        ckptengine.h, which says when to call this. Returns False if the update cannot be repeated;
        the engine warns once. Raises Error (INVALID) for wrong use."""
        given = {key: _c_text(value) if isinstance(value, str) else value for key, value in more.items()}
        gradient = _abi.CGradient(data=data or None, elements=elements, dtype=dtype, **given)
        status = Status(self._library.ckpt_add_gradient(self._open(), byref(gradient)))
        if status.is_error:
            raise _error_of(status, self._library.last_error())
        return status is Status.OK

    def own_not_ready(self) -> None:
        """Tells the engine that the synchronous tensors do not hold the coming iteration's state yet, so the next
        before_update() does not copy them. Without on_suspicion=halt, it never does (docs/jit.md)."""
        self._check(self._library.ckpt_own_not_ready(self._open()))

    def capture_next(self) -> None:
        """Lets the next snapshot() capture the whole state, whatever the option `capture_every` says. Every rank has to
        call it before the same iteration."""
        self._check(self._library.ckpt_capture_next(self._open()))

    def discard(self) -> None:
        """Discards the pending capture. Call it if the state changed before before_update(). Does nothing if no capture
        is pending."""
        self._check(self._library.ckpt_discard(self._open()))

    # ---- halts ----

    def wait_halt(self, timeout_s: float = 60) -> Halt | None:
        """Waits until the job is halted and this rank is frozen. `captured` says whether its state was captured.
        Returns None if `timeout_s` passes first. After a halt was returned, the training thread may be interrupted, and
        every further call returns at once until rejoin(). Any thread may call it, but none may be in it when the engine
        is closed. Raises Error (INVALID) without the option on_suspicion=halt."""
        c = _abi.CHalt()
        status = Status(self._library.ckpt_wait_halt(self._open(), max(0, int(1000 * timeout_s)), byref(c)))
        if status is Status.TIMEOUT:
            return None
        self._check(status)
        text = c.text.decode("utf-8", "replace")
        return Halt(captured=bool(c.captured), incarnation=c.incarnation, iteration=c.iteration, text=text)

    def report_trouble(self, text: str) -> None:
        """Says that a communication of this rank has failed although no halt interrupted it, for example because a
        peer's connection was closed. So the job is halted at once, and nobody is suspected for it. Call it on the
        training thread, before wait_halt(). `text` is for people. Raises Error (INVALID) without the option
        on_suspicion=halt, and before restore()."""
        self._check(self._library.ckpt_report_trouble(self._open(), text.replace("\0", " ").encode("utf-8", "replace")))

    def rejoin(self) -> None:
        """Joins the next incarnation of the halted job, in this process. Call it on the training thread, after
        wait_halt() or Halted, once no communication changes registered memory any more. Then call restore(), and train
        on. What is registered stays registered. Waits for the capture of this rank and for the node's agent, not for
        other ranks. If it raises Error, the job is still halted."""
        self._check(self._library.ckpt_rejoin(self._open()))
        self._newest_taken, self._newest, self._last_status = -1, None, Status.OK

    # ---- communication ----

    def comm_begin(self, channel: int = 0, stream: int | None = None) -> None:
        """Marks the begin of a communication of training, so that checkpoint traffic keeps out of its way. For each
        communication call comm_end() once, with the same channel, from any thread. Communications that overlap need
        different channels, 0 to 7. Does nothing before restore().

        With `stream`, the communication begins when the GPU reaches the next work on that stream. It ends when the GPU
        has finished the work that is on the stream of comm_end() at that call. Name a stream in both calls or in
        neither."""
        self._check(self._library.ckpt_comm_begin(self._open(), _c_channel(channel), _c_stream(stream)))

    def comm_end(self, channel: int = 0, stream: int | None = None) -> None:
        """Marks the end of a communication of training. Raises Error (INVALID) if none has begun on `channel`."""
        self._check(self._library.ckpt_comm_end(self._open(), _c_channel(channel), _c_stream(stream)))

    def bubble_begin(self, stream: int | None = None) -> None:
        """Marks the begin of a bubble: training waits for other ranks and computes nothing. With `layered_capture`,
        state is copied in bubbles as far as possible (docs/mechanisms.md). Pairs may be nested: then the outer one
        counts.

        Without `stream`, for training on the CPU: the training thread waits, in a receive or a collective that blocks.
        It makes the call. With the stream on which training computes on a GPU, the bubble lasts from where the GPU has
        finished the work that is on the stream now until it has finished the work that is there at bubble_end(). Other
        streams than the one of snapshot() are ignored."""
        self._check(self._library.ckpt_bubble_begin(self._open(), _c_stream(stream)))

    def bubble_end(self, stream: int | None = None) -> None:
        """Marks the end of a bubble. Raises Error (INVALID) if none has begun."""
        self._check(self._library.ckpt_bubble_end(self._open(), _c_stream(stream)))

    @contextlib.contextmanager
    def bubble(self, stream: int | None = None) -> Iterator[None]:
        """Context in which training waits for other ranks: bubble_begin() and bubble_end()."""
        self.bubble_begin(stream)
        try:
            yield
        finally:
            with contextlib.suppress(Error):  # a snapshot() in the context has ended the bubble
                self.bubble_end(stream)

    @contextlib.contextmanager
    def communication(self, channel: int = 0, stream: int | None = None) -> Iterator[None]:
        """Context for a communication of training: comm_begin() before the block, comm_end() after it, also if it
        raises."""
        self.comm_begin(channel, stream)
        try:
            yield
        finally:
            self.comm_end(channel, stream)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Context for work that is no iteration, e.g. an evaluation or writing a model. Meanwhile the agent does not
        suspect this rank to hang (docs/jit.md). `name` is for people. Does nothing before restore()."""
        self._check(self._library.ckpt_pause(self._open(), _c_text(name)))
        try:
            yield
        finally:
            self._check(self._library.ckpt_resume(self._open()))

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
        """Whether the job is protected, and if not, why. Any thread may call it. Does not wait. Changes are also logged
        on the logger "ckptengine"."""
        c = _abi.CHealth()
        self._check(self._library.ckpt_health(self._open(), byref(c)))
        return _health_of(c)

    # ---- the end ----

    def close(self) -> None:
        """Closes the engine. First waits until the last snapshot is committed, at most as long as the option
        `close_timeout_ms` says. Does not wait if the job is not protected. The agent goes on, and keeps what was
        captured."""
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
            raise Error(Status.INVALID, "the engine is closed; create another one")
        return self._handle

    def _check(self, status: int) -> None:
        if status != Status.OK:
            raise _error_of(Status(status), self._library.last_error())

    def _wait(self, iteration: int, stage: Stage, timeout_ms: int) -> tuple[Status, str]:
        status = Status(self._library.ckpt_wait(self._open(), iteration, stage, timeout_ms))
        return status, "" if status is Status.OK else self._library.last_error()

    def _report(self, status: Status, message: str) -> None:
        """Logs a failed snapshot, unless the snapshot before it failed with the same status. So failures do not fill
        the log."""
        if status not in (Status.OK, Status.SKIPPED) and status is not self._last_status:
            log.warning("a snapshot failed (%s): %s. Training is not affected", status.name, message)
        self._last_status = status


def _error_of(status: Status, message: str) -> Error:
    return Halted(status, message) if status is Status.HALTED else Error(status, message)


_HEALTH_TEXTS = ("node", "reason", "text", "advice", "suspicion")


def _health_of(c: _abi.CHealth) -> Health:
    texts = {name: getattr(c, name).decode("utf-8", "replace") for name in _HEALTH_TEXTS}
    numbers = {name: getattr(c, name) for name, _ in _abi.CHealth._fields_ if name not in texts}
    del numbers["struct_size"]
    return Health(**texts, **(numbers | {"state": Protection(c.state)}))


@_abi.HealthCallback
def _log_health(health: Any, _user: Any) -> None:
    """Runs on a thread of the engine at each change of the verdict, and once a minute while there is trouble."""
    told = _health_of(health.contents)
    is_fine = told.state is Protection.PROTECTED and not told.suspicion
    log.log(logging.INFO if is_fine else logging.WARNING, "%s", told)


@_abi.WarningCallback
def _log_warning(_warning: int, text: bytes, _user: Any) -> None:
    log.warning("%s", text.decode("utf-8", "replace"))


def _let_go(library: _abi.Library, handle: int, alive: dict[str, Any]) -> None:
    """Closes an engine that was garbage-collected, or that was open when the program ended. Discards its pending
    capture, because the tensors may have changed. `alive` keeps the registered memory until the engine is closed."""
    library.ckpt_discard(handle)
    library.ckpt_close(handle)
    alive.clear()


def _text_of(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _c_text(text: str) -> bytes:
    """The text as UTF-8 for C. Refuses null characters, because C would silently cut the text off there."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise Error(
            Status.INVALID, f"the text {text!r} cannot be written as UTF-8 ({error.reason}); use another text"
        ) from None
    if 0 in data:
        raise Error(Status.INVALID, f"the text {text!r} contains a null character; leave it out")
    return data


def _c_stream(stream: int | None) -> int:
    return NO_STREAM if stream is None else stream


def _c_channel(channel: int) -> int:
    """Checks that the number fits in 32 bits, because ctypes would silently cut it off. The library checks 0 to 7."""
    if not 0 <= channel < 2**32:
        raise Error(Status.INVALID, f"there is no channel {channel}; use 0 to 7")
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
    raise Error(
        Status.INVALID,
        f"a buffer of format '{view.format}' has an element type that the engine cannot store; register its bytes, "
        "or convert it",
    )
