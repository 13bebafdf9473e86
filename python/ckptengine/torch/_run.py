"""run() calls a training function again after a failure, in a process that stays."""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from .._engine import Error, Halted, Status
from .._programs import BEGIN_ANEW
from . import _internals, groups
from .groups import Interrupted

if TYPE_CHECKING:
    from .._engine import Halt
    from ._checkpointer import Checkpointer

log = logging.getLogger("ckptengine")

Result = TypeVar("Result")

HALT_WAIT_S = 60.0  # for the halt that follows a failed communication
_WATCH_S = 0.2


def run(train: Callable[[Checkpointer], Result], checkpointer: Checkpointer) -> Result:
    """Calls `train(checkpointer)` and returns its result. Calls it again after another rank has died or hangs.

    When the job is halted, training is interrupted: run() rejoins the job, restores, and calls `train` again. This
    process, its model and its groups stay.

        def train(ckpt):                                  # called again after an interruption
            for k in range(ckpt.next_iteration, iterations):
                loss = forward_backward()
                with ckpt.update(k):                      # raises Interrupted if the job is halted
                    optimizer.step()

        torch.distributed.init_process_group("ckpt:gloo")
        ckptengine.torch.run(train, Checkpointer(model, optimizer, on_suspicion="halt"))

    Needs groups "ckpt:gloo" or "ckpt:nccl", and the option on_suspicion=halt. run() restores: do not call restore().

    What `train` must do:

    - It begins at `checkpointer.next_iteration`. Its local variables are lost with each call. State that must survive
      belongs to the checkpointer, e.g. as `extra`.
    - It changes the model within `checkpointer.update(k)` only, or after before_update(). Both raise Interrupted, as
      do communications. It lets Interrupted through. Before that, a backward pass may have given garbage.
    - Process groups that it makes are destroyed when it is interrupted. Make others before run().

    A process that takes the place of another, or that has not finished two passes, first calls `train` twice up to the
    first update, with closed groups, to warm DDP models up. Its state is put back. Meanwhile
    `checkpointer.is_warming_up` is true.

    Call it on the training thread. It returns once `train` has returned on all ranks. An exception that no interruption
    explains leaves run().

    Args:
        train: The training function.
        checkpointer: The checkpointer of this rank.

    Returns:
        What the last call of `train` returned.

    Raises:
        Error: This torch lacks something, no halt follows a failed communication within 60 s, or the process cannot
            rejoin. Then end the process: its rank may be started again. With Status.LOST nothing was stored before the
            interruption: ckptrun then starts all ranks anew together.
    """
    return _Run(train, checkpointer).run()


class NothingStored(Error):
    """Nothing is stored that all ranks can get, so training begins from the start. This process cannot take part: it
    has trained already, or cannot get the first state of the others. All ranks have to start again together, as they do
    under ckptrun."""

    ckptrun_status = BEGIN_ANEW

    def __init__(self, why: str) -> None:
        super().__init__(Status.LOST, f"{why}. End this process and start all ranks again together, as ckptrun does")


class _WarmedUp(BaseException):
    """Ends a pass that only warms up. Not an Exception, so that `train` does not handle it."""


class _WarmUpGate:
    def before_update(self) -> None:
        raise _WarmedUp

    before_snapshot = before_update


class _TrainingGate:
    def __init__(self) -> None:
        self._failures = 0

    def before_update(self) -> None:
        groups.check()
        self._failures = groups.failures()

    def before_snapshot(self) -> None:
        if groups.failures() != self._failures:
            raise Interrupted(f"the update may have used wrong values: {groups.why_not()}")


class _Watch:
    """A thread that interrupts the groups when the job is halted."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ckpt-interrupt", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                halt = self._engine.wait_halt(_WATCH_S)
            except Error as error:
                log.warning("this rank will not be interrupted by a halt, because waiting for one failed: %s", error)
                return
            if halt is not None and not self._end.is_set():
                groups.interrupt(str(halt))
                return

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


class _Before:
    """The state that a pass changes without an update: Python state, random number generators and buffers."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self._python = checkpointer._python_state.read()
        models = checkpointer._inventory.models.values()
        self._buffers = [(buffer, buffer.clone()) for model in models for buffer in model.buffers()]

    def put_back(self) -> None:
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)
        self._checkpointer._python_state.write(self._python)


