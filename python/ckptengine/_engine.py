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
    """A call failed. The text says what happened, why, and what to do.

    Attributes:
        status: The kind of failure.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message or status.name)
        self.status = status


class Halted(Error):
    """The job was halted, because some rank died or makes no progress (docs/jit.md).

    No update may begin any more: the engine captures the state as it is. Call rejoin() and restore(). Or close the
    engine, end the process, and start all ranks again.
    """


class NotProtected(RuntimeError):
    """The job is not protected, and the engine has `require_protected`. snapshot() raises it.

    Attributes:
        health: The verdict on the job.
    """

    def __init__(self, health: Health) -> None:
        super().__init__(str(health))
        self.health = health


@dataclass(frozen=True)
class Restored:
    """What restore() did. Times are in milliseconds, sizes in bytes.

    Attributes:
        found: False if nothing is stored, so this is a fresh start.
        behind: True if a newer checkpoint was committed and is lost. `message` names it.
        status_unknown: True if nodes that did not answer may know of a newer commit. `message` names them.
        main_tier: Where the main shard came from.
        private_tier: Where the private shard came from.
        incarnation: Which start of the job this is. The first is 1.
        iteration: The restored iteration. -1 if not found.
        next_iteration: Where the training loop continues.
        bytes: Bytes restored into the caller's memory.
        fetch_ms: Time until this node's agent had all bytes and had verified them.
        load_ms: From then on, until they were in the caller's memory and verified.
        message: What a person should know about this restore.
        stored_world_size: Number of ranks of the job that captured the checkpoint. 0 if not found.
        adopted: True if this rank got rank 0's private shard, since none is stored for it (docs/elastic.md).
    """

    found: bool
    behind: bool
    status_unknown: bool
    main_tier: Tier
    private_tier: Tier
    incarnation: int
    iteration: int
    next_iteration: int
    bytes: int
    fetch_ms: float
    load_ms: float
    message: str = ""
    stored_world_size: int = 0
    adopted: bool = False

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
    """A halt that has frozen this rank.

    Attributes:
        captured: True if this rank's state of `iteration` is captured. False: it cannot be, and `text` says why.
        incarnation: The incarnation that was halted.
        iteration: The last iteration whose update this rank has finished. -1 if none.
        text: The reason, for people.
    """

    captured: bool
    incarnation: int
    iteration: int
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Stats:
    """Counters and latest measurements of an engine. Times are in milliseconds, sizes in bytes.

    Attributes:
        snapshots: Snapshots that were taken.
        skipped: Snapshots that all ranks skipped.
        discarded: Snapshots that were taken and then discarded.
        committed: Commits that this rank learned of in this incarnation.
        committed_iteration: Newest iteration committed in this incarnation. -1 if none.
        durable_iteration: Newest iteration that this rank knows to be on storage. -1 if none.
        bytes_captured: Total over all snapshots.
        stall_ms: Time in the last snapshot() and its before_update().
        capture_ms: Last snapshot: from the snapshot() call until captured.
        commit_ms: Last commit: from the snapshot() call until this rank learned of it.
        gpu_staging_bytes: GPU memory through which tensors are copied. 0 if none are in GPU memory. Less than the
            option `gpu_staging_bytes` if the GPU had less free memory.
        bubble_bytes: Bytes of main shards that were copied in bubbles (docs/mechanisms.md).
        compute_bytes: Bytes of main shards that were copied while nothing waited for it.
        update_bytes: Bytes of main shards that were copied while before_update(), or the update on a GPU, waited for
            it.
        layered: Snapshots that were copied in layers, by a plan.
        layered_late: Of them, those for which before_update() had to wait.
    """

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
    """The verdict whether the job is protected. docs/protection.md explains it. Times are in milliseconds.

    Attributes:
        state: The verdict.
        reason: One word for programs: "none", "rank_stopped", ...
        text: The reason, for people. "" if there is nothing to say.
        advice: What to do.
        since_ms: How long this state has lasted.
        at_risk_ms: Training time since the newest commit. It is lost if the job fails now.
        at_risk_iterations: Iterations since the newest commit. They are lost if the job fails now.
        allowed_ms: Time without a commit after which the job is not protected.
        committed_incarnation: Incarnation of the newest known commit. 0 if none.
        committed_iteration: Iteration of the newest known commit. -1 if none.
        copies_now: Newest commit: the fewest copies that any shard has.
        copies_wanted: How many copies the job asks for.
        parity_now: Newest commit: lost nodes that each parity group can still replace.
        parity_wanted: How many lost nodes each parity group should replace.
        node: The node that holds up commits. "" if no single one.
        rank: The rank that holds up commits. -1 if no single one.
        suspicion: Which ranks hold training up, for people (docs/jit.md).
    """

    state: Protection
    reason: str
    text: str
    advice: str
    since_ms: int
    at_risk_ms: int
    at_risk_iterations: int
    allowed_ms: int
    committed_incarnation: int
    committed_iteration: int
    copies_now: int
    copies_wanted: int
    parity_now: int
    parity_wanted: int
    node: str
    rank: int
    suspicion: str = ""

    def __str__(self) -> str:
        verdict = f"the job is {self.state!s}" + (f": {self.text}" if self.text else "")
        sentences = [verdict, self.advice, self.suspicion]
        if self.state is not Protection.PROTECTED:
            risk = f"{self.at_risk_iterations} iterations, {self.at_risk_ms / 1000:.1f} s of work are at risk"
            sentences.insert(1, risk)
        return ". ".join(sentence for sentence in sentences if sentence)


class Ticket:
    """The result of snapshot(). Any thread may use a ticket while the engine is open.

    A ticket is true if the snapshot was taken, or still waits for a slot. If it is false, `status` and `message` say
    why. before_update() may skip a snapshot that waits, and then makes the ticket false.

    Attributes:
        iteration: The iteration of the snapshot.
        status: OK if the snapshot was taken or waits. Else why it was not taken.
        message: The reason, for people. "" if there is none.
    """

    __slots__ = ("__weakref__", "_engine", "iteration", "message", "status")

    def __init__(self, engine: Engine, iteration: int, status: Status, message: str) -> None:
        self._engine = engine
        self.iteration = iteration
        self.status = status
        self.message = message

    @property
    def taken(self) -> bool:
        """True if the snapshot was taken, or still waits for a slot."""
        return self.status is Status.OK

    def __bool__(self) -> bool:
        return self.taken

    @property
    def skipped(self) -> bool:
        """True if all ranks skip this iteration, because earlier snapshots are still being stored. This is no error."""
        return self.status is Status.SKIPPED

    @property
    def stage(self) -> Stage:
        """How far the snapshot has come.

        NONE if it was not taken, waits for a slot, was discarded, or is too old to be remembered.
        """
        return self._engine.stage(self.iteration) if self.taken else Stage.NONE

    def wait(self, stage: Stage = Stage.COMMITTED, timeout_ms: int = 10_000) -> bool:
        """Waits until this snapshot, or a newer one, has reached `stage`.

        Call before_update() first, because it finishes the capture. Only stage CAPTURING needs no before_update(): it
        is reached when the copy has begun.

        Args:
            stage: The stage to wait for.
            timeout_ms: Longest wait, in milliseconds.

        Returns:
            True if the stage was reached. False if that takes longer than `timeout_ms`, or can never happen. `message`
            then says why. If it can never happen, `status` says why, too.
        """
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

    Args:
        options: Options of the engine. An option that you do not give comes from the environment
            (CKPTENGINE_<OPTION>), or else from the file that the option `config` names.
        library: Path of libckptengine. Default: as in load_library().
        require_protected: With True, snapshot() raises NotProtected while health() says that the job is not protected.
            It does not raise within `allowed_ms` of health() after restore(), so that the job has time for its first
            commit. With False, the engine logs a warning and training goes on.
        **more: Further options, by name (docs/options.md). They override `options`.

    Raises:
        Error: An option is invalid, no agent answers, or another process holds the rank.
        OSError: The library was not found.
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
        """Registers an object with the buffer protocol, e.g. a numpy array, bytearray or array.array.

        The engine holds the object, so a bytearray cannot be resized while it is registered.

        Args:
            name: Name of the tensor, unique in this engine.
            buffer: A writable, contiguous object.
            capture: When the tensor is captured. This also selects its shard.

        Raises:
            Error: The name is taken, or the buffer cannot be registered.
        """
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
        """Registers contiguous memory in row-major order.

        Args:
            name: Name of the tensor, unique in this engine.
            address: Address of the first byte.
            dtype: Type of the elements.
            shape: Size of each dimension, in elements.
            memory: Where the bytes are: host or GPU memory.
            capture: When the tensor is captured. This also selects its shard.
            owner: An object that the engine holds while the memory is registered, so that the memory is not freed.

        Raises:
            Error: The name is taken, or the memory cannot be registered.
        """
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
        """Tells the engine a registered tensor's new address.

        Args:
            name: Name of the tensor.
            address: Address of the first byte. Type and shape stay.
            owner: An object that the engine holds while the memory is registered.

        Raises:
            Error: Called between snapshot() and before_update(), or there is no such tensor.
        """
        self._check(self._library.ckpt_move_tensor(self._open(), _c_text(name), address or None))
        self._alive[name] = owner

    def unregister(self, name: str) -> None:
        """Forgets a tensor. A later registration may reuse its name.

        Args:
            name: Name of the tensor.

        Raises:
            Error: Called between snapshot() and before_update(), or there is no such tensor.
        """
        self._check(self._library.ckpt_unregister_tensor(self._open(), _c_text(name)))
        self._alive.pop(name, None)

    @property
    def registered(self) -> Iterable[str]:
        """The names of the registered tensors."""
        return self._alive.keys()

    # ---- restore ----

    def take_shards(self) -> None:
        """Says that this rank can take over shards that other ranks captured, see ckpt_take_shards() in ckptengine.h.

        Call it before stored_layout() and restore().
        """
        self._check(self._library.ckpt_take_shards(self._open()))

    def load_taken(self, shard: str, address: int, size_bytes: int) -> None:
        """Copies a shard that this rank takes over, or one of its own, to host memory, and verifies it.

        Call it between stored_layout() and restore(), which then loads nothing.

        Args:
            shard: Name of the shard.
            address: Where the bytes go.
            size_bytes: The shard's length.

        Raises:
            Error: There is no such shard, the length is wrong, or the shard cannot be loaded.
        """
        self._check(self._library.ckpt_load_taken(self._open(), _c_text(shard), address or None, size_bytes))

    def stored_layout(self) -> dict[str, Any]:
        """Returns the layout of the checkpoint that restore() would restore for this rank.

        Every rank must call this function or restore(), because each waits for all ranks. It may return while the bytes
        are still coming from other nodes. If the last copy is lost before they are here, restore() raises Error (LOST),
        or restores an older checkpoint that has the same layout: compare `iteration`.

        Returns:
            {"found", "iteration", "incarnation", "main", "private", "shards"}. "main" and "private" are
            {name: {"dtype", "shape", "data_offsets"}}. "shards" has the names of the two shards. If the rank takes over
            shards, "taken" instead has the layout of each, by the shard's name.

        Raises:
            Error: The call fails, or not all ranks come in time.
        """
        text = ctypes.c_char_p()
        self._check(self._library.ckpt_stored_layout(self._open(), byref(text)))
        return json.loads(text.value or b"{}")

    def restore(self, stream: int | None = None) -> Restored:
        """Restores the newest checkpoint that every rank can get into the registered memory.

        Every rank calls it once in each incarnation, before its first snapshot.

        Args:
            stream: The restore follows the work that is already on this stream.

        Returns:
            What was restored, and from where.

        Raises:
            Error: MISMATCH if the layout or the number of ranks differs from what is stored, LOST if a commit is lost
                and nothing can be restored, TIMEOUT after the option `restore_timeout_ms`.
        """
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
        """Starts the snapshot of `iteration` and returns at once. Call it after all updates of that iteration.

        A skipped or failed snapshot does not raise: the ticket says so, and failures are logged. If no slot is free,
        the copy begins as soon as one is. If none becomes free in time, before_update() skips the snapshot. It is also
        skipped in iterations that the option `capture_every` leaves out.

        Args:
            iteration: The iteration whose state is captured. It grows from snapshot to snapshot.
            stream: The snapshot captures the state after the work that is already on this stream.
            wait: For a job that is about to end. First waits until the previous snapshot is committed, at most half of
                `timeout_ms`, so that this one is not skipped. Then takes this snapshot, calls before_update(), and
                waits until the snapshot is committed. Every rank must call this for the same iteration. The snapshot is
                taken whatever `capture_every` says.
            timeout_ms: Longest time for all of that, in milliseconds.

        Returns:
            The snapshot's ticket. With `wait`, its stage says whether the snapshot is committed.

        Raises:
            Error: INVALID for wrong use.
            Halted: As in before_update().
            NotProtected: The engine has `require_protected`, and the job is not protected.
        """
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
        """Finishes the pending capture. Call it before the overlapped tensors change again.

        Blocks until they are captured. For tensors in GPU memory it does not block, but lets `streams` wait. With
        on_suspicion=halt it also waits until the GPU has done what is on these streams, at most an hour.

        Args:
            streams: Every stream that changes tensors in GPU memory.

        Returns:
            False if the capture failed, or was skipped because no slot became free. The snapshot's ticket then says so.

        Raises:
            Error: INVALID for wrong use. TIMEOUT if the GPU takes longer.
            Halted: The job was halted: do not change the tensors.
        """
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
        """Returns whether gradients of the coming update are of use, see ckpt_wants_gradients() in ckptengine.h."""
        wants = ctypes.c_int32()
        self._check(self._library.ckpt_wants_gradients(self._open(), byref(wants)))
        return bool(wants.value)

    def add_gradient(
        self, *, data: int, elements: int, dtype: DType = DType.F32, **more: str | float | bool | None
    ) -> bool:
        """Gives the gradient of one parameter for the coming update, so that other nodes can repeat that update.

        Args:
            data: Address of the gradient's numbers, which are copied.
            elements: How many numbers there are.
            dtype: Their type.
            **more: The other members of ckpt_gradient_t in ckptengine.h, which says when to call this.

        Returns:
            False if the update cannot be repeated. The engine warns once.

        Raises:
            Error: INVALID for wrong use.
        """
        given = {key: _c_text(value) if isinstance(value, str) else value for key, value in more.items()}
        gradient = _abi.CGradient(data=data or None, elements=elements, dtype=dtype, **given)
        status = Status(self._library.ckpt_add_gradient(self._open(), byref(gradient)))
        if status.is_error:
            raise _error_of(status, self._library.last_error())
        return status is Status.OK

    def own_not_ready(self) -> None:
        """Tells the engine that the synchronous tensors do not hold the coming iteration's state yet.

        So the next before_update() does not copy them. Without on_suspicion=halt, it never does (docs/jit.md).
        """
        self._check(self._library.ckpt_own_not_ready(self._open()))

    def capture_next(self) -> None:
        """Lets the next snapshot() capture the whole state, whatever the option `capture_every` says.

        Every rank has to call it before the same iteration.
        """
        self._check(self._library.ckpt_capture_next(self._open()))

    def discard(self) -> None:
        """Discards the pending capture. Does nothing if no capture is pending.

        Call it if the state changed before before_update().
        """
        self._check(self._library.ckpt_discard(self._open()))

    # ---- halts ----

    def wait_halt(self, timeout_s: float = 60) -> Halt | None:
        """Waits until the job is halted and this rank is frozen.

        After a halt was returned, the training thread may be interrupted, and every further call returns at once until
        rejoin(). Any thread may call it, but none may be in it when the engine is closed.

        Args:
            timeout_s: Longest wait, in seconds.

        Returns:
            The halt. Its `captured` says whether this rank's state was captured. None if `timeout_s` passes first.

        Raises:
            Error: INVALID without the option on_suspicion=halt.
        """
        c = _abi.CHalt()
        status = Status(self._library.ckpt_wait_halt(self._open(), max(0, int(1000 * timeout_s)), byref(c)))
        if status is Status.TIMEOUT:
            return None
        self._check(status)
        text = c.text.decode("utf-8", "replace")
        return Halt(captured=bool(c.captured), incarnation=c.incarnation, iteration=c.iteration, text=text)

    def report_trouble(self, text: str) -> None:
        """Says that a communication of this rank has failed although no halt interrupted it.

        For example because a peer's connection was closed. So the job is halted at once, and nobody is suspected for
        it. Call it on the training thread, before wait_halt().

        Args:
            text: What failed, for people.

        Raises:
            Error: INVALID without the option on_suspicion=halt, and before restore().
        """
        self._check(self._library.ckpt_report_trouble(self._open(), text.replace("\0", " ").encode("utf-8", "replace")))

    def rejoin(self) -> None:
        """Joins the next incarnation of the halted job, in this process. Then call restore(), and train on.

        Call it on the training thread, after wait_halt() or Halted, once no communication changes registered memory any
        more. What is registered stays registered. Waits for the capture of this rank and for the node's agent, not for
        other ranks.

        Raises:
            Error: The process could not rejoin. The job is still halted.
        """
        self._check(self._library.ckpt_rejoin(self._open()))
        self._newest_taken, self._newest, self._last_status = -1, None, Status.OK

    # ---- communication ----

    def comm_begin(self, channel: int = 0, stream: int | None = None) -> None:
        """Marks the begin of a communication of training, so that checkpoint traffic keeps out of its way.

        For each communication call comm_end() once, with the same channel, from any thread. Does nothing before
        restore().

        With `stream`, the communication begins when the GPU reaches the next work on that stream. It ends when the GPU
        has finished the work that is on the stream of comm_end() at that call. Name a stream in both calls or in
        neither.

        Args:
            channel: 0 to 7. Communications that overlap need different channels.
            stream: The CUDA stream of the communication.

        Raises:
            Error: INVALID if there is no such channel.
        """
        self._check(self._library.ckpt_comm_begin(self._open(), _c_channel(channel), _c_stream(stream)))

    def comm_end(self, channel: int = 0, stream: int | None = None) -> None:
        """Marks the end of a communication of training. Any thread may call it.

        Args:
            channel: The channel of comm_begin().
            stream: The CUDA stream of the communication, if comm_begin() named one.

        Raises:
            Error: INVALID if no communication has begun on `channel`.
        """
        self._check(self._library.ckpt_comm_end(self._open(), _c_channel(channel), _c_stream(stream)))

    def bubble_begin(self, stream: int | None = None) -> None:
        """Marks the begin of a bubble: training waits for other ranks and computes nothing.

        With `layered_capture`, state is copied in bubbles as far as possible (docs/mechanisms.md). Pairs may be nested:
        then the outer one counts.

        Without `stream`, for training on the CPU: the training thread waits, in a receive or a collective that blocks.
        It makes the call. With `stream`, the bubble lasts from where the GPU has finished the work that is on the
        stream now until it has finished the work that is there at bubble_end().

        Args:
            stream: The stream on which training computes on a GPU. Other streams than the one of snapshot() are
                ignored.
        """
        self._check(self._library.ckpt_bubble_begin(self._open(), _c_stream(stream)))

    def bubble_end(self, stream: int | None = None) -> None:
        """Marks the end of a bubble.

        Args:
            stream: The stream of bubble_begin().

        Raises:
            Error: INVALID if no bubble has begun.
        """
        self._check(self._library.ckpt_bubble_end(self._open(), _c_stream(stream)))

    @contextlib.contextmanager
    def bubble(self, stream: int | None = None) -> Iterator[None]:
        """Context in which training waits for other ranks: bubble_begin() and bubble_end().

        Args:
            stream: As in bubble_begin().
        """
        self.bubble_begin(stream)
        try:
            yield
        finally:
            with contextlib.suppress(Error):  # a snapshot() in the context has ended the bubble
                self.bubble_end(stream)

    @contextlib.contextmanager
    def communication(self, channel: int = 0, stream: int | None = None) -> Iterator[None]:
        """Context for a communication of training: comm_begin() before the block, comm_end() after it.

        comm_end() is also called if the block raises.

        Args:
            channel: As in comm_begin().
            stream: As in comm_begin().
        """
        self.comm_begin(channel, stream)
        try:
            yield
        finally:
            self.comm_end(channel, stream)

    @contextlib.contextmanager
    def pause(self, name: str) -> Iterator[None]:
        """Context for work that is no iteration, e.g. an evaluation or writing a model. Does nothing before restore().

        Meanwhile the agent does not suspect this rank to hang (docs/jit.md).

        Args:
            name: What the work is, for people.
        """
        self._check(self._library.ckpt_pause(self._open(), _c_text(name)))
        try:
            yield
        finally:
            self._check(self._library.ckpt_resume(self._open()))

    # ---- state ----

    def stage(self, iteration: int) -> Stage:
        """Returns how far the snapshot of `iteration` has come. Any thread may call it.

        Args:
            iteration: The iteration of the snapshot.
        """
        stage = ctypes.c_int()
        self._check(self._library.ckpt_snapshot_stage(self._open(), iteration, byref(stage)))
        return Stage(stage.value)

    def stats(self) -> Stats:
        """Returns counters and latest measurements. Any thread may call it."""
        c = _abi.CStats()
        self._check(self._library.ckpt_stats(self._open(), byref(c)))
        return Stats(**{name: getattr(c, name) for name, _ in _abi.CStats._fields_ if name != "struct_size"})

    def health(self) -> Health:
        """Returns whether the job is protected, and if not, why. Any thread may call it. Does not wait.

        Changes are also logged on the logger "ckptengine".
        """
        c = _abi.CHealth()
        self._check(self._library.ckpt_health(self._open(), byref(c)))
        return _health_of(c)

    # ---- the end ----

    def close(self) -> None:
        """Closes the engine. The agent goes on, and keeps what was captured.

        First waits until the last snapshot is committed, at most as long as the option `close_timeout_ms` says. Does
        not wait if the job is not protected.
        """
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
