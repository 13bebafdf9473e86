"""What a way to checkpoint is: the part in a rank's process, and the part on the nodes beside the ranks.

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
    """Where a run keeps things. All of it is in one folder in tmpfs."""

    root: Path
    name: str  # of the run, not used by any other
    programs: dict[str, Path]  # of ckptengine: library, ckptd, ckptctl

    @property
    def shared(self) -> Path:
        """Stands for the fastest storage that all nodes see."""
        return self.root / "shared"

    def node(self, number: int) -> Path:
        """The memory of a node, as a folder. A lost node loses it."""
        return self.root / f"node{number}"


class Nodes:
    """What runs and lies on the nodes, beside the ranks. Belongs to the driver. Rank r runs on node r."""

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
    """How a rank checkpoints its state. Is in the rank's process."""

    nodes_type = Nodes
    uses_group = True  # torch.distributed is initialized
    survivors_go_on = False  # a dead rank alone starts again, and the others keep their state

    def __init__(self, nodes: Nodes, rank: int, state: State) -> None:
        self.place = nodes.place
        self.rank = rank
        self.state = state

    def restore(self) -> int | None:
        """Brings the newest checkpoint into the state. Returns its iteration, None if there is none."""
        raise NotImplementedError

    def save(self, iteration: int) -> None:
        """Returns when training may go on to read the state."""
        raise NotImplementedError

    def before_update(self) -> None:
        """Returns when training may change the state."""

    def wait(self) -> None:
        """Returns when the last save is complete, so that it survives what it can survive."""

    def was_skipped(self) -> bool:
        """Whether the last save was none, because this way was not ready for one."""
        return False

    def close(self) -> None:
        """The rank ends in order."""


def copy_into(state: State, found: State) -> None:
    for name, tensor in state.items():
        tensor.copy_(found[name])
