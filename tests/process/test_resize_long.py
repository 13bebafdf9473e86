"""As test_resize_parallel.py, with more changes from one split to another. Nightly."""

from __future__ import annotations

import pytest
from rank_processes import ranks_of
from resized_jobs import Job, assert_resizes

CHANGES = {
    "FSDP": [{"dp": 4}, {"dp": 2}],
    "HSDP with fewer replicas": [{"replicate": 2, "dp": 2}, {"replicate": 1, "dp": 2}, {"replicate": 2, "dp": 2}],
    "HSDP to FSDP and back": [{"replicate": 2, "dp": 2}, {"dp": 3}, {"replicate": 2, "dp": 2}],
    "tensor parallelism below FSDP": [{"tp": 2}, {"dp": 2, "tp": 2}, {"dp": 1, "tp": 2}],
    "a pipeline with fewer replicas": [{"pp": 2, "dp": 2}, {"pp": 2, "dp": 1}, {"pp": 2, "dp": 2}],
    "a pipeline of other stages to FSDP": [{"pp": 2, "dp": 2}, {"dp": 2}, {"pp": 4, "dp": 1}],
    "a pipeline of tensor parallel stages": [{"pp": 2, "tp": 2}, {"pp": 2}, {}],
}


@pytest.fixture(scope="module")
def ranks():
    return ranks_of("split_trainer", "parallel_trainings", "ckptengine.torch._resize", "torch._dynamo", "resized_jobs")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("changes", CHANGES)
def test_a_job_goes_on_as_after_a_load_with_dcp(cluster, ranks, tmp_path, changes):
    assert_resizes(Job(ranks, tmp_path, cluster), *CHANGES[changes])
