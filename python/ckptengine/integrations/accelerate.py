"""Adapter for Accelerate: captures what accelerator.prepare() has prepared, and the position in the data.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with Checkpointer(accelerator, job="run1") as checkpointer:
        for epoch in checkpointer.epochs(3):            # continues in the restored epoch
            for batch in checkpointer.batches(loader):  # continues after the restored position
                with accelerator.accumulate(model):
                    accelerator.backward(loss(model, batch))
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()

After each update, a snapshot is taken when the loop asks for the next batch. A step that only accumulates gradients is
no update. After a restart the loop repeats no update that was committed. Code after the inner loop, such as an
evaluation, runs again if the restored checkpoint is the last of its epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import accelerate

from ..torch import Checkpointer as TorchCheckpointer
from ..torch import _rng
from ._common import (
    Wrapped,
    finish_capture,
    one_or_all,
    refuse,
    refuse_distribution,
    refuse_forgotten_scheduler,
    say_where,
    torch_optimizer,
    with_rank,
)


class Checkpointer:
    """Captures the state of an Accelerator after each update. The constructor restores.

    So create it after the last accelerator.prepare() and register_for_checkpointing(), and before the loop. If your own
    code changes weights without optimizer.step(), call before_update() before each change.

    Args:
        accelerator: The Accelerator. Objects given to its register_for_checkpointing() are captured, too.
        model: A model that you did not give to accelerator.prepare(), because other code spreads it over the ranks.
        schedulers: Schedulers that you did not give to accelerator.prepare().
        extra: As in ckptengine.torch.Checkpointer.
        **more: Options, and arguments of ckptengine.torch.Checkpointer.

    Attributes:
        restored: What was restored.

    Raises:
        Error: The Accelerator has state that cannot be captured, or the engine fails.
    """

    def __init__(
        self,
        accelerator: accelerate.Accelerator,
        *,
        model: Any = None,
        schedulers: Iterable[Any] = (),
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        self.accelerator = accelerator
        self._wrapped = Wrapped()
        self._updated = False  # an optimizer has stepped since the last snapshot
        self._position = _Position(accelerator)
        self._prepared = _prepared(accelerator)
        schedulers = [*accelerator._schedulers, *schedulers]
        models = [*accelerator._models, *([] if model is None else [model])]
        _refuse(accelerator, models, schedulers)
        registered = {f"registered{i}": item for i, item in enumerate(accelerator._custom_objects)}
        self.inner = TorchCheckpointer(
            one_or_all(models),
            one_or_all([torch_optimizer(one) for one in accelerator._optimizers]),
            schedulers=one_or_all(schedulers),
            scaler=accelerator.scaler,
            extra={"accelerate": self._position, **registered, **(extra or {})},
            rng=False,  # it is part of the position
            **with_rank(more, accelerator.process_index, accelerator.num_processes),
        )
        self.restored = self.inner.restore()
        for optimizer in accelerator._optimizers:
            self._wrapped.around(optimizer, "step", self._step)
        say_where(self.restored.found, str(self._position))

    def epochs(self, count: int | None) -> Iterator[int]:
        """Yields the numbers of the epochs, from the restored one up to count - 1.

        Args:
            count: Number of epochs of the whole training. None: without end.
        """
        position = self._position
        for epoch in itertools.count(position.epoch) if count is None else range(position.epoch, count):
            position.begin_epoch(epoch)
            yield epoch
            position.end_epoch()
            self._snapshot()

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yields the batches that the epoch has not used yet. Call it once in each epoch of epochs(), with one loader.

        Args:
            loader: The data loader.
        """
        position = self._position
        if not position.in_epoch or position.has_iterated:
            refuse(
                "batches() was called twice in one epoch, or outside epochs(). Call it once in each epoch, within "
                "`for epoch in checkpointer.epochs(n)`"
            )
        for batch in position.iterate(loader):
            yield batch
            self._snapshot()
        finish_capture(self.inner)  # evaluation may change weights for a while

    def before_update(self) -> bool:
        """Finishes the pending capture. optimizer.step() calls it, too.

        Returns:
            False if the capture failed or was skipped.
        """
        return self.inner.before_update()

    def close(self) -> None:
        """Closes the engine. If the loop ended right after an update, first captures that update."""
        if self._updated:
            self._snapshot()
        self._close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self.close()
        else:
            self._close()

    def _close(self) -> None:
        self._wrapped.undo()
        self.inner.close()

    def _step(self, original: Any, *arguments: Any, **options: Any) -> Any:
        if self.accelerator.sync_gradients:
            self._updated = True
            self.before_update()
        return original(*arguments, **options)

    def _snapshot(self) -> None:
        if _prepared(self.accelerator) != self._prepared:
            refuse(
                "accelerator.prepare() or register_for_checkpointing() was called after the Checkpointer was created, "
                "so the objects given to that call are not captured. Create the Checkpointer after that call"
            )
        if not self._updated:
            return
        self._updated = False
        self._position.updates += 1
        self.inner.snapshot(self._position.updates - 1)


