"""A data-parallel job that restarts with another number of ranks goes on from memory, with the losses that torch.save()
and torch.load() by hand would give."""

from __future__ import annotations

import json
import time

import pytest
from conftest import build_file_of
from fork_server import TORCH
from rank_processes import DEADLINE_S, lose_node, ranks_of, run_ranks

STEP = 3  # iterations between restarts


def train_rank(settings: dict) -> None:
    import elastic_trainer

    elastic_trainer.run(settings)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


class Job:
    """With a cluster the job under test, without one the control."""

    def __init__(self, ranks, folder, cluster=None, **options) -> None:
        self.ranks, self.folder, self.cluster, self.options = ranks, folder, cluster, options
        self.folder.mkdir()
        self.starts = 0
        self.saved = None

    def run(self, nodes: list[str]) -> list[list[dict]]:
        """Runs the next iterations with a rank on each of the nodes. What each rank told."""
        self.starts += 1
        place = self.folder / str(self.starts)
        place.mkdir()
        settings = [self._settings(place, rank, nodes) for rank in range(len(nodes))]
        run_ranks(self.ranks, train_rank, settings, victims=range(len(nodes)))
        self.saved = str(place)
        told = [[json.loads(line) for line in open(one["log"])] for one in settings]
        assert all(events[-1] == {"ended": True} for events in told)
        return told

    def _settings(self, place, rank: int, nodes: list[str]) -> dict:
        engine = None
        if self.cluster is not None:
            engine = self.cluster.options(rank, len(nodes), node=nodes[rank], schedule="immediate",
                                          library=build_file_of("libckptengine.so"), restore_timeout_ms=60_000,
                                          claim_timeout_ms=20_000, **self.options)
            del engine["rank"], engine["world_size"]  # torch.distributed tells them
            engine = {key: value if isinstance(value, int) else str(value) for key, value in engine.items()}
        return {"rank": rank, "world_size": len(nodes), "rendezvous": str(place / "rendezvous"),
                "log": str(place / f"rank{rank}.log"), "engine": engine, "first": STEP * (self.starts - 1),
                "until": STEP * self.starts, "load": self.saved, "save": str(place)}

    def lose_node(self, node: str) -> None:
        lose_node(self.cluster, node)


def losses(told: list[list[dict]]) -> list[dict[int, str]]:
    return [{event["k"]: event["loss"] for event in events if "loss" in event} for events in told]


def assert_goes_on(told, start: int, stored: int, own: int) -> None:
    """From the newest commit. `stored`: of how many ranks it is. `own`: how many of them have a shard of their own."""
    failed = [event for events in told for event in events if event.get("committed") is False]
    assert not failed, failed[0]
    for rank, events in enumerate(told):
        begin = events[0]
        assert (begin["found"], begin["first"], begin["stored"]) == (True, STEP * start, stored), begin
        assert begin["adopted"] == (rank >= own) and not begin["lossy"], begin
        if stored != len(told):
            assert f"the world size changed from {stored} to {len(told)}" in begin["message"]
        if rank >= own:
            assert f"rank {rank} has no private shard in this checkpoint and adopted rank 0's" in begin["message"]


def await_released(cluster, node: str) -> None:
    """No memory is kept for shards on a node without ranks."""
    deadline = time.monotonic() + DEADLINE_S
    while left := [file.name for file in (cluster.arena / cluster.job / node).glob("*") if ".seg" in file.name]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protection", ["copies(2)", "rs(4,1)"])
def test_four_ranks_become_two_on_other_nodes_and_four_again(cluster, ranks, tmp_path, protection):
    four, two = ["n0", "n1", "n2", "n3"], ["n2", "n4"]
    job = Job(ranks, tmp_path / "job", cluster, protection=protection)
    control = Job(ranks, tmp_path / "control")
    assert losses(job.run(four)) == losses(control.run(four))
    shrunk = job.run(two)
    assert_goes_on(shrunk, 1, stored=4, own=2)
    assert losses(shrunk) == losses(control.run(two))
    for node in ("n0", "n1", "n3"):
        await_released(cluster, node)
    grown = job.run(four)
    assert_goes_on(grown, 2, stored=2, own=2)
    assert losses(grown) == losses(control.run(four))
    assert_goes_on(job.run(four), 3, stored=4, own=4)


@pytest.mark.timeout(300)
def test_two_ranks_continue_after_the_loss_of_one_of_four_nodes(cluster, ranks, tmp_path):
    job, control = Job(ranks, tmp_path / "job", cluster), Job(ranks, tmp_path / "control")
    four, two = ["n0", "n1", "n2", "n3"], ["n1", "n2"]
    job.run(four)
    control.run(four)
    job.lose_node("n0")
    shrunk = job.run(two)
    assert_goes_on(shrunk, 1, stored=4, own=2)
    assert losses(shrunk) == losses(control.run(two))


@pytest.mark.timeout(300)
def test_two_ranks_become_three_and_then_one(cluster, ranks, tmp_path):
    job, control = Job(ranks, tmp_path / "job", cluster), Job(ranks, tmp_path / "control")
    two, three, one = ["n0", "n1"], ["n0", "n1", "n2"], ["n1"]
    job.run(two)
    control.run(two)
    grown = job.run(three)
    assert_goes_on(grown, 1, stored=2, own=2)
    assert losses(grown) == losses(control.run(three))
    alone = job.run(one)
    assert_goes_on(alone, 2, stored=3, own=1)
    assert losses(alone) == losses(control.run(one))
