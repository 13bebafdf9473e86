"""Helpers that several adapters share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .._engine import Error, Restored, Stage, Status
from ..torch._replicas import is_distributed, this_rank

log = logging.getLogger("ckptengine")

SLOT_MS = 1_000  # how long the last snapshot of an epoch, or of the whole training, may wait for a free slot

# Ways in which Accelerate spreads state over ranks and that the adapters cannot capture: what to use instead.
INSTEAD = {
    "DEEPSPEED": "use DDP or FSDP2, or deepspeed.initialize() with ckptengine.integrations.deepspeed",
    "MEGATRON_LM": "use DDP or FSDP2, or Megatron-Core with ckptengine.integrations.megatron",
    "FSDP": "set fsdp_version to 2 (FSDP2)",
    "XLA": "train on CPU or CUDA devices",
}


def with_rank(more: dict[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """Returns the options `more`. If torch.distributed is not initialized, as in a job of one process, adds the
    framework's rank and world size, unless the caller gave them."""
    given = {} if more.get("options") is None else more["options"].given()
    of_framework = {} if is_distributed() else {"rank": rank, "world_size": world_size}
    return {key: value for key, value in of_framework.items() if key not in given} | more


def refuse(sentence: str) -> NoReturn:
    """Raises Error (INVALID)."""
    raise Error(Status.INVALID, sentence)


def refuse_older(restored: Restored, stored: Mapping[str, Any]) -> None:
    """Raises Error (LOST) if the engine has restored another iteration than its stored_layout() told before. Then what
    was decided by that iteration may be wrong. This happens only if copies were lost in between."""
    if restored.found and restored.iteration != stored["iteration"]:
        raise Error(
            Status.LOST,
            f"the checkpoint of iteration {stored['iteration']} was lost while it was restored, and only iteration "
            f"{restored.iteration} is left; start all ranks again",
        )


def one_or_all(objects: list[Any]) -> Any:
    """Returns a single object without a list around it, so that its stored name has no number."""
    return objects[0] if len(objects) == 1 else objects


def torch_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer inside Accelerate's wrapper, or the optimizer itself if it is not wrapped."""
    return optimizer.optimizer if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer


def refuse_distribution(accelerator: Any) -> None:
    """Raises Error if the Accelerator spreads state over ranks in a way that the adapters cannot capture."""
    kind = str(getattr(accelerator.distributed_type, "name", accelerator.distributed_type))
    if kind == "FSDP" and getattr(accelerator.state.fsdp_plugin, "fsdp_version", 1) == 2:
        return
    if kind in INSTEAD:
        name = "FSDP1" if kind == "FSDP" else kind
        refuse(f"Accelerate uses {name}, which keeps state where this adapter cannot capture it: {INSTEAD[kind]}")


def refuse_forgotten_scheduler(optimizer: Any, schedulers: list[Any], advice: str) -> None:
    """Raises Error if the optimizer has a scheduler that is not in `schedulers`. torch marks the step() of an optimizer
    that has a scheduler. `advice` is the end of the error's text: where to give the scheduler."""
    inner = torch_optimizer(optimizer)
    marked = any(getattr(one.step, "_wrapped_by_lr_sched", False) for one in (optimizer, inner))
    known = [getattr(getattr(one, "scheduler", one), "optimizer", None) for one in schedulers]
    if marked and not any(torch_optimizer(one) is inner for one in known):
        refuse(
            f"an optimizer has a scheduler that was not given to this adapter, so it would not be captured: {advice}"
        )


class Wrapped:
    """Puts wrappers in place of methods of objects. undo() puts all original methods back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """From now on, owner.name(...) calls call(original, ...) instead."""
        original = getattr(owner, name)
        self._originals.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, lambda *arguments, **options: call(original, *arguments, **options))

    def undo(self) -> None:
        while self._originals:
            owner, name, before = self._originals.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def finish_capture(checkpointer: Any) -> None:
    """Finishes the pending capture. before_update() skips a snapshot that still waits for a slot. So this function
    first waits for the slot, at most SLOT_MS."""
    if checkpointer.ticket is not None:
        checkpointer.ticket.wait(Stage.CAPTURING, SLOT_MS)
    checkpointer.before_update()


def say_where(found: bool, where: str) -> None:
    """Logs the position `where` at which training begins. If a checkpoint was found, rank 0 logs it as a warning,
    because Python shows warnings by default."""
    level = logging.WARNING if found and this_rank() == 0 else logging.INFO
    log.log(level, "%s: %s", "resumed" if found else "started", where)