def _prepared(accelerator: accelerate.Accelerator) -> tuple[int, ...]:
    kinds = (accelerator._models, accelerator._optimizers, accelerator._schedulers, accelerator._custom_objects)
    return tuple(map(len, kinds))


def _refuse(accelerator: accelerate.Accelerator, models: list[Any], schedulers: list[Any]) -> None:
    refuse_distribution(accelerator)
    for what, found in (("a model", models), ("an optimizer", accelerator._optimizers)):
        if not found:
            refuse(
                f"accelerator.prepare() was not called with {what}, so none would be captured. Call prepare() with it "
                "before you create the Checkpointer"
            )
    for optimizer in accelerator._optimizers:
        refuse_forgotten_scheduler(optimizer, schedulers, "give it to accelerator.prepare(), or as `schedulers`")


class _Position:
    """The position of training in the data, and the random number generators. Each snapshot captures it."""

    def __init__(self, accelerator: accelerate.Accelerator) -> None:
        self._accelerator = accelerator
        self.updates = 0
        self.epoch = 0
        self.batches = 0  # how many batches of the epoch the loop has used
        self.in_epoch = False
        self.has_iterated = False
        self._rng_of_epoch: dict[str, Any] = {}  # the generators when the loop over the loader began
        self._loaders_of_epoch: list[dict[str, Any]] = []
        self._restored: dict[str, Any] | None = None  # what was restored; None once the loop has continued there

    def __str__(self) -> str:
        where = f"in epoch {self.epoch} (counted from 0), {self.batches} batches done"
        return f"{self.updates} updates done; {where}"

    def begin_epoch(self, epoch: int) -> None:
        self.epoch, self.in_epoch, self.has_iterated = epoch, True, False
        if self._restored is not None and self.batches == 0:
            _rng.write(self._restored["rng"])
            self._restored = None

    def end_epoch(self) -> None:
        self.epoch, self.batches, self.in_epoch = self.epoch + 1, 0, False

    def iterate(self, loader: Any) -> Iterator[Any]:
        self.has_iterated = True
        restored, self._restored = self._restored, None
        if restored is None:
            self.batches = 0
            self._rng_of_epoch, self._loaders_of_epoch = _rng.read(), self._loaders()
        else:
            _rng.write(self._rng_of_epoch)
            self._put_loaders(self._loaders_of_epoch)
        iteration = getattr(loader, "iteration", None)
        skipped = self.batches
        if skipped and iteration is not None:
            loader.set_epoch(iteration)  # the loader that skips batches does not set the sampler's epoch
        batches = iter(accelerate.skip_first_batches(loader, skipped) if skipped else loader)
        first = list(itertools.islice(batches, 1))
        if restored is not None:  # the next batch had been loaded when the snapshot was taken
            self._put_moment(restored, but=loader)
        for batch in itertools.chain(first, batches):
            self.batches += 1
            yield batch
        if skipped and iteration is not None:
            loader.iteration = iteration + 1

    # ---- as it is captured ----

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "epoch": self.epoch,
            "batches": self.batches,
            "step": self._accelerator.step,
            "rng": _rng.read(),
            "loaders": self._loaders(),
            "rng_of_epoch": self._rng_of_epoch,
            "loaders_of_epoch": self._loaders_of_epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.epoch, self.batches = state["updates"], state["epoch"], state["batches"]
        self._rng_of_epoch, self._loaders_of_epoch = state["rng_of_epoch"], state["loaders_of_epoch"]
        self._put_moment(state)
        self._restored = state

    def _put_moment(self, state: dict[str, Any], but: Any = None) -> None:
        self._accelerator.step = state["step"]
        self._put_loaders(state["loaders"], but)
        _rng.write(state["rng"])

    def _loaders(self) -> list[dict[str, Any]]:
        """Returns, for each prepared DataLoader, its epoch and what its order depends on."""
        found = []
        for loader in self._accelerator._dataloaders:
            generator = getattr(loader, "synchronized_generator", None)
            found.append(
                {
                    "iteration": getattr(loader, "iteration", None),
                    "generator": None if generator is None else generator.get_state(),
                    "seed": getattr(_sampler(loader), "initial_seed", None),
                }
            )
        return found

    def _put_loaders(self, states: list[dict[str, Any]], but: Any = None) -> None:
        for loader, state in zip(self._accelerator._dataloaders, states, strict=True):
            if loader is but:
                continue
            if state["iteration"] is not None:
                loader.iteration = state["iteration"]
            if state["generator"] is not None:
                loader.synchronized_generator.set_state(state["generator"])
            if state["seed"] is not None:
                _sampler(loader).initial_seed = state["seed"]


def _sampler(loader: Any) -> Any:
    find = getattr(loader, "get_sampler", None)
    return None if find is None else find()
