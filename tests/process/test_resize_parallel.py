"""Jobs with tensor parallelism, HSDP and pipelines go on with another number of ranks, from memory, with the losses that
torch.distributed.checkpoint (DCP) gives at the new size."""

from __future__ import annotations

import pytest
from rank_processes import ranks_of
from resized_jobs import NODES, STEP, Job, assert_goes_on, losses, sentence_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of("split_trainer", "torch._dynamo", "resized_jobs")


@pytest.fixture
def job(cluster, ranks, tmp_path):
    return Job(ranks, tmp_path, cluster)


def assert_resizes(job, *splits: dict[str, int]) -> None:
    """The job trains with each split in turn, and goes on as after a load with DCP."""
    sizes = [world_size_of(split) for split in splits]
    job.run(NODES[: sizes[0]], parallel={"split": splits[0]})
    for before, after, split in zip(sizes, sizes[1:], splits[1:]):
        expected, first = losses(job.control(after, parallel={"split": split})), job.trained
        resized = job.run(NODES[:after], parallel={"split": split})
        assert_goes_on(resized, first, before)
        assert losses(resized) == expected


def world_size_of(split: dict[str, int]) -> int:
    size = 1
    for ranks in split.values():
        size *= ranks
    return size


def test_tensor_parallel_state_goes_from_two_ranks_to_one_to_two(job):
    assert_resizes(job, {"tp": 2}, {}, {"tp": 2})


def test_tensor_parallel_state_that_fsdp_splits_again_goes_from_four_ranks_to_two(job):
    assert_resizes(job, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 1})


def test_hybrid_sharded_state_goes_from_four_ranks_to_two(job):
    assert_resizes(job, {"replicate": 2, "dp": 2}, {"replicate": 2, "dp": 1})


def test_a_pipeline_goes_from_two_stages_to_four_to_two(job):
    assert_resizes(job, {"pp": 2}, {"pp": 4}, {"pp": 2})
