"""What run() asks before an update and before a snapshot."""

from __future__ import annotations

from typing import Protocol


class Gate(Protocol):
    def before_update(self) -> None:
        """Raises if no update may begin: the gradients may be garbage."""

    def before_snapshot(self) -> None:
        """Raises if the update may have used garbage."""
