"""The class Checkpointer, which a PyTorch training loop calls."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from .._abi import Capture
from .._engine import Engine, Error, Halted, Health, Restored, Stats, Status, Ticket
from .._options import Options
from . import _split, _structure
from ._communication import Communication
from ._gate import Gate
from ._inventory import Inventory, named
from ._memory import Shown
from ._python_state import PythonState
from ._registry import Record, Registry
from ._replicas import MainShard, given_option, is_distributed, this_rank
from ._resplit import Resplit
from ._updates import Updates

_FIRST_LOOKS = 3  # snapshots that compare what is captured with what objects show, although no tensor was replaced


class Checkpointer:
    """Captures the whole state of a training loop every iteration, and restores it after a failure.

        with Checkpointer(model, optimizer, schedulers=scheduler, job="run1", rank=rank, world_size=n) as ckpt:
            for k in range(ckpt.restore().next_iteration, iterations):
                loss = forward_backward()
                with ckpt.update(k):       # before_update(), then snapshot(k)
                    optimizer.step()
                    scheduler.step()

    If torch.distributed is initialized, `rank` and `world_size` come from it. If you do not give `shard`, ranks share a
    main shard if their device meshes and DDP models say that their state is the same (docs/api.md). Of a DTensor
    (FSDP2, tensor parallelism), each rank captures its local tensor. State other than tensors is stored as JSON and raw
    bytes.

    Call all methods from the training thread, except health(). All methods raise ckptengine.Error if they fail. A
    failed or skipped snapshot does not raise: the ticket and the log say so.

    Args:
        model: A module, or several by name ({"net": net, "ema": ema}). Parameters are captured while training goes on,
            persistent buffers (BatchNorm statistics) before snapshot() returns.
        optimizer: An object with `param_groups` and `state` like torch's optimizers, or several by name. If the
            optimizer is partitioned over the ranks (ZeRO), each rank gives its own part.
        schedulers: Objects with state_dict() and load_state_dict(), one or several. With on_suspicion="halt" they
            belong to the main shard, like parameter groups. So they must be equal on all ranks that share it.
        scaler: A gradient scaler with state_dict() and load_state_dict(), or several. Otherwise as `schedulers`.
        tensors: More tensors by name that nothing but the update changes, e.g. averaged or master weights.
        extra: Objects with state_dict() and load_state_dict(), torch.Generators or tensors, by name. They are captured
            before snapshot() returns, so they may change at any time. The position in the data belongs here, e.g.
            torchdata's StatefulDataLoader. Keep it small.
        rng: Whether to capture the random number generators of torch, Python and numpy.
        communication: How the engine learns when training communicates, to keep checkpoint traffic out of its way.
            "hooks": by torch's own hooks. DDP models get a communication hook that does not change a bit of their
            gradients; see watch(). "patch": by replacing methods of torch.distributed's classes in this process until
            close(). This also sees FSDP and direct calls of torch.distributed. None: not at all. Call comm_begin() and
            comm_end() of `engine` around communications that the engine does not see. Under run() its process groups
            tell the engine about all that they communicate, unless this is None.
        library: Path of libckptengine, as for ckptengine.Engine.
        options: Options of the engine.
        **more: Further options, by name (docs/options.md). They override `options`.

    Attributes:
        engine: The engine of this rank.
        ticket: The ticket of the last snapshot(). None before it.
        restored: What the last restore() did. None before it.
        is_warming_up: Whether run() calls the training function only to warm the models up.

    Raises:
        Error: A tensor or an object cannot be stored. The text names it. Also all errors of ckptengine.Engine.
    """

    _takes_shards = True  # whether restore() can cut tensors anew for ranks that split the state in another way
    _asks_optimizers = True  # whether the optimizers' state_dict() says what their state is

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        schedulers: Any = None,
        scaler: Any = None,
        tensors: Mapping[str, Tensor] | None = None,
        extra: Mapping[str, Any] | None = None,
        rng: bool = True,
        communication: Literal["hooks", "patch"] | None = "hooks",
        library: str | os.PathLike | None = None,
        options: Options | None = None,
        **more: Any,
    ) -> None:
        self._inventory = Inventory(named("model", model), named("optimizer", optimizer), dict(tensors or {}))
        self._stateful = {"scheduler": named("schedulers", schedulers), "scaler": named("scaler", scaler)}
        given = (options.given() if options is not None else {}) | more
        self._is_halting = given_option(given, "on_suspicion") == "halt"
        self._python_state = PythonState(
            self._inventory,
            self._stateful,
            dict(extra or {}),
            rng=rng,
            splits=self._is_halting,
            asks_optimizers=self._asks_optimizers,
        )
        self._registry = Registry(self._inventory)
        self._split_record, self._structure_record = Record(_split.RECORD), Record(_structure.RECORD)
        self._identities: tuple | None = None
        self._capturing = False  # between snapshot() and before_update()
        self._is_at_rest = False  # likewise, also if the snapshot was not taken
        self.ticket: Ticket | None = None  # of the last snapshot()
        self.restored: Restored | None = None  # what the last restore() did
        self.is_warming_up = False  # whether run() calls the training function only to warm the models up
        self._gate: Gate | None = None  # of run(), while it runs
        self._hooks: list[Any] = []
        if communication not in ("hooks", "patch", None):
            raise Error(Status.INVALID, f"communication is {communication!r}; give 'hooks', 'patch' or None")
        self._tied = self._inventory.tied()
        self.shard = ""  # name of this rank's main shard, if torch.distributed is initialized
        self._facts: dict[str, Any] = {}
        self._registry.wanted()  # raises now if a tensor cannot be captured
        self._python_state.look()
        self._looks_left = _FIRST_LOOKS
        self._python_state.check()
        self._splits = self._inventory.splits()
        self._main_shard: MainShard | None = None
        if is_distributed():
            for key, value in (
                ("rank", torch.distributed.get_rank()),
                ("world_size", torch.distributed.get_world_size()),
            ):
                if key not in given:
                    more.setdefault(key, value)
            self._main_shard = MainShard(self._inventory, given | more)
            self.shard = self._main_shard.name
            if self._main_shard.ranks:
                more["shard"] = self.shard
        self.engine = Engine(options, library=library, **more)
        # After a halt, a rank's groups may be closed. So a job that halts must keep its split.
        may_take_over = self._takes_shards and not self._is_halting
        self._resplit = Resplit(self._inventory, given | more, may_take_over=may_take_over)
        if self._takes_shards and (is_distributed() or given_option(given, "world_size") in ("", "1")):
            self.engine.take_shards()
        self._updates = Updates(self.engine, self._inventory)
        tells = torch.distributed.is_available() and communication is not None
        self._communication = Communication(self.engine, patch=communication == "patch") if tells else None
        # If the optimizer has hooks, no update is missed even if the loop does not call before_update().
        for key, known in self._inventory.optimizers.items():
            if not hasattr(known, "_optimizer_step_pre_hooks"):  # some wrappers promise hooks and have none
                known = getattr(known, "optimizer", getattr(known, "optim", known))
            if hasattr(known, "_optimizer_step_pre_hooks"):
                hook = functools.partial(self._before_step, key)
                self._hooks.append(known.register_step_pre_hook(hook))

    # ---- what the training loop calls ----

    def restore(self) -> Restored:
        """Restores the newest checkpoint that every rank can get. Every rank must call it before its first snapshot.

        Restores tensors in place, then Python state through load_state_dict(), then random number generators. On a
        fresh start (`found` is False) it changes nothing. If you replace tensors afterwards, the first snapshot()
        releases the old ones.

        A job with another number of ranks can restore state that all ranks share. If torch.distributed is initialized,
        the ranks may also split the state in another way than before. A rank for which nothing is stored (`adopted`)
        gets rank 0's buffers and Python state, but keeps its own random number generators (docs/elastic.md).

        Returns:
            What was restored, and from where.

        Raises:
            Error: The stored state does not fit, is lost, or did not arrive in time.
        """
        if self._communication is not None:
            self._communication.place(self._inventory.models.values())
        result = self._restore()
        self._capturing, self.ticket, self.restored = False, None, result
        return result

    @property
    def next_iteration(self) -> int:
        """Where training continues, as the last restore() said. 0 before it."""
        return self.restored.next_iteration if self.restored else 0

    def _restore(self) -> Restored:
        stored = self.engine.stored_layout()
        if not stored["found"]:
            with contextlib.suppress(Error, ValueError):  # the first snapshot() raises for what cannot be registered
                self._register(self._registry.wanted())  # now, so that restore() knows their GPU
            return self.engine.restore(self._current_stream())
        if "taken" in stored:
            return self._take_over(stored["taken"])
        self._splits = self._inventory.splits()
        if self._resplit.is_needed(stored, self._record_of_splits()[0] if self._splits else None):
            return self._take_over({stored["shards"][kind]: stored[kind] for kind in ("private", "main")})
        self._inventory.create_missing_state(stored["main"])
        self._splits = self._inventory.splits()
        both = {**stored["main"], **stored["private"]}
        is_same = self._structure_record.stored_name(both) in (None, self._record_of_structure()[0])
        self._register_as_stored(self._registry.wanted(as_stored=both, is_apart=not is_same), both)
        result = self.engine.restore(self._current_stream())
        if result.found:
            structure = _structure.read(self._structure_record.data)
            state = self._python_state.restored(structure, adopted=result.adopted)  # before any tensor changes
            self._registry.unstage()
            if self._splits:
                self._inventory.join_created_state(self._stored_splits())
            self._python_state.put(state, adopted=result.adopted)
        self._identities = None
        return result

    def _take_over(self, layouts: dict[str, dict[str, Any]]) -> Restored:
        from ._resize import take_over  # needs torch.distributed.checkpoint

        take_over(self.engine, self._inventory, self._python_state, layouts)
        self._splits = self._inventory.splits()
        self._register(self._registry.wanted())
        result = self.engine.restore(self._current_stream())
        self._identities = None
        return result

    def watch(self, *models: torch.nn.Module) -> None:
        """Lets the engine see when these DistributedDataParallel models reduce their gradients.

        You need this if you gave only the inner modules as `model`. Call it before the models' first backward pass.

        Args:
            *models: The DistributedDataParallel models.
        """
        if self._communication is not None:
            self._communication.place(models)

    def before_update(self, *streams: torch.cuda.Stream) -> bool:
        """Finishes the pending capture. Call it before parameters, optimizer state or `tensors` change again.

        Waits until they are captured. With tensors on a GPU, `streams` wait, and the host only with on_suspicion=halt.
        If the optimizer has hooks, its step() also calls this function, for the current stream.

        Args:
            *streams: Every stream that changes tensors on a GPU. Default: the current stream.

        Returns:
            False if the capture failed or was skipped. The snapshot's ticket says why.

        Raises:
            Error: INVALID for wrong use. TIMEOUT if the GPU takes too long.
            Halted: The job was halted: do not update (docs/jit.md).
            Interrupted: Within run(), instead of Halted, and also if a communication has failed.
        """
        if self._gate is not None:
            self._gate.before_update()
        if self._is_halting and self._is_at_rest:
            self._prepare_own()
        self._capturing = self._is_at_rest = False
        named = [stream.cuda_stream for stream in streams]
        current = self._current_stream()
        return self.engine.before_update(named if named or current is None else [current])

    def snapshot(self, iteration: int) -> Ticket:
        """Starts the snapshot of `iteration` and returns at once. Call it after all updates of that iteration.

        With tensors on a GPU, these updates must be on the current stream, or it must wait for them. A failed or
        skipped snapshot does not raise and does not harm training.

        Args:
            iteration: The iteration whose state is captured. It grows from snapshot to snapshot.

        Returns:
            The snapshot's ticket.

        Raises:
            Error: INVALID if restore() was not called, if the iteration is not larger than the last one, or if tensors
                were moved between the last snapshot() and its before_update().
            Halted: The job was halted, and tensors were added, moved or removed.
            Interrupted: Within run(), if a communication has failed since before_update().
            NotProtected: The engine has `require_protected`, and the job is not protected.
        """
        if self._gate is not None:
            self._gate.before_snapshot()
        try:
            self._refresh()
        except Halted:
            raise
        except Error as error:
            self.engine._report(error.status, str(error))
            self.ticket = Ticket(self.engine, iteration, error.status, str(error))
            return self.ticket
        self.ticket = self.engine.snapshot(iteration, self._current_stream())
        self._capturing, self._is_at_rest = self.ticket.taken, True
        return self.ticket

    @contextlib.contextmanager
    def update(self, iteration: int) -> Iterator[None]:
        """Context for the updates of an iteration: before_update() before the block, snapshot(iteration) after it.

        `ticket` then is the snapshot's ticket. If the block raises, no snapshot is taken.

        Args:
            iteration: The iteration of the updates.

        Raises:
            Error: As in before_update() and snapshot(), like Halted and Interrupted.
        """
        self.before_update()
        yield
        self.snapshot(iteration)

    def pause(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Context for work that is no iteration, e.g. an evaluation: `with checkpointer.pause("eval"): ...`.

        Meanwhile the agent does not suspect this rank to hang (docs/jit.md).

        Args:
            name: What the work is, for people.
        """
        return self.engine.pause(name)

    def stats(self) -> Stats:
        """Returns counters and latest measurements of the engine."""
        return self.engine.stats()

    def health(self) -> Health:
        """Returns whether the job is protected, and if not, why. Any thread may call it. Does not wait."""
        return self.engine.health()

    def close(self) -> None:
        """Closes the engine. The agent keeps what was captured."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._communication is not None:
            self._communication.close()
        self.engine.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- registration ----

    def _current_stream(self) -> int | None:
        """The current stream of this thread on the tensors' GPU. None if no tensor is on a GPU."""
        gpu = self._registry.gpu
        return None if gpu is None else torch.cuda.current_stream(gpu).cuda_stream

    def _refresh(self) -> None:
        """Brings registrations, staging copies and Python state up to date."""
        identities = self._inventory.identities()
        if identities != self._identities:
            if self._capturing:
                self._refuse_torn_capture()
            self._identities = None
            self._splits, self._tied = self._inventory.splits(), self._inventory.tied()
            if self._main_shard is not None:
                self._main_shard.refuse_what_differs()
            self._register(self._registry.wanted())
            self._facts = {"main": self.shard, "tied": self._tied}  # for ckptengine.dcp
            self._python_state.look()
            self._identities = identities
        elif self._looks_left:
            self._python_state.look()
            self._looks_left -= 1
        self._registry.stage()
        self._python_state.capture(self.engine, self._registry.gpu, self._facts)

    def _prepare_own(self) -> None:
        """Brings the own state up to date, so that before_update() keeps it for the iteration that is about to be
        updated (docs/jit.md). What it cannot keep now, snapshot() does."""
        is_ready = self._registry.gpu is None and self._inventory.identities() == self._identities
        with contextlib.suppress(Error):  # snapshot() tells
            if is_ready and self._python_state.capture_own(self._facts):
                self._registry.stage(Capture.SYNCHRONOUS)
                return
        self.engine.own_not_ready()

    def _register(self, wanted: Mapping[str, Shown]) -> None:
        """Registers these tensors, and the records of what they are."""
        self._registry.register(self.engine, dict(wanted))
        self._split_record.register(self.engine, self._record_of_splits() if self._splits else None)
        self._structure_record.register(self.engine, self._record_of_structure())

    def _register_as_stored(self, wanted: Mapping[str, Shown], stored: Mapping[str, Any]) -> None:
        """Registers these tensors, and room for what else is stored. `stored`: the layouts of both shards. Raises Error
        if tensors are split in another way."""
        self._registry.register(self.engine, dict(wanted))
        if self._split_record.stored_name(stored) != (self._record_of_splits()[0] if self._splits else None):
            raise Error(
                Status.MISMATCH,
                "parameters are split over the ranks in another way than in the stored checkpoint; start with the "
                "meshes and placements that stored it, or under another job name",
            )
        self._split_record.register_as_stored(self.engine, stored)
        self._structure_record.register_as_stored(self.engine, stored)
        self._python_state.register_as_stored(self.engine, self._registry.gpu, stored)

    def _record_of_structure(self) -> tuple[str, bytes]:
        return _structure.record(self._python_state.structure())

    def _record_of_splits(self) -> tuple[str, bytes]:
        return _split.record(this_rank(), self.shard, self._splits)

    def _stored_splits(self) -> dict[str, _split.Split]:
        """Returns the splits that restore() has read. Raises Error if tensors of this program are split otherwise."""
        stored = _split.read_record(self._split_record.data).splits
        for name, split in self._splits.items():
            if name in stored and (stored[name].shape, stored[name].at) != (split.shape, split.at):
                raise Error(
                    Status.MISMATCH,
                    f"tensor '{name}' is split over the ranks in another way than in the stored checkpoint; start with "
                    "the meshes and placements that stored it, or under another job name",
                )
        return stored

    def _refuse_torn_capture(self) -> None:
        """Discards a capture whose tensors moved before before_update() finished it, and raises. If it were kept, a
        later before_update() or close() would regard it as complete."""
        self._capturing = False
        self.engine.discard()
        raise RuntimeError(
            "tensors were replaced or moved between snapshot() and before_update(), so the snapshot was discarded; "
            "call before_update() before anything replaces, moves or updates tensors"
        )

    def _before_step(self, key: str, optimizer: Any, args: tuple, kwargs: Mapping[str, Any]) -> None:
        self.before_update()
        closures = [*args[1:], kwargs.get("closure")]  # the first is the optimizer
        has_closure = any(closure is not None for closure in closures)
        shown, stream = self._registry.shown, self._current_stream()
        self._updates.give(key, optimizer, shown, self._identities, has_closure=has_closure, stream=stream)
