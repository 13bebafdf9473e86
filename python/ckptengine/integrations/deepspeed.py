"""Adapter for DeepSpeed with ZeRO stages 1 and 2. docs/frameworks.md has an example.

Each rank captures its module, its partition of the master weights and of the optimizer's state, the loss scaler, the
learning rate scheduler and the engine's counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import deepspeed
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from .. import Error, Status
from .. import torch as _torch
from ..torch import _rng

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps", "_unmanaged_backward_count")
_SCALING = ("overflow", "dynamic_loss_scale", "custom_loss_scaler", "external_loss_scale")  # of an optimizer


class Checkpointer(_torch.Checkpointer):
    """Captures a DeepSpeed engine after every update, and restores it after a failure.

        with Checkpointer(engine, extra={"data": data}, job="run1") as ckpt:
            ckpt.restore()
            while engine.global_steps < iterations:
                engine.backward(engine(next(data)))
                ckpt.step()                 # in place of engine.step()

    All other methods are those of ckptengine.torch.Checkpointer. If you gave `training_data` to initialize(), put
    Batches(loader) into `extra`, and iterate over that object: DeepSpeed's own loader cannot say which batches it has
    yielded.

    Args:
        engine: The engine that deepspeed.initialize() returned, with ZeRO stage 1 or 2.
        extra: As in ckptengine.torch.Checkpointer.
        **more: Options, and arguments of ckptengine.torch.Checkpointer.

    Raises:
        Error: The engine has something that this class cannot capture: ZeRO stage 0 or 3, an offloaded optimizer, a
            pipeline, DeepCompile, data efficiency.
    """

    _takes_shards = False  # nothing says how partitions are cut out of the whole
    _asks_optimizers = False  # their state_dict() copies the partitions, which are captured where they are

    def __init__(self, engine: deepspeed.DeepSpeedEngine, *, extra: Mapping[str, Any] | None = None, **more: Any):
        extra = dict(extra or {})
        refused = _why_not(engine, extra.values())
        if refused:
            raise Error(Status.INVALID, refused)
        self._trained = engine
        extra["deepspeed"] = _Progress(engine)
        super().__init__(engine.module, engine.optimizer, schedulers=engine.lr_scheduler, extra=extra, **more)

    def step(self, *arguments: Any, **named: Any) -> None:
        """Calls engine.step(), and takes a snapshot if engine.step() updated the weights.

        Takes none while DeepSpeed only accumulates gradients. The snapshot's iteration is the value of
        engine.global_steps before the step.

        Args:
            *arguments: Arguments of engine.step().
            **named: Named arguments of engine.step().
        """
        before = self._trained.global_steps
        self.before_update()
        self._trained.step(*arguments, **named)
        if self._trained.global_steps != before:
            self.snapshot(before)


class Batches:
    """Yields the batches of DeepSpeed's data loader, epoch after epoch, as RepeatingLoader does, and counts them.

    Give this object to a Checkpointer in `extra`. After a restore, it loads the batches that the epoch has already used
    again and drops them. So the next batch is the one that was not used yet.

    Args:
        loader: DeepSpeed's data loader.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._batches: Iterator | None = None
        self._taken = 0  # batches of this epoch that were drawn
        self._begin = _rng.read()  # the generators when this epoch began

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            self._resume()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._taken = 0
            self._start()
            batch = next(self._batches)
        self._taken += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self._taken, "begin": self._begin}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches, self._taken, self._begin = None, state["taken"], state["begin"]

    def _start(self) -> None:
        self._begin = _rng.read()
        self._batches = iter(self.loader)

    def _resume(self) -> None:
        if not self._taken:
            return self._start()
        now = _rng.read()
        _rng.write(self._begin)
        self._start()
        for _ in range(self._taken):
            next(self._batches)
        _rng.write(now)


class _Progress:
    """The counters of DeepSpeed's engine and its optimizer, and the loss scale."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine) -> None:
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._engine.optimizer
        state: dict[str, Any] = {"counters": {name: getattr(self._engine, name) for name in _COUNTERS}}
        state["scaling"] = {name: getattr(optimizer, name) for name in _SCALING if hasattr(optimizer, name)}
        if hasattr(optimizer, "loss_scaler"):
            state["loss_scaler"] = dict(vars(optimizer.loss_scaler))
        if getattr(optimizer, "torch_autocast_gradscaler", None) is not None:
            state["grad_scaler"] = optimizer.torch_autocast_gradscaler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        optimizer = self._engine.optimizer
        for name, value in state["counters"].items():
            setattr(self._engine, name, value)
        for name, value in state["scaling"].items():
            setattr(optimizer, name, value)
        if "loss_scaler" in state:
            vars(optimizer.loss_scaler).update(state["loss_scaler"])
        if "grad_scaler" in state:
            optimizer.torch_autocast_gradscaler.load_state_dict(state["grad_scaler"])


def _why_not(engine: deepspeed.DeepSpeedEngine, extra: Iterable[Any]) -> str:
    """Returns why DeepSpeed's engine cannot be captured, and what to change. "" if it can be captured."""
    if isinstance(engine, PipelineEngine):
        return "DeepSpeed's pipeline engine is not captured. Train without PipelineModule"
    stage = int(engine.zero_optimization_stage())
    if stage not in (1, 2):
        return f"ZeRO stage {stage} is not captured. Set zero_optimization.stage to 1 or 2"
    if engine.zero_use_cpu_optimizer():
        return "an offloaded optimizer is not captured. Remove zero_optimization.offload_optimizer"
    if type(engine.optimizer) not in (DeepSpeedZeroOptimizer, BF16_Optimizer):
        return f"the optimizer {type(engine.optimizer).__name__} is not captured. Configure DeepSpeed's plain ZeRO"
    if engine.curriculum_learning_enabled() or engine.random_ltd_enabled():
        return "data efficiency (curriculum learning, random LTD) is not captured. Switch it off"
    if engine.is_deepcompile_enabled():
        return "DeepCompile is not captured. Set compile.deepcompile to false"
    loader = engine.training_dataloader
    if loader is not None and not any(isinstance(item, Batches) and item.loader is loader for item in extra):
        return "the position in `training_data` is not captured. Iterate over Batches(loader), and give that to `extra`"
    return ""
