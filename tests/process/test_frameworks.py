"""Jobs that spread a model over ranks as PyTorch does: each loses a rank or a node at some iteration, starts again, and
has the losses of a run that nothing disturbed, bit for bit."""

from __future__ import annotations

import json
import random
import time

import pytest
from conftest import build_file_of, nightly_but
from fork_server import TORCH
from rank_processes import DEADLINE_S, lose_node, ranks_of, run_ranks

ITERATIONS = 6
# By kind: how many ranks, two on each node if there are four, and the main shards that they name.
KINDS = {
    "loaded": (2, ["rank0", "rank1"]),
    "compiled": (2, ["rank0", "rank1"]),
    "fsdp2": (2, ["rank0", "rank1"]),
    "fsdp2 on 4": (4, ["rank0", "rank1", "rank2", "rank3"]),
    "tensor": (2, ["rank0", "rank1"]),
    "hsdp": (4, ["rank0.and1", "rank1.and1", "rank0.and1", "rank1.and1"]),
    "ddp_tensor": (4, ["rank0.and1", "rank1.and1", "rank0.and1", "rank1.and1"]),
    "ddp": (2, ["all_ranks", "all_ranks"]),
    "expert": (4, ["rank0", "rank1", "rank2", "rank3"]),
    "pipeline": (4, ["rank0", "rank1", "rank2", "rank3"]),
}
CASES = [
    *((kind, "rank") for kind in [*list(KINDS)[:7], "pipeline"]),
    *((kind, "node") for kind in list(KINDS)[2:]),
]
# Each kind once. What is lost makes no difference to the state that a kind names.
EACH_CHANGE = [("loaded", "rank"), ("fsdp2", "node"), ("tensor", "rank"), ("hsdp", "node"), ("ddp", "node"),
               ("expert", "node"), ("pipeline", "rank")]


def train_rank(settings: dict) -> None:
    import framework_trainer

    framework_trainer.run(settings)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


class Job:
    train = staticmethod(train_rank)  # what a rank's process does

    def __init__(self, ranks, folder, kind: str, world_size: int, cluster=None, **options) -> None:
        self.ranks, self.folder, self.kind, self.cluster, self.options = ranks, folder, kind, cluster, options
        self.world_size = world_size
        self.starts = 0

    def node(self, rank: int) -> str:
        return f"n{rank * 2 // self.world_size}"

    def start(self, die_at: int = -1, victims: tuple[int, ...] = (), **more) -> list[list[dict]]:
        """Lets all ranks run to their end. If `victims` die, the others are killed. What each rank told."""
        self.starts += 1
        place = self.folder / f"{self.kind}-{self.starts}"
        place.mkdir()
        settings = [self._settings(place, rank) for rank in range(self.world_size)]
        for one in settings:
            one |= {"die_at": die_at, "victims": victims, "whole": False, "spoils": None} | more
        run_ranks(self.ranks, self.train, settings, victims, daemon=False)  # they may have children
        return [[json.loads(line) for line in open(one["log"])] for one in settings]

    def _settings(self, place, rank: int) -> dict:
        engine = None
        if self.cluster is not None:
            engine = self.cluster.options(rank, self.world_size, node=self.node(rank),
                                          library=build_file_of("libckptengine.so"), schedule="immediate",
                                          restore_timeout_ms=60_000, claim_timeout_ms=20_000, **self.options)
            engine = {key: value if isinstance(value, int) else str(value) for key, value in engine.items()}
        return {"rank": rank, "world_size": self.world_size, "kind": self.kind.split()[0], "iterations": ITERATIONS,
                "rendezvous": str(place / "rendezvous"), "log": str(place / f"rank{rank}.log"), "engine": engine}

    def lose_node(self, node: str) -> None:
        lose_node(self.cluster, node)


def losses(told: list[list[dict]]) -> list[dict[int, str]]:
    return [{event["k"]: event["loss"] for event in events if "loss" in event} for events in told]


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    """The losses of a run without an engine, by kind."""
    known = {}

    def get(kind: str):
        if kind not in known:
            known[kind] = losses(Job(ranks, tmp_path_factory.mktemp("undisturbed"), kind, KINDS[kind][0]).start())
        return known[kind]

    return get


def assert_committed(told) -> None:
    failed = [event for events in told for event in events if event.get("committed") is False]
    assert not failed, failed[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "loss"), nightly_but(EACH_CHANGE, CASES))
def test_job_continues_bit_for_bit_after_a_loss(cluster, ranks, undisturbed, tmp_path, kind, loss):
    world_size, shards = KINDS[kind]
    chance = random.Random(f"{kind} {loss}")
    die_at, victim = chance.randrange(2, ITERATIONS), chance.randrange(world_size)
    job = Job(ranks, tmp_path, kind, world_size, cluster)
    victims = tuple(r for r in range(world_size) if job.node(r) == job.node(victim)) if loss == "node" else (victim,)
    first = job.start(die_at, victims)
    assert_committed(first)
    assert [events[0]["shard"] for events in first] == shards
    if loss == "node":
        job.lose_node(job.node(victim))
    second = job.start()
    assert_committed(second)
    assert [(events[0]["found"], events[0]["first"]) for events in second] == [(True, die_at)] * world_size
    expected = undisturbed(kind)
    for rank in range(world_size):
        before, after = losses(first)[rank], losses(second)[rank]
        assert set(after) == set(range(die_at, ITERATIONS))
        # The survivors may have computed one more loss before they were killed.
        assert {k: before[k] for k in range(die_at)} | after == expected[rank], (rank, die_at)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", nightly_but(["fsdp2_tensor"], ["fsdp2", "fsdp2_tensor"]))
def test_whole_tensors_are_assembled_from_parts_of_four_ranks(cluster, ranks, tmp_path, kind):
    """Neither two nor four divides the sizes; of some tensors ranks have nothing."""
    import torch
    from ckptengine import whole

    storage = tmp_path / "storage"
    storage.mkdir()
    job = Job(ranks, tmp_path, kind, 4, cluster, storage=storage, storage_every=1, storage_keep_every=1)
    told = job.start(whole=True)
    assert_committed(told)
    step = storage / cluster.job / f"step-{ITERATIONS - 1:08}"
    deadline = time.monotonic() + DEADLINE_S
    while not (step / "manifest.json").exists():
        assert time.monotonic() < deadline, list(storage.rglob("*"))
        time.sleep(0.05)
    found = whole.read(step)
    expected = torch.load(tmp_path / f"{kind}-1" / "rank0.pt")
    assert found.keys() == expected.keys() and len(found) >= 24
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


@pytest.mark.timeout(300)
def test_differing_ranks_that_share_a_shard_are_reported(cluster, ranks, tmp_path):
    job = Job(ranks, tmp_path, "hsdp", 4, cluster)
    told = job.start(die_at=5, victims=(0, 1, 2, 3), spoils=[2, 4])
    assert_committed(told)
    alarm = "silent data corruption: shard rank0.and1 of iteration 4 differs between its ranks"
    deadline = time.monotonic() + DEADLINE_S
    while not any(alarm in log.read_text() for log in cluster.arena.glob("*/*/ckptd.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
