"""Adapter for torchtitan: a checkpoint manager for its configuration. docs/frameworks.md has an example.

torchtitan still writes its own checkpoints to its folder, every `interval` steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn
from torchtitan.components.checkpointer import LR_SCHEDULER, MODEL, OPTIMIZER
from torchtitan.components.checkpointer import CheckpointManager as DcpCheckpointManager

from .. import Error, Status
from ..torch import Checkpointer


class CheckpointManager(DcpCheckpointManager):
    """Captures every step in memory, and restores the newest checkpoint that every rank can get.

        config.checkpoint = CheckpointManager.Config(job="run1", interval=500)

    load() restores the newest checkpoint that the engine or torchtitan's folder has. All options of the engine except
    `job` come from the environment (CKPTENGINE_<OPTION>), or from the file that CKPTENGINE_CONFIG names.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(DcpCheckpointManager.Config):
        enable: bool = True

        job: str | None = None
        """Name of the training run, by which a restart finds its checkpoints. None: the value of CKPTENGINE_JOB."""

        communication: Literal["hooks", "patch"] = "hooks"
        """How the engine learns when training communicates. Only "patch" sees the communication of FSDP2."""

    def __init__(
        self,
        config: Config,
        *,
        model_parts: list[nn.Module],
        optimizers: Any,
        lr_schedulers: Any,
        states: dict[str, Any],
        **more: Any,
    ) -> None:
        super().__init__(
            config, model_parts=model_parts, optimizers=optimizers, lr_schedulers=lr_schedulers, states=states, **more
        )
        self.checkpointer: Checkpointer | None = None
        if not config.enable or config.create_seed_checkpoint:
            return
        for option in ("load_only", "exclude_from_loading"):
            if getattr(config, option):
                raise Error(
                    Status.INVALID,
                    f"the engine's CheckpointManager does not support the setting checkpoint.{option}. Leave it out, "
                    "or use torchtitan's own CheckpointManager",
                )
        extra = {name: state for name, state in self.states.items() if state is not None}
        for known in (MODEL, OPTIMIZER, LR_SCHEDULER):
            del extra[known]
        self.checkpointer = Checkpointer(
            _one_or_all(model_parts),
            _one_or_all(optimizers.optimizers),
            schedulers=lr_schedulers,
            extra=extra,
            communication=config.communication,
            job=config.job,
        )

    def _load(self, step: int = -1) -> bool:
        if self.checkpointer is None:
            return super()._load(step)
        start = self.checkpointer.restore()
        if start.found and step != -1:
            raise Error(
                Status.INVALID,
                f"checkpoint.load_step is {step}, but the engine already has step {start.iteration} of this job. To "
                f"continue from step {start.iteration}, leave out load_step. To load step {step} from the folder, use "
                "another job name",
            )
        if start.found and start.iteration >= self._find_load_step():
            return True
        return super()._load(step)

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        if self.checkpointer is not None:
            self.checkpointer.snapshot(curr_step)
        return super()._save(curr_step, last_step)

    def _maybe_wait_for_staging(self) -> None:
        """torchtitan calls this method before each update."""
        super()._maybe_wait_for_staging()
        if self.checkpointer is not None:
            self.checkpointer.before_update()

    def _close(self) -> None:
        super()._close()
        if getattr(self, "checkpointer", None) is not None:
            self.checkpointer.close()


def _one_or_all(items: list[Any]) -> Any:
    """Returns a single object without a list around it, so that its stored name has no number."""
    return items[0] if len(items) == 1 else list(items)
