"""Adapter for Lightning: a callback that captures the whole state of trainer.fit() after each update.

    trainer = lightning.Trainer(max_epochs=3, callbacks=[CheckpointCallback(job="run1")])
    trainer.fit(model, loader)            # after a restart, continues after the newest committed update

To restart, start the same script again, without `ckpt_path`. The callback captures the model, optimizers, schedulers
and GradScaler, the progress of all loops, callbacks and the data module by their state_dict(), what the module's
on_save_checkpoint() gives, logged metrics and torchmetrics of the epoch, the random number generators, and the position
in the data. It takes a snapshot after each update, once the validation that follows the update is done. For the last
update of an epoch, it takes the snapshot when the epoch has ended.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from typing import Any

try:
    import lightning.pytorch as framework
except ImportError:
    import pytorch_lightning as framework

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from ..torch import Checkpointer, _rng
from ._common import (
    Wrapped,
    finish_capture,
    one_or_all,
    refuse,
    refuse_forgotten_scheduler,
    refuse_older,
    say_where,
    with_rank,
)

# Compared by name, because a subclass may be a strategy that is not supported.
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy")


class CheckpointCallback(framework.Callback):
    """Captures one trainer.fit(), and restores when fit() begins.

    Args:
        extra: As in ckptengine.torch.Checkpointer: objects with state of your own code.
        **more: Options, and arguments of ckptengine.torch.Checkpointer.

    Attributes:
        checkpointer: The Checkpointer. None before fit().
        restored: What its restore() returned.
    """

    def __init__(self, *, extra: Mapping[str, Any] | None = None, **more: Any) -> None:
        self.checkpointer: Checkpointer | None = None
        self.restored: Any = None
        self._more, self._extra = more, dict(extra or {})
        self._wrapped = Wrapped()
        self._newest = 0  # number of the newest update that has a snapshot

    # ---- hooks ----

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        strategy = type(trainer.strategy).__name__
        if strategy not in _STRATEGIES:
            refuse(
                f"Lightning's {strategy} keeps state where the CheckpointCallback cannot capture it: use DDPStrategy, "
                "or ModelParallelStrategy (FSDP2, tensor parallelism)"
            )
        if self.restored is not None:
            refuse(
                "this CheckpointCallback has already been used: it protects one trainer.fit(). For another fit(), use "
                "a new CheckpointCallback with another job name"
            )

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        if all(type(optimizer).__name__ == "_MockOptimizer" for optimizer in trainer.optimizers):
            refuse(
                "configure_optimizers() returned no optimizer. An optimizer that is made elsewhere would not be "
                "captured: return it from configure_optimizers()"
            )
        for optimizer in trainer.optimizers:
            refuse_forgotten_scheduler(optimizer, schedulers, "return it from configure_optimizers()")
        position = self._position = _Position(self, trainer)
        self.checkpointer = Checkpointer(
            trainer.strategy.model,
            one_or_all(trainer.optimizers),
            schedulers=one_or_all(schedulers),
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            extra={"lightning": position, **self._extra},
            rng=False,  # it is part of the position
            **with_rank(self._more, trainer.global_rank, trainer.world_size),
        )
        stored = self.checkpointer.engine.stored_layout()
        self._refuse_older_than_file(trainer, stored)
        self.restored = self.checkpointer.restore()
        if trainer.ckpt_path:
            refuse_older(self.restored, stored)
        self._newest = trainer.global_step
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._wrapped.around(fit, "setup_data", position.around_setup_data)
        self._wrapped.around(fit, "on_advance_start", position.around_epoch_start)
        self._wrapped.around(epoch, "on_run_start", position.around_batches_start)
        self._wrapped.around(epoch.val_loop, "run", self._around_validation)
        self._wrapped.around(epoch, "on_advance_end", self._around_batch_end)
        self._wrapped.around(fit, "on_advance_end", self._around_epoch_end)
        self._wrapped.around(fit, "on_run_end", self._around_end)
        say_where(self.restored.found, str(position))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._close()

    # ---- wrappers of the loops' methods ----

    def _around_validation(self, original: Any) -> Any:
        self.checkpointer.before_update()  # averaged weights may replace the weights for a while
        return original()

    def _around_batch_end(self, original: Any, fetcher: Any) -> None:
        original(fetcher)
        if not self._position.epoch_loop.done:
            self._snapshot(in_epoch=True)

    def _around_epoch_end(self, original: Any) -> None:
        self.checkpointer.before_update()  # callbacks may change weights
        original()
        self._snapshot(in_epoch=False)

    def _around_end(self, original: Any) -> None:
        finish_capture(self.checkpointer)
        original()

    # ---- inside ----

    def _snapshot(self, in_epoch: bool) -> None:
        """Takes a snapshot if there was an update since the last one, not if gradients were only accumulated."""
        updates = self._position.trainer.global_step
        if updates > self._newest:
            self._newest = updates
            self._position.in_epoch = in_epoch
            self.checkpointer.snapshot(updates - 1)

    def _close(self) -> None:
        self._wrapped.undo()
        if self.checkpointer is not None:
            self.checkpointer.close()

    def _refuse_older_than_file(self, trainer: Any, stored: dict[str, Any]) -> None:
        if not stored["found"] or not trainer.ckpt_path:
            return
        connector = trainer._checkpoint_connector
        if connector._loaded_checkpoint.get("global_step", sys.maxsize) > stored["iteration"] + 1:
            refuse(
                f"ckpt_path={trainer.ckpt_path!r} may be newer than the engine's newest checkpoint of this job, which "
                f"ends after {stored['iteration'] + 1} updates. To continue from the engine's checkpoint, leave out "
                "ckpt_path. To begin from the file, use another job name"
            )
        connector._loaded_checkpoint = {}  # the checkpoint in memory is newer


class _Position:
    """The position of trainer.fit(): loops, callbacks, metrics, generators. Each snapshot captures it."""

    def __init__(self, callback: CheckpointCallback, trainer: Any) -> None:
        self._callback = callback
        self.trainer = trainer
        self.fit_loop = trainer.fit_loop
        self.epoch_loop = trainer.fit_loop.epoch_loop
        self.in_epoch = False
        self._restored: dict[str, Any] | None = None  # what was restored; None once the loop has continued there
        # The random number generators when Lightning made its DataLoaders, made their iterators, and began to iterate.
        self._generators: dict[str, Any] = {}

    def __str__(self) -> str:
        batches = self.epoch_loop.batch_progress.current.completed if self.in_epoch else 0
        where = f"in epoch {self.trainer.current_epoch} (counted from 0), {batches} batches done"
        return f"{self.trainer.global_step} updates done; {where}"

    # ---- wrappers of the loops' methods ----

    def around_setup_data(self, original: Any) -> None:
        if self._restored is not None and "setup" in self._generators:
            _rng.write(self._generators["setup"])
        elif self.fit_loop._combined_loader is None:
            self._generators["setup"] = _rng.read()
        original()

    def around_epoch_start(self, original: Any) -> None:
        if self._restored is not None and not self.in_epoch:
            self._go_on(self._take_restored())
        original()

    def around_batches_start(self, original: Any, fetcher: Any) -> None:
        """Runs before the first batch of an epoch. In the epoch of a restart: before the first batch not used yet."""
        if self._restored is None:
            self._generators["iterate"] = _rng.read()
            original(fetcher)
            self._generators["begin"] = _rng.read()
            return
        restored = self._take_restored()
        loaders = self.fit_loop._combined_loader.flattened
        if not all(hasattr(loader, "state_dict") for loader in loaders):  # otherwise the loaders know their position
            if self.trainer.current_epoch > 0:  # in the first epoch, setup_data() made the iterator
                _rng.write(self._generators["iterate"])
                iter(fetcher)
            _rng.write(self._generators["begin"])
            _skip(fetcher, loaders, self.epoch_loop.batch_progress.current.ready)
            fetcher.fetched = 0
        original(fetcher)
        self._go_on(restored)

    def _take_restored(self) -> dict[str, Any]:
        restored, self._restored = self._restored, None
        return restored

    def _go_on(self, restored: dict[str, Any]) -> None:
        """Undoes Lightning's special treatment of the first batch after a restart. Lightning needs it because its own
        checkpoints may be taken within an update. Snapshots are taken between updates."""
        for loop in (self.fit_loop, self.epoch_loop, self.epoch_loop.val_loop):
            loop.on_iteration_done()  # lets the loop forget that it was loaded
        self.trainer.should_stop = restored["should_stop"]
        _rng.write(restored["rng"])

    # ---- as it is captured ----

    def state_dict(self) -> dict[str, Any]:
        trainer = self.trainer
        module = {}
        if _overrides(trainer.lightning_module, "on_save_checkpoint"):
            trainer.lightning_module.on_save_checkpoint(module)
        others = [one for one in trainer.callbacks if one is not self._callback]
        callbacks = {one.state_key: state for one in others if (state := one.state_dict())}
        return {
            "in_epoch": self.in_epoch,
            "should_stop": trainer.should_stop,
            "loops": self.fit_loop.state_dict(),
            "callbacks": callbacks,
            "data": {} if trainer.datamodule is None else trainer.datamodule.state_dict(),
            "module": module,
            "logged": dict(trainer._logger_connector._callback_metrics),
            "results": _results(self.epoch_loop._results),
            "metrics": {name: _of_metric(metric) for name, metric in _metrics(trainer.lightning_module)},
            "rng": _rng.read(),
            "generators": self._generators,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self.trainer
        self.in_epoch, self._generators, self._restored = state["in_epoch"], state["generators"], state
        self.fit_loop.load_state_dict(state["loops"])
        self.epoch_loop.val_loop._restarting = True  # otherwise Lightning begins with a sanity check
        for one in trainer.callbacks:
            if one.state_key in state["callbacks"]:
                one.load_state_dict(copy.deepcopy(state["callbacks"][one.state_key]))
        if trainer.datamodule is not None:
            trainer.datamodule.load_state_dict(state["data"])
        if state["module"]:
            trainer.lightning_module.on_load_checkpoint(state["module"])
        trainer._logger_connector._callback_metrics.update(state["logged"])
        self._put_results(state["results"])
        for name, metric in _metrics(trainer.lightning_module):
            _put_metric(metric, state["metrics"].get(name))

    def _put_results(self, saved: dict[str, dict[str, Any]]) -> None:
        """Restores the sums of logged values. Restores each one when it is first logged, because only then Lightning
        makes its object."""
        results = self.epoch_loop._results

        def update(original: Any, key: str, value: Any, batch_size: int) -> None:
            for name, before in saved.pop(key, {}).items():
                setattr(results[key], name, before.to(results[key].value.device))
            original(key, value, batch_size)

        self._callback._wrapped.around(results, "update_metrics", update)


def _skip(fetcher: Any, loaders: list[Any], batches: int) -> None:
    """Skips the first `batches` batches, without loading them if possible: with one DataLoader that has a map-style
    dataset and no workers."""
    inner = getattr(fetcher.combined_loader._iterator, "iterators", [])
    loader = loaders[0]
    is_plain = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if len(loaders) == 1 and is_plain and type(inner[0]) is _SingleProcessDataLoaderIter:
        for _ in range(batches):
            next(inner[0]._sampler_iter)
        fetcher.combined_loader._iterator._idx += batches
        return
    for _ in range(batches):
        next(fetcher)


def _overrides(module: Any, name: str) -> bool:
    return getattr(type(module), name) is not getattr(framework.LightningModule, name)


def _results(results: Any) -> dict[str, dict[str, Any]]:
    """Returns the sums so far of values that are logged at the end of the epoch."""
    names = ("value", "cumulated_batch_size")
    return {
        key: {name: getattr(one, name) for name in names if hasattr(one, name)}
        for key, one in results.items()
        if one.is_tensor and one.meta.on_epoch and not one.has_reset
    }


def _metrics(module: torch.nn.Module) -> list[tuple[str, Any]]:
    torchmetrics = sys.modules.get("torchmetrics")
    kind = getattr(torchmetrics, "Metric", ())
    return [(name, one) for name, one in module.named_modules() if isinstance(one, kind) and one._defaults]


def _of_metric(metric: Any) -> dict[str, Any] | None:
    """Returns the state of a torchmetrics.Metric."""
    if not metric._update_count:
        return None
    return {"count": metric._update_count, "states": {name: getattr(metric, name) for name in metric._defaults}}


def _put_metric(metric: Any, saved: dict[str, Any] | None) -> None:
    if saved is not None:
        metric._update_count = saved["count"]
        for name, value in saved["states"].items():
            on_device = [one.to(metric.device) for one in value] if isinstance(value, list) else value.to(metric.device)
            setattr(metric, name, on_device)
