"""ckptengine: an agent on each node, and a copy of each rank's state on the other node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ckptengine import Stage
from ckptengine.torch import Checkpointer
from cluster import Cluster

from .way import WORLD_SIZE, Nodes, Place, State, Way

COPIES = 2
COMMIT_MS = 60_000
LOSS_S = 30
POLL_S = 0.02


class OurNodes(Nodes):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        place.shared.mkdir()  # for the logs
        self._cluster = Cluster(place.name, place.programs, place.shared, place.root, {"copies": COPIES})

    def start(self) -> None:
        for number in range(WORLD_SIZE):
            self._cluster.add_node(f"node{number}")

    def lose(self, number: int) -> None:
        """Loses the node and waits until the loss is noticed. With the other ways, the launcher has to notice it."""
        name, killed_at_s = f"node{number}", time.monotonic()
        self._cluster.kill_nodes([name])
        while self._cluster.declared_lost_at_s([name], killed_at_s) is None:
            if time.monotonic() > killed_at_s + LOSS_S:
                raise TimeoutError(f"the loss of {name} was not noticed in {LOSS_S} s")
            time.sleep(POLL_S)
        self._cluster.add_node(name)

    def copies_of(self, rank: int) -> Iterator[Path]:
        folder = self._cluster.arenas / f"node{rank}"
        yield from sorted(path for path in folder.rglob("*") if path.is_file())

    def close(self) -> None:
        self._cluster.__exit__()

    def engine_options(self, rank: int) -> dict[str, Any]:
        return {
            "library": self.place.programs["library"],
            "job": self.place.name,
            "node": f"node{rank}",
            "arena_dir": self._cluster.arenas / f"node{rank}",
            "agent": "attach",
            "copies": COPIES,
        }


class Ours(Way):
    nodes_type = OurNodes

    def __init__(self, nodes: OurNodes, rank: int, state: State) -> None:
        super().__init__(nodes, rank, state)
        self._checkpointer = Checkpointer(tensors=state, **nodes.engine_options(rank))

    def restore(self) -> int | None:
        result = self._checkpointer.restore()
        return result.iteration if result.found else None

    def save(self, iteration: int) -> None:
        self._checkpointer.snapshot(iteration)

    def before_update(self) -> None:
        self._checkpointer.before_update()

    def wait(self) -> None:
        ticket = self._checkpointer.ticket
        if not ticket.wait(Stage.COMMITTED, COMMIT_MS):
            raise RuntimeError(f"snapshot {ticket.iteration} was not committed: {ticket.message}")

    def was_skipped(self) -> bool:
        return self._checkpointer.ticket.skipped

    def close(self) -> None:
        self._checkpointer.close()
