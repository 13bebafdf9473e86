"""torch.save to a file per rank, which replaces the one before it."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from .way import Way, copy_into


class TorchSave(Way):
    @property
    def file(self) -> Path:
        return self.place.shared / f"rank{self.rank}.pt"

    def save(self, iteration: int) -> None:
        new = self.file.with_suffix(".new")
        torch.save({"iteration": iteration, "state": self.state}, new)
        os.replace(new, self.file)  # not written in place, because a kill meanwhile would leave no checkpoint

    def restore(self) -> int | None:
        if not self.file.exists():
            return None
        found = torch.load(self.file, mmap=True, weights_only=True)
        copy_into(self.state, found["state"])
        return found["iteration"]
