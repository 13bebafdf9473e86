"""As test_resize_parallel.py, with more changes from one split to another. Nightly."""

from __future__ import annotations

import math

import pytest
from fork_server import TORCH
from rank_processes import lose_node, ranks_of
from resized_jobs import NODES, Job, assert_goes_on, assert_resizes, losses

CHANGES = {
    "FSDP": [{"dp": 4}, {"dp": 2}],
    "HSDP with fewer replicas": [{"replicate": 2, "dp": 2}, {"replicate": 1, "dp": 2}, {"replicate": 2, "dp": 2}],
    "HSDP to FSDP and back": [{"replicate": 2, "dp": 2}, {"dp": 3}, {"replicate": 2, "dp": 2}],
    "tensor parallelism below FSDP": [{"tp": 2}, {"dp": 2, "tp": 2}, {"dp": 1, "tp": 2}],
    "a pipeline with fewer replicas": [{"pp": 2, "dp": 2}, {"pp": 2, "dp": 1}, {"pp": 2, "dp": 2}],
    "a pipeline of other stages to FSDP": [{"pp": 2, "dp": 2}, {"dp": 2}, {"pp": 4, "dp": 1}],
    "a pipeline of tensor parallel stages": [{"pp": 2, "tp": 2}, {"pp": 2}, {}],
    "as many ranks, FSDP and tensor parallelism": [{"dp": 2, "tp": 2}, {"tp": 4}, {"dp": 4}, {"tp": 4}],
    "as many ranks, fewer stages of tensor parallelism": [{"pp": 4}, {"pp": 2, "tp": 2}, {"tp": 4}, {"pp": 4}],
    "as many ranks, HSDP": [{"dp": 4}, {"replicate": 2, "dp": 2}, {"replicate": 4, "dp": 1}, {"dp": 2, "tp": 2}],
    "as many ranks, HSDP to a pipeline": [{"replicate": 2, "dp": 2}, {"pp": 2, "replicate": 2, "dp": 1}, {"pp": 4}],
    "as many ranks after fewer": [{"dp": 4}, {"dp": 2}, {"tp": 2}, {"pp": 2}],
}


pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.mark.parametrize("changes", CHANGES)
def test_resized_job_continues_as_after_a_dcp_load(cluster, ranks, tmp_path, changes):
    assert_resizes(Job(ranks, tmp_path, cluster), *CHANGES[changes])


@pytest.mark.parametrize("after", [{"dp": 4}, {"pp": 4}, {"dp": 3}])
def test_another_split_reads_storage_if_no_node_has_the_state(cluster, ranks, tmp_path, after):
    storage = tmp_path / "storage"
    storage.mkdir()
    job = Job(ranks, tmp_path, cluster, storage=storage, storage_every=1)
    job.run(NODES[:4], parallel={"split": {"replicate": 2, "dp": 2}})
    for node in NODES[:4]:
        lose_node(cluster, node)
    world_size = math.prod(after.values())
    expected, first = losses(job.control(world_size, parallel={"split": after})), job.trained
    changed = job.run(NODES[:world_size], parallel={"split": after})
    assert {events[0]["tier"] for events in changed} == {"PERSISTENT"}
    assert_goes_on(changed, first, 4, lossy=True)
    assert losses(changed) == expected
