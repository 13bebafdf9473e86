"""Jobs whose state grows while they train, as with an optimizer that begins late, or layers that are added."""

from __future__ import annotations

import pytest
from ckptengine import Stage, Status
from small_job import DEADLINE_S, RANKS, Job

GROWN_BYTES = 2_500_000  # several times what was there, and no multiple of a part or leaf


def grown_content(iteration: int) -> bytes:
    seed = f"grown at {iteration}. ".encode()
    return (seed * (GROWN_BYTES // len(seed) + 1))[:GROWN_BYTES]


class GrowingJob(Job):
    def start(self, grown: bool = False) -> list:
        engines = super().start()
        self.grown: list[bytearray] = []
        if grown:
            self.grow()
        return engines

    def grow(self) -> None:
        self.grown = [bytearray(GROWN_BYTES) for _ in range(RANKS)]
        for engine, state in zip(self.engines, self.grown, strict=True):
            engine.register("grown", state)

    def commit(self, iteration: int) -> list:
        for state in self.grown:
            state[:] = grown_content(iteration)
        return super().commit(iteration)

    def assert_state(self, iteration: int) -> None:
        super().assert_state(iteration)
        for state in self.grown:
            assert state == grown_content(iteration)


def begin(cluster, shared: bool = False, **options) -> GrowingJob:
    job = GrowingJob(cluster, shared, **options)
    job.start()
    job.restore()
    return job


def segment_bytes(cluster) -> int:
    return sum(file.stat().st_size for file in cluster.arena.glob("*/n0/*.segment"))


@pytest.mark.parametrize("protection", ["copies(2)", "xor(4)"])
@pytest.mark.parametrize("shared", [False, True])
def test_first_checkpoint_of_grown_state_is_committed(cluster, shared, protection):
    job = begin(cluster, shared, protection=protection)
    job.commit(1)
    job.commit(2)
    job.grow()
    job.commit(3)
    job.commit(4)
    job.lose(1)
    job.start(grown=True)
    job.assert_restored(4)
    job.commit(5)


def test_commit_before_the_growth_is_kept_until_the_next_commit(cluster):
    job = begin(cluster)
    job.commit(1)
    job.grow()
    ticket = job.engines[0].snapshot(2)  # one rank alone: it never commits
    assert ticket.taken, ticket.message
    assert job.engines[0].before_update()
    assert ticket.wait(Stage.CAPTURED, DEADLINE_S * 1000)
    job.start()
    job.assert_restored(1)


def test_agent_that_dies_after_the_growth_finds_all_state_again(cluster):
    job = begin(cluster)
    job.commit(1)
    job.grow()
    job.commit(2)
    cluster.kill_agents()
    job.start(grown=True)
    job.assert_restored(2)


def test_outgrown_slots_are_freed(cluster):
    job = begin(cluster)
    job.commit(1)
    before = segment_bytes(cluster)
    job.grow()
    for iteration in range(2, 6):
        job.commit(iteration)
    # Every slot is as much larger as the state is, and no old one is left beside it.
    assert segment_bytes(cluster) < before * (len(job.states[0]) + GROWN_BYTES) / len(job.states[0]) * 1.3


def test_state_larger_than_the_arena_is_refused_and_the_commit_kept(cluster):
    job = begin(cluster, arena_bytes="12MiB")
    job.commit(1)
    job.grow()
    engine = job.engines[0]
    refused = engine.snapshot(2)
    assert refused.status is Status.NO_SPACE and "arena_bytes" in refused.message
    assert engine.before_update()
    job.start()
    job.assert_restored(1)
    job.commit(2)
