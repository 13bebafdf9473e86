"""Adapter for transformers: a callback that captures the whole state of a Trainer after each update.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    trainer.add_callback(CheckpointCallback(trainer, job="run1"))
    trainer.train()                       # after a restart, continues after the newest committed update

To restart, start the same script again, without `resume_from_checkpoint`. The callback captures the model, optimizer,
scheduler and GradScaler, the TrainerState with its logs, sums of losses that are not logged yet, callbacks that are
ExportableState or have state_dict() and load_state_dict(), the random number generators, and the position in the data.
It takes a snapshot after each update, once the Trainer has logged, evaluated and saved.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ..torch import Checkpointer, _rng
from ._common import Wrapped, refuse, refuse_distribution, refuse_older, say_where, torch_optimizer, with_rank

log = logging.getLogger("ckptengine")

# The fields of a TrainerState that change during training. All others come from the arguments of this start.
_STATE = "epoch global_step num_input_tokens_seen total_flos best_metric best_global_step best_model_checkpoint".split()
# Private attributes of a Trainer with sums that are not logged yet.
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
# Methods of a Trainer that the callback wraps.
_METHODS = (
    "_inner_training_loop _init_training_state _prepare_for_training _run_epoch get_batch_samples _load_rng_state "
    "_finalize_training"
).split()


class CheckpointCallback(TrainerCallback):
    """Captures one trainer.train(), and restores before its first step.

    Args:
        trainer: The Trainer to which the callback belongs.
        extra: As in ckptengine.torch.Checkpointer: objects with state of your own code.
        **more: Options, and arguments of ckptengine.torch.Checkpointer.

    Attributes:
        checkpointer: The Checkpointer. None before train().
        restored: What its restore() returned.

    Raises:
        Error: The Trainer has state that cannot be captured. The text says what to use instead.
    """

    def __init__(self, trainer: transformers.Trainer, *, extra: Mapping[str, Any] | None = None, **more: Any) -> None:
        _refuse(trainer)
        self.trainer = trainer
        self.checkpointer: Checkpointer | None = None
        self.restored: Any = None
        self._more, self._extra = more, dict(extra or {})
        self._is_over = False
        self._wrapped = Wrapped()
        self._position = _Position(self)
        for name in _METHODS:
            self._wrapped.around(trainer, name, getattr(self, f"_around{name if name[0] == '_' else '_' + name}"))

    # ---- wrappers of the Trainer's methods, in the order in which it calls them ----

    def _around_inner_training_loop(self, original: Any, *arguments: Any, **options: Any) -> Any:
        if self not in self.trainer.callback_handler.callbacks:
            refuse(
                "the Trainer does not have the CheckpointCallback that was made for it: call "
                "trainer.add_callback(callback) before trainer.train()"
            )
        try:
            return original(*arguments, **options)
        finally:
            self._close()

    def _around_init_training_state(self, original: Any, *arguments: Any, **options: Any) -> Any:
        first, batches = original(*arguments, **options)
        return _FirstEpoch(self._position, first), batches

    def _around_prepare_for_training(self, original: Any, *arguments: Any, **options: Any) -> Any:
        prepared = original(*arguments, **options)
        trainer = self.trainer
        if trainer.state.is_hyper_param_search:
            refuse(
                "hyperparameter_search() runs many trainings, and a job name stands for one. Search without the "
                "CheckpointCallback, and use it in a single train() afterwards"
            )
        optimizer = torch_optimizer(trainer.optimizer)
        self.checkpointer = Checkpointer(
            trainer.model_wrapped,
            optimizer,
            schedulers=trainer.lr_scheduler,
            scaler=trainer.accelerator.scaler,
            extra={"trainer": self._position, **self._extra},
            rng=False,  # it is part of the position
            **with_rank(self._more, trainer.args.process_index, trainer.args.world_size),
        )
        folder_step = trainer.state.global_step  # 0: there is no folder to resume from
        stored = self.checkpointer.engine.stored_layout()
        self._refuse_older_than(folder_step, stored)
        self.restored = self.checkpointer.restore()
        if folder_step != 0:
            refuse_older(self.restored, stored)
        say_where(self.restored.found, str(self._position))
        return prepared

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        if self._is_over:
            refuse(
                "this CheckpointCallback has already been used: it protects one trainer.train(). For another train(), "
                "add a new CheckpointCallback with another job name"
            )
        self._position.put_sums()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self._position.begin_epoch()

    def _around_run_epoch(self, original: Any, **how: Any) -> None:
        original(**(how | self._position.iterate(how)))
        self._position.end_epoch(how["num_update_steps_per_epoch"])
        self._snapshot()

    def _around_get_batch_samples(self, original: Any, *arguments: Any, **options: Any) -> Any:
        self._snapshot()  # the Trainer has finished all work for the last update
        return original(*arguments, **options)

    def _around_load_rng_state(self, original: Any, checkpoint: Any) -> None:
        if checkpoint is self._position:
            self._position.put_generators()
        else:
            original(checkpoint)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if hasattr(torch_optimizer(self.trainer.optimizer), "train"):
            self.checkpointer.before_update()  # schedule-free optimizers change weights when training mode begins

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.checkpointer.before_update()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._position.count_update()

    def _around_finalize_training(self, original: Any, *arguments: Any, **options: Any) -> Any:
        self._close()  # load_best_model_at_end replaces weights
        return original(*arguments, **options)

    # ---- inside ----

    def _snapshot(self) -> None:
        if self._position.is_new:
            self._position.is_new = False
            self.checkpointer.snapshot(self.trainer.state.global_step - 1)

    def _close(self) -> None:
        self._is_over = True
        self._wrapped.undo()
        if self.checkpointer is not None:
            self.checkpointer.close()

    def _refuse_older_than(self, step: int, stored: dict[str, Any]) -> None:
        """Raises Error if the folder of resume_from_checkpoint, which begins at `step`, is newer than the checkpoint
        that the engine would restore."""
        if stored["found"] and stored["iteration"] + 1 < step:
            refuse(
                f"the folder of resume_from_checkpoint begins at step {step}, but the engine's newest checkpoint of "
                f"this job ends at step {stored['iteration'] + 1}. To continue from the engine's checkpoint, leave out "
                "resume_from_checkpoint. To begin from the folder, use another job name"
            )


def _refuse(trainer: transformers.Trainer) -> None:
    missing = [name for name in _METHODS if not hasattr(trainer, name)]
    if missing:
        refuse(
            f"the CheckpointCallback does not work with transformers {transformers.__version__}, because its Trainer "
            f"has no method {missing[0]}. Install transformers 5.24, or use ckptengine.torch.Checkpointer"
        )
    refuse_distribution(trainer.accelerator)
    arguments = trainer.args
    if arguments.auto_find_batch_size:
        refuse(
            "auto_find_batch_size starts training again in the same process, which the engine does not support. Set "
            "per_device_train_batch_size instead"
        )
    optim = str(getattr(arguments.optim, "value", arguments.optim))
    if "layerwise" in optim or "lomo" in optim:
        refuse(
            f"optim={optim!r} updates weights during the backward pass, while the engine still captures them: use "
            "another optimizer"
        )


class _FirstEpoch:
    """Stands for the number of the first epoch. The Trainer gets this object before restore(), and reads the number
    after restore(). `without`: the number if nothing is restored."""

    def __init__(self, position: _Position, without: int) -> None:
        self._position, self._without = position, without

    def __index__(self) -> int:
        first = self._position.first_epoch
        return self._without if first is None else first

    def __eq__(self, other: object) -> bool:
        return self.__index__() == other

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __str__(self) -> str:
        return str(self.__index__())


class _Position:
    """The position of a Trainer: counters, logs, callbacks, generators. Each snapshot captures it."""

    def __init__(self, callback: CheckpointCallback) -> None:
        self._callback = callback
        self._trainer = callback.trainer
        self.first_epoch: int | None = None  # set if restore() found a checkpoint
        self.is_new = False  # an update followed the last snapshot
        self._epoch = 0
        self._updates = 0  # number of updates in this epoch
        self._rng_of_epoch: dict[str, Any] = {}  # the generators when the loop over the data began
        self._restored: dict[str, Any] | None = None  # what was restored; None once the loop has continued there
        self._logs = bytearray()  # log_history as lines of JSON
        self._logged = 0

    def __str__(self) -> str:
        step = self._trainer.state.global_step
        return f"{step} updates done; in epoch {self._epoch} (counted from 0), {self._updates} updates done"

    def begin_epoch(self) -> None:
        if self._restored is not None and self._updates == 0:
            self.put_generators()

    def iterate(self, how: dict[str, Any]) -> dict[str, Any]:
        """Returns arguments of _run_epoch() with which the Trainer skips the updates of this epoch that are done. They
        replace the arguments that the Trainer would use for resume_from_checkpoint."""
        restored, self._restored = self._restored, None
        if restored is None or self._updates == 0:
            self._epoch, self._updates, self._rng_of_epoch = int(how["epoch"]), 0, _rng.read()
            if self.first_epoch is None:
                self._updates = self._updates_on_disk(how)
                return {}
            return {"resume_from_checkpoint": None}
        self._generators = restored["rng"]
        _rng.write(self._rng_of_epoch)
        arguments = self._trainer.args
        batches = 0 if arguments.ignore_data_skip else self._updates * arguments.gradient_accumulation_steps
        return {
            "resume_from_checkpoint": self,
            "epochs_trained": self._epoch,
            "steps_trained_in_current_epoch": batches,
        }

    def _updates_on_disk(self, how: dict[str, Any]) -> int:
        if how["resume_from_checkpoint"] is None or how["epoch"] != how["epochs_trained"]:
            return 0
        return how["steps_trained_in_current_epoch"] // self._trainer.args.gradient_accumulation_steps

    def count_update(self) -> None:
        self._updates += 1
        self.is_new = True

    def end_epoch(self, updates: int) -> None:
        """Goes to the next epoch, unless training was stopped with updates of this epoch left."""
        if self._updates >= updates or self._trainer.control.should_epoch_stop:
            self._epoch, self._updates = self._epoch + 1, 0

    def put_generators(self) -> None:
        _rng.write(self._generators)

    def put_sums(self) -> None:
        if self._restored is None:
            return
        for name, value in self._restored["sums"].items():
            before = getattr(self._trainer, name)
            setattr(self._trainer, name, value.to(before.device) if isinstance(before, torch.Tensor) else value)

    # ---- as it is captured ----

    def state_dict(self) -> dict[str, Any]:
        trainer, state = self._trainer, self._trainer.state
        stopped = trainer.control.should_training_stop and state.global_step < state.max_steps
        self._write_logs(state.log_history)
        return {
            "epoch": self._epoch,
            "updates": self._updates,
            "stopped": stopped,
            "state": {name: getattr(state, name) for name in _STATE},
            "logs": bytes(self._logs),
            "sums": {name: getattr(trainer, name, 0.0) for name in _SUMS},
            "callbacks": self._callbacks(),
            "rng": _rng.read(),
            "rng_of_epoch": self._rng_of_epoch,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        state = self._trainer.state
        for name, value in saved["state"].items():
            setattr(state, name, value)
        if state.best_model_checkpoint is not None and not os.path.isdir(state.best_model_checkpoint):
            log.warning(
                "the folder %s of the best model is gone. Training goes on. load_best_model_at_end loads a model only "
                "if a better one is saved from now on",
                state.best_model_checkpoint,
            )
            state.best_model_checkpoint = None
        state.log_history = [json.loads(line) for line in saved["logs"].splitlines()]
        self._put_callbacks(saved["callbacks"])
        self._epoch, self._updates = saved["epoch"], saved["updates"]
        self._rng_of_epoch, self._generators, self._restored = saved["rng_of_epoch"], saved["rng"], saved
        is_done = saved["stopped"] or state.global_step >= state.max_steps
        self.first_epoch = state.num_train_epochs if is_done else self._epoch

    def _write_logs(self, history: list[dict]) -> None:
        """Encodes the logs that are new since the last snapshot. Encoding all of them each time would take ever
        longer."""
        if len(history) < self._logged:
            self._logs, self._logged = bytearray(), 0
        for entry in history[self._logged :]:
            self._logs += json.dumps(entry).encode() + b"\n"
        self._logged = len(history)

    def _stateful(self) -> list[tuple[str, Any]]:
        others = [one for one in self._trainer.callback_handler.callbacks if one is not self._callback]
        return [(f"{i} {type(one).__name__}", one) for i, one in enumerate(others)]

    def _callbacks(self) -> dict[str, Any]:
        found = {}
        for name, one in self._stateful():
            if hasattr(one, "state_dict") and hasattr(one, "load_state_dict"):
                found[name] = one.state_dict()
            elif isinstance(one, ExportableState):
                found[name] = one.state()["attributes"]
        return found

    def _put_callbacks(self, saved: dict[str, Any]) -> None:
        for name, one in self._stateful():
            if name in saved and hasattr(one, "load_state_dict"):
                one.load_state_dict(saved[name])
            else:
                for attribute, value in saved.get(name, {}).items():
                    setattr(one, attribute, value)
