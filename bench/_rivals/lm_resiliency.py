"""lm-resiliency: the trainers have four buffers, copy them to the peer over gloo, and write them to a folder on
SIGTERM."""

from __future__ import annotations

from typing import Any

from lm_resiliency.checkpointing import InMemoryCheckpointManager, InMemoryCkptConfig, RecoveryMode

from .way import Way


class LmResiliency(Way):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tensors = list(self.state.values())
        # A rank that survives also writes its peer's shard. The peer finds it only in a folder that both nodes see.
        self._manager = InMemoryCheckpointManager(
            InMemoryCkptConfig(
                interval=1,
                replication_jump=1,
                disk_flush_interval=0,
                disk_folder=str(self.place.shared),
                run_id=self.place.name,
                verify_integrity=True,
            )
        )

    def save(self, iteration: int) -> None:
        self._manager.save_tensors(self._tensors, iteration)

    def before_update(self) -> None:
        self._manager.maybe_wait()

    def wait(self) -> None:
        if not self._manager.finalize_replication():
            raise RuntimeError("the peer did not get its copy")

    def restore(self) -> int | None:
        found = self._manager.load_tensors(RecoveryMode.LATEST_GEMINI)
        if found is None:
            return None
        tensors, iteration, _ = found
        for tensor, stored in zip(self._tensors, tensors, strict=True):
            tensor.copy_(stored)
        return iteration
