"""The interface of a way to checkpoint: a part in each rank's process, and a part on the nodes beside the ranks.

A driver (drive.py) runs one way through saves and faults. It asks both ranks for the same thing at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

WORLD_SIZE = 2
State = dict[str, Tensor]


@dataclass(frozen=True)
class Place:
    """The paths of a run. All are in one folder in tmpfs."""

    root: Path
    name: str  # name of the run; no other run has it
    programs: dict[str, Path]  # paths of ckptengine's library, ckptd and ckptctl

    @property
    def shared(self) -> Path:
        """Stands for the fastest storage that all nodes see."""
        return self.root / "shared"

    def node(self, number: int) -> Path:
        """The memory of a node, as a folder. A lost node loses it."""
        return self.root / f"node{number}"


class Nodes:
    """The part of a way on the nodes: its processes and files beside the ranks. The driver owns it. Rank r runs on node
    r.
    """

    def __init__(self, place: Place) -> None:
        self.place = place

    def start(self) -> None:
        self.place.shared.mkdir()
        for number in range(WORLD_SIZE):
            self.place.node(number).mkdir()

    def lose(self, number: int) -> None:
        """The node's memory is gone. An empty one takes its place."""
        shutil.rmtree(self.place.node(number))
        self.place.node(number).mkdir()

    def copies_of(self, rank: int) -> Iterator[Path]:
        """Files that may hold what was stored of this rank, those that a restore reads first."""
        for folder in (self.place.node(rank), self.place.shared):
            yield from sorted(path for path in folder.rglob("*") if path.is_file())

    def files(self) -> Iterator[Path]:
        """All files in tmpfs, whose memory counts."""
        yield from (path for path in self.place.root.rglob("*") if path.is_file())

    def close(self) -> None:
        """Ends what start() began. The driver removes the folder."""


class Way:
    """The part of a way in a rank's process: how the rank checkpoints its state."""

    nodes_type = Nodes
    uses_group = True  # True: torch.distributed is initialized in the rank
    survivors_go_on = False  # True: only a dead rank starts again, and the others keep their state

    def __init__(self, nodes: Nodes, rank: int, state: State) -> None:
        self.place = nodes.place
        self.rank = rank
        self.state = state

    def restore(self) -> int | None:
        """Restores the newest checkpoint into the state. Returns its iteration, or None if there is none."""
        raise NotImplementedError

    def save(self, iteration: int) -> None:
        """Returns when training may go on to read the state."""
        raise NotImplementedError

    def before_update(self) -> None:
        """Returns when training may change the state."""

    def wait(self) -> None:
        """Returns when the last save is complete, so that it survives what it can survive."""

    def was_skipped(self) -> bool:
        """True if the last save was skipped, because this way was not ready for one."""
        return False

    def close(self) -> None:
        """The rank ends in order."""


def copy_into(state: State, found: State) -> None:
    for name, tensor in state.items():
        tensor.copy_(found[name])
