"""What several adapters need."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from .._engine import Error, Stage, Status
from ..torch._replicas import is_distributed, this_rank

log = logging.getLogger("ckptengine")

SLOT_MS = 1_000  # that the last snapshot of an epoch or a run may wait for its slot

# What to use instead of a framework's way to spread state that no adapter captures.
INSTEAD = {
    "DEEPSPEED": "use DDP or FSDP2, or deepspeed.initialize() with ckptengine.integrations.deepspeed",
    "MEGATRON_LM": "use DDP or FSDP2, or Megatron-Core with ckptengine.integrations.megatron",
    "FSDP": "set fsdp_version to 2 (FSDP2)",
    "XLA": "train on CPU or CUDA devices",
}


def with_rank(more: dict[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """The options, with the framework's rank if torch.distributed does not know one: a job of one process."""
    given = {} if more.get("options") is None else more["options"].given()
    of_framework = {} if is_distributed() else {"rank": rank, "world_size": world_size}
    return {key: value for key, value in of_framework.items() if key not in given} | more


def refuse(sentence: str) -> NoReturn:
    raise Error(Status.INVALID, sentence)


def one_or_all(objects: list[Any]) -> Any:
    """A single object without a list around it, so that it is stored without a number in its name."""
    return objects[0] if len(objects) == 1 else objects


def torch_optimizer(optimizer: Any) -> Any:
    """The optimizer in Accelerate's wrapper."""
    return optimizer.optimizer if type(optimizer).__name__ == "AcceleratedOptimizer" else optimizer


def refuse_distribution(accelerator: Any) -> None:
    """Refuses what an Accelerator spreads in a way that is not captured."""
    kind = str(getattr(accelerator.distributed_type, "name", accelerator.distributed_type))
    if kind == "FSDP" and getattr(accelerator.state.fsdp_plugin, "fsdp_version", 1) == 2:
        return
    if kind in INSTEAD:
        name = "FSDP1" if kind == "FSDP" else kind
        refuse(f"{name} under Accelerate keeps state where this adapter cannot capture it: {INSTEAD[kind]}")


def refuse_forgotten_scheduler(optimizer: Any, schedulers: list[Any], advice: str) -> None:
    """Refuses an optimizer with a scheduler that nobody named. torch marks the step() of such an optimizer."""
    inner = torch_optimizer(optimizer)
    marked = any(getattr(one.step, "_wrapped_by_lr_sched", False) for one in (optimizer, inner))
    known = [getattr(getattr(one, "scheduler", one), "optimizer", None) for one in schedulers]
    if marked and not any(torch_optimizer(one) is inner for one in known):
        refuse(f"an optimizer has a scheduler that would not be captured: {advice}")


class Wrapped:
    """Methods of objects that were replaced by wrappers. undo() puts the methods back."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Calls of owner.name(...) become call(original, ...)."""
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
    """Where before_update() could skip the last snapshot of a run, which still waits for a slot: first waits for it."""
    if checkpointer.ticket is not None:
        checkpointer.ticket.wait(Stage.CAPTURING, SLOT_MS)
    checkpointer.before_update()


def say_where(found: bool, where: str) -> None:
    """The line in the log that says where training goes on. After a failure, rank 0 says it to everybody."""
    log.log(logging.WARNING if found and this_rank() == 0 else logging.INFO, "%s", where)
