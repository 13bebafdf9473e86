"""What a chaos job is like, how it is told to its processes, and how a run of it can fail."""

from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 40.0  # for anything that shall happen
CLAIM_TIMEOUT_MS = 3000
RECOMPUTED = ("recomputed", "recomputed_in_vain", "not_recomputed")  # counters of an agent
OPTIONS = {
    "heartbeat_ms": 50,
    "node_timeout_ms": 1000,
    "lease_ms": 800,
    "node_wait_ms": 2000,
    "restore_timeout_ms": 20000,
    "claim_timeout_ms": CLAIM_TIMEOUT_MS,
    "close_timeout_ms": 2000,
    "unprotected_after_ms": 3000,
}
TIER_LOCAL, TIER_PEER = 1, 2
# What a job is like: each rank has a state of its own; and an optimizer updates it, which nodes repeat; all ranks split
# one state, or have the same state, and the number of ranks changes.
PLAIN, RECOMPUTE, RESIZE, SPREAD = MODES = ("plain", "recompute", "resize", "spread")
CUTS = {RECOMPUTE: "own", RESIZE: "split", SPREAD: "shared"}


class Violation(Exception):
    """The engine did what it must never do, or did not do in time what it must."""


class WrongBytes(Violation):
    """What was restored is not what was captured."""


class LostWithinTolerance(Violation):
    """Less came back than what the placement promises."""


class WrongHealth(Violation):
    """Health said what the trainers know to be wrong."""


@dataclass
class Settings:
    build: Path
    nodes: int = 4
    ranks_per_node: int = 1
    copies: int = 2
    megabytes: int = 8
    iteration_ms: int = 10
    network: bool = False  # each node has a network namespace of its own; else all share the loopback interface
    coordinator: str = "directory"  # or "etcd"
    standbys: int = 0  # nodes that wait for one to be lost
    mode: str = PLAIN

    @property
    def world_size(self):
        """Of the first start."""
        return self.nodes * self.ranks_per_node

    @property
    def slot_bytes(self):
        """In every mode but plain, the state is updated by an optimizer. A single rank may come to have all of it."""
        return (self.megabytes + 1) << 20

    @property
    def protection(self):
        """What agents and trainers are told."""
        if self.mode in (RECOMPUTE, RESIZE):
            return {"protection": f"recompute({self.copies})"}
        return {"copies": self.copies}

    @property
    def changes_size(self):
        """It may restart with another number of ranks."""
        return self.mode in (RESIZE, SPREAD)
