"""Which iterations the option `capture` lets ranks capture, and what people are told where that is not enough."""

from __future__ import annotations

import pytest
from ckptengine import Error, Stage
from test_health import Ranks

OPTIONS = {"on_suspicion": "halt", "hang_floor_ms": 60_000, "capture_every": 5, "unprotected_after_ms": 60_000}


class CapturingRanks(Ranks):
    """Two ranks on the nodes that `nodes` names."""

    def __init__(self, cluster, *options: dict, nodes: tuple[str, ...] = ("n0", "n1")) -> None:
        super().__init__(cluster, *({"shard": "model", "node": node} | each
                                    for node, each in zip(nodes, options, strict=True)), **OPTIONS)
        self.restore()

    def captured(self, count: int) -> list[list[int]]:
        """Trains, and returns the iterations that each rank captures."""
        captured = [[] for _ in self.engines]
        for iteration in range(self.iteration, self.iteration + count):
            tickets = self.train(0)
            for mine, ticket in zip(captured, tickets, strict=True):
                if ticket.taken:
                    assert ticket.wait(Stage.COMMITTED), ticket.message
                    mine.append(iteration)
        return captured

    def main_bytes(self) -> list[int]:
        return [engine.stats().bytes_captured for engine in self.engines]


def test_capture_jit_copies_no_main_shard_between_captures(cluster):
    ranks = CapturingRanks(cluster, {"capture": "jit"}, {"capture": "jit"})
    assert ranks.captured(1) == [[0], [0]]
    before = ranks.main_bytes()
    assert ranks.captured(4) == [[], []]
    assert ranks.main_bytes() == before
    assert ranks.captured(1) == [[5], [5]]


def test_capture_auto_captures_rarely_if_two_nodes_share_the_state(cluster):
    ranks = CapturingRanks(cluster, {"capture": "auto"}, {"capture": "auto"})
    assert ranks.captured(6) == [[0, 5], [0, 5]]
    assert ranks.health()["reason"] not in ("no_replica", "other_options")


@pytest.mark.parametrize(("shards", "nodes"), [
    (("rank0", "rank1"), ("n0", "n1")),  # full shard of FSDP
    (("model", "model"), ("n0", "n0")),  # replicas that one fault takes down together
])
def test_capture_auto_captures_every_iteration_without_a_replica(cluster, shards, nodes):
    ranks = CapturingRanks(cluster, *({"capture": "auto", "shard": shard} for shard in shards), nodes=nodes)
    assert ranks.captured(6) == [[0, 1, 2, 3, 4, 5]] * 2


def test_capture_jit_names_a_main_shard_without_a_replica(cluster):
    ranks = CapturingRanks(cluster, {"capture": "jit", "shard": "left"}, {"capture": "jit", "shard": "right"})
    told = ranks.await_health(lambda told: told["reason"] == "no_replica")
    assert told["state"] == "degraded", told
    assert "has main shard left" in told["text"], told


def test_ranks_with_different_capture_options_are_named(cluster):
    ranks = CapturingRanks(cluster, {"capture": "every"}, {"capture": "jit"})
    told = ranks.await_health(lambda told: told["reason"] == "other_options")
    assert told["state"] == "degraded", told
    assert told["held_up_by"]["rank"] == 1, told
    assert "capture=jit capture_every=5, rank 0 has on_suspicion=halt capture=every" in told["text"], told


def test_capture_jit_without_halts_is_refused(cluster):
    with pytest.raises(Error, match="capture is jit, but on_suspicion is report"):
        cluster.engine(0, 1, capture="jit")
