"""The checks that run() makes before an update and before a snapshot."""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    def before_update(self) -> None:
        """Raises if no update may begin, because the gradients may be wrong."""

    def before_snapshot(self) -> None:
        """Raises if the update may have used wrong gradients."""
