"""Jobs with tensor parallelism, HSDP or a pipeline go on with another number of ranks, or with as many that split the
state in another way. They go on from memory, with the losses that torch.distributed.checkpoint (DCP) gives."""

from __future__ import annotations

import pytest
from fork_server import TORCH
from rank_processes import ranks_of
from resized_jobs import NODES, Job, assert_goes_on, assert_goes_on_as_each, assert_resizes, losses, sentence_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.fixture
def job(cluster, ranks, tmp_path):
    return Job(ranks, tmp_path, cluster)


def test_a_state_goes_through_splits_of_each_kind(job):
    """The nightly tests take each of these steps, and others, by itself and back."""
    assert_resizes(job, {"dp": 2, "tp": 2}, {"dp": 3}, {"replicate": 2, "dp": 1}, {"ddp": 2}, {"tp": 2})


def test_a_pipeline_goes_from_two_stages_to_four_and_to_two_of_two_ranks(job):
    assert_resizes(job, {"pp": 2}, {"pp": 4}, {"pp": 2, "dp": 2}, fast=[2, 3])


@pytest.mark.nightly
def test_tensor_parallel_state_goes_from_two_ranks_to_one_to_two(job):
    assert_resizes(job, {"tp": 2}, {}, {"tp": 2})


@pytest.mark.nightly
def test_tensor_parallel_state_that_fsdp_splits_again_goes_from_four_ranks_to_two(job):
    assert_resizes(job, {"dp": 2, "tp": 2}, {"dp": 2, "tp": 1})


@pytest.mark.nightly
def test_hybrid_sharded_state_goes_from_four_ranks_to_two_to_three(job):
    assert_resizes(job, {"replicate": 2, "dp": 2}, {"replicate": 2, "dp": 1}, {"replicate": 3, "dp": 1})


@pytest.mark.nightly
def test_pipeline_with_different_learning_rates_goes_from_two_stages_to_four_to_two(job):
    assert_resizes(job, {"pp": 2}, {"pp": 4}, {"pp": 2}, fast=[2, 3])


@pytest.mark.nightly
def test_stages_with_other_learning_rates_are_not_joined(job):
    job.run(NODES[:4], parallel={"split": {"pp": 4}, "fast": [3]})
    sentence = sentence_of(job.run(NODES[:2], parallel={"split": {"pp": 2}, "fast": [3]}))
    assert "'blocks.2.norm.weight' and 'blocks.3.norm.weight', but the checkpoint has different optimizer" in sentence


@pytest.mark.nightly
def test_missing_or_unused_block_is_refused_and_its_first_tensor_named(job):
    job.run(NODES[:2], parallel={"split": {"pp": 2}})
    missing = sentence_of(job.run(NODES[:5], parallel={"split": {"pp": 5}, "blocks": 5}))
    unwanted = sentence_of(job.run(NODES[:3], parallel={"split": {"pp": 3}, "blocks": 3}))
    assert "tensor 'model.blocks.4.norm.weight' is missing in the checkpoint of 2 ranks" in missing
    assert "tensor 'model.blocks.3.down.bias' is stored, but no rank of this job has it" in unwanted


# ---- as many ranks ----


@pytest.mark.nightly
def test_fsdp_with_tensor_parallelism_continues_as_fsdp_alone_and_back(job):
    assert_resizes(job, {"dp": 2, "tp": 2}, {"dp": 4}, {"dp": 2, "tp": 2})


@pytest.mark.nightly
def test_four_stages_continue_as_two_stages_of_two_ranks_each_and_back(job):
    assert_resizes(job, {"pp": 4}, {"pp": 2, "dp": 2}, {"pp": 4})


@pytest.mark.nightly
def test_ranks_with_shared_shards_continue_without_sharing_and_back(job):
    assert_resizes(job, {"replicate": 2, "dp": 2}, {"dp": 4}, {"replicate": 2, "dp": 2})


@pytest.mark.nightly
def test_ranks_that_keep_their_blocks_continue_beside_ranks_that_exchange_them(job):
    before, after = ({"split": {"pp": 4}, "blocks": 6, "stages": stages} for stages in ((1, 2, 2, 1), (1, 1, 3, 1)))
    assert_goes_on_as_each(job, before, after)


def test_missing_and_unused_tensors_are_refused_by_name(job):
    job.run(NODES[:2], parallel={"split": {"pp": 2}})
    missing = sentence_of(job.run(NODES[:2], parallel={"split": {"pp": 2}, "blocks": 5, "stages": (2, 3)}))
    unwanted = sentence_of(job.run(NODES[:2], parallel={"split": {"pp": 2}, "blocks": 3, "stages": (2, 1)}))
    assert "tensor 'model.blocks.4.norm.weight' is missing in the checkpoint of 2 ranks" in missing
    assert "tensor 'model.blocks.3.down.bias' is stored, but no rank of this job has it" in unwanted


def test_death_before_all_know_the_new_split_blocks_the_restore_until_restart(job):
    job.run(NODES[:2], parallel={"split": {"tp": 2}})
    sentence = sentence_of(job.run(NODES[:2], parallel={"split": {"dp": 2}}, dies=1), "TIMEOUT")
    assert "not all 2 ranks have said within 1 s how they split the state" in sentence
    expected, first = losses(job.control(2, parallel={"split": {"dp": 2}})), job.trained
    resized = job.run(NODES[:2], parallel={"split": {"dp": 2}})
    assert_goes_on(resized, first, 2)
    assert losses(resized) == expected


@pytest.mark.nightly
def test_tensors_are_found_by_the_names_that_ddp_and_other_jobs_give_them(job):
    assert_resizes(job, {"ddp": 2}, {"dp": 3}, {"dp": 2}, {"ddp": 2})
