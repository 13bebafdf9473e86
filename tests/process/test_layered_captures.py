"""Captures in layers: a trainer is killed while its copy waits for a bubble, or is copied in one."""

from __future__ import annotations

import pytest
from conftest import build_file_of, together
from layered_trainer import BYTES, LEARNED, content, train
from rank_processes import ranks_of, run_ranks

RANKS = 2


@pytest.fixture(scope="module")
def ranks():
    return ranks_of()


@pytest.mark.parametrize("strikes_in_bubble", [False, True], ids=["waiting", "copying"])
def test_rank_killed_in_a_layered_capture_restores_the_previous_checkpoint(cluster, ranks, strikes_in_bubble):
    settings = [
        {
            "options": cluster.options(rank, RANKS, layered_capture=True, profile_iterations=3)
            | {"library": build_file_of("libckptengine.so")},
            "strikes_in_bubble": strikes_in_bubble,
        }
        for rank in range(RANKS)
    ]
    run_ranks(ranks, train, settings, victims=[0])
    engines = [cluster.engine(rank, RANKS) for rank in range(RANKS)]
    states = [bytearray(BYTES) for _ in range(RANKS)]
    for engine, state in zip(engines, states, strict=True):
        engine.register("state", state)
    starts = together(*(engine.restore for engine in engines))
    assert starts[0].iteration == starts[1].iteration >= LEARNED - 1
    for rank, state in enumerate(states):
        assert state == content(rank, starts[0].iteration), rank