class _Run:
    def __init__(self, train: Callable[[Checkpointer], Any], checkpointer: Checkpointer) -> None:
        self._train = train
        self._checkpointer = checkpointer
        self._engine = checkpointer.engine
        self._models = list(checkpointer._inventory.models.values())
        self._calls = 0
        self._made: Any = None  # the groups that there were before `train` was called
        self._watch: _Watch | None = None

    def run(self) -> Any:
        _internals.require(self._models)
        groups.require_replaceable()
        self._engine.wait_halt(0)  # raises Error if nothing is ever halted
        self._made = _internals.made_groups()
        self._checkpointer._gate = _TrainingGate()
        try:
            with groups.guard(self._watcher()):
                while True:
                    try:
                        self._begin()
                        result = self._train(self._checkpointer)
                        self._meet()
                        return result
                    except NothingStored:
                        raise
                    except Exception as error:
                        halt = self._await_halt(error)
                        if halt is None:
                            raise
                        traceback.clear_frames(error.__traceback__)  # they hold activations
                    self._go_on(halt)
        finally:
            self._checkpointer._gate = None
            self._stop_watching()

    def _watcher(self) -> Any:
        """What marks the groups' communications, or None."""
        communication = self._checkpointer._communication
        return communication if communication is not None and communication.may_watch_groups else None

    # ---- the begin of an incarnation ----

    def _begin(self) -> None:
        is_first = self._calls == 0
        self._calls += 1
        if (groups.is_closed() or not is_first) and _internals.needs_warm_up(self._models):
            self._warm_up()
        if not is_first and not self._engine.stored_layout()["found"]:
            raise NothingStored("training was interrupted before anything was stored")
        restored = self._checkpointer.restore()  # from now on nobody uses the groups any more
        groups.close()
        self._watch = _Watch(self._engine)
        if not restored.found and groups.unanswered():
            raise NothingStored(
                f"nothing is stored, and this process cannot build its model alone: {groups.unanswered()} needs the "
                "other ranks"
            )
        groups.reopen(f"incarnation{restored.incarnation}")
        _internals.reset_models(self._models)
        if not restored.found:
            _internals.send_states(self._models)  # closed groups could not

    def _warm_up(self) -> None:
        """Calls `train` twice with closed groups, because DDP makes its final buckets in the second pass. A process
        that joins others must have the same buckets as they."""
        before = _Before(self._checkpointer)
        self._checkpointer._gate, self._checkpointer.is_warming_up = _WarmUpGate(), True
        try:
            for _ in range(2):
                try:
                    self._train(self._checkpointer)
                except _WarmedUp:
                    pass
                else:
                    raise Error(
                        Status.INVALID,
                        "the training function has returned without an update while it warmed up; call "
                        "checkpointer.update() in each iteration",
                    )
                finally:
                    _internals.forget_groups_since(self._made)
            _internals.reset_models(self._models)
        finally:
            self._checkpointer._gate, self._checkpointer.is_warming_up = _TrainingGate(), False
            before.put_back()

    # ---- the end of one ----

    def _meet(self) -> None:
        """Waits until all ranks have finished training. If a rank fails in its last iterations, the other ranks are
        still there and can go on."""
        with self._checkpointer.pause("the end of training"):
            torch.distributed.barrier()

    def _await_halt(self, error: Exception) -> Halt | None:
        """Returns the halt that explains an exception, or None."""
        why = groups.why_not()
        if not why and not isinstance(error, Halted):
            return None
        halt = self._engine.wait_halt(0)
        if halt is None:
            with contextlib.suppress(Error):  # not restored yet
                self._engine.report_trouble(f"{why or error}")
            halt = self._engine.wait_halt(HALT_WAIT_S)
        if halt is None:
            log.error("a communication has failed, and no halt followed within %.0f s: %s", HALT_WAIT_S, why)
        return halt

    def _go_on(self, halt: Halt) -> None:
        log.warning("training is interrupted: %s", halt)
        self._stop_watching()
        groups.close()
        _internals.forget_groups_since(self._made)
        self._forget_pass()
        if self._checkpointer._communication is not None:
            self._checkpointer._communication.forget()
        self._engine.rejoin()

    def _forget_pass(self) -> None:
        _internals.reset_models(self._models)
        for optimizer in self._checkpointer._inventory.optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        for scaler in self._checkpointer._stateful["scaler"].values():
            _internals.reset_scaler(scaler)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None
