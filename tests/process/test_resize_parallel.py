"""Jobs with tensor parallelism, HSDP or a pipeline go on with another number of ranks, from memory, with the losses
that torch.distributed.checkpoint (DCP) gives at the new size."""

from __future__ import annotations

import pytest
from rank_processes import ranks_of
from resized_jobs import NODES, Job, assert_resizes, sentence_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of("split_trainer", "parallel_trainings", "ckptengine.torch._resize", "torch._dynamo", "resized_jobs")


@pytest.fixture
def job(cluster, ranks, tmp_path):
    return Job(ranks, tmp_path, cluster)


def test_tensor_parallel_state_goes_from_two_ranks_to_one_to_two(job):
    assert_resizes(job, {"tp": 2}, {}, {"tp": 2})


def test_tensor_parallel_state_that_fsdp_splits_again_goes_from_four_ranks_to_two(job):
    assert_resizes(job, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 1})


def test_hybrid_sharded_state_goes_from_four_ranks_to_two_that_share_all_of_it_to_three_that_do(job):
    assert_resizes(job, {"replicate": 2, "dp": 2}, {"replicate": 2, "dp": 1}, {"replicate": 3, "dp": 1})


def test_a_pipeline_whose_stages_have_other_learning_rates_goes_from_two_stages_to_four_to_two(job):
    assert_resizes(job, {"pp": 2}, {"pp": 4}, {"pp": 2}, fast=[2, 3])


def test_stages_with_other_learning_rates_are_not_joined(job):
    job.run(NODES[:4], parallel={"split": {"pp": 4}, "fast": [3]})
    sentence = sentence_of(job.run(NODES[:2], parallel={"split": {"pp": 2}, "fast": [3]}))
    assert "'blocks.2.norm.weight' and 'blocks.3.norm.weight', but the checkpoint has different optimizer" in sentence


def test_a_block_that_no_stage_had_or_gets_is_refused_by_the_name_of_its_first_tensor(job):
    job.run(NODES[:2], parallel={"split": {"pp": 2}})
    missing = sentence_of(job.run(NODES[:5], parallel={"split": {"pp": 5}, "blocks": 5}))
    unwanted = sentence_of(job.run(NODES[:3], parallel={"split": {"pp": 3}, "blocks": 3}))
    assert "tensor 'model.blocks.4.norm.weight' is missing in the checkpoint of 2 ranks" in missing
    assert "tensor 'model.blocks.3.down.bias' is stored, but no rank of this job has it" in unwanted
