"""A job whose state is split over its ranks goes on with another number of ranks, from memory, with the losses that
torch.distributed.checkpoint (DCP) gives at the new size. If no memory has the state, it goes on from storage."""

from __future__ import annotations

import itertools
import shutil

import pytest
from fork_server import TORCH
from rank_processes import lose_node, ranks_of
from resized_jobs import NODES, STEP, Job, assert_goes_on, losses, sentence_of


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sizes", [(3, 2, 4), pytest.param((4, 3, 6), marks=pytest.mark.nightly)])
def test_split_state_goes_from_some_ranks_to_fewer_to_more(cluster, ranks, tmp_path, sizes):
    job = Job(ranks, tmp_path, cluster)
    job.run(NODES[: sizes[0]])
    for before, after in itertools.pairwise(sizes):
        expected, first = losses(job.control(after)), job.trained
        resized = job.run(NODES[:after])
        assert_goes_on(resized, first, before)
        assert losses(resized) == expected


@pytest.mark.timeout(300)
def test_missing_tensors_are_refused_on_all_ranks_but_a_lost_node_is_tolerated(cluster, ranks, tmp_path):
    job = Job(ranks, tmp_path, cluster)
    job.run(NODES[:3])
    lose_node(cluster, "n1")
    left = ["n0", "n2"]
    assert "tensor 'model.4.weight' is missing in the checkpoint of 3 ranks" in sentence_of(
        job.run(left, is_larger=True)
    )
    assert "tensor 'model.0.weight' has the type" in sentence_of(job.run(left, width=8))
    expected = losses(job.control(2))
    resized = job.run(left)
    assert_goes_on(resized, STEP, 3)
    assert losses(resized) == expected


@pytest.mark.timeout(300)
@pytest.mark.parametrize("records_are_lost", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_state_is_read_from_storage_if_no_node_has_it(cluster, ranks, tmp_path, records_are_lost):
    storage = tmp_path / "storage"
    storage.mkdir()
    job = Job(ranks, tmp_path, cluster, storage=storage, storage_every=1)
    job.run(NODES[:3])
    for node in NODES[:3]:
        lose_node(cluster, node)
    if records_are_lost:
        shutil.rmtree(cluster.coordination)
    expected, first = losses(job.control(2)), job.trained
    resized = job.run(NODES[:2])
    assert {events[0]["tier"] for events in resized} == {"PERSISTENT"}
    assert_goes_on(resized, first, 3, lossy=True)  # only the lost nodes may have known of a newer commit
    assert losses(resized) == expected
