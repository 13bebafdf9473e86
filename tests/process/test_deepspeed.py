"""DeepSpeed jobs with ZeRO 1 and 2 lose a rank or a node and go on bit for bit. What is not captured is refused."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from fork_server import TORCH
from rank_processes import ranks_of
from training_systems import SystemJob, assert_goes_on, losses

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="needs scripts/requirements_training_systems.txt"),
]


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "die_at", "victims", "lost"), [("zero1", 3, (1,), ""), ("zero2", 5, (0,), "n0")])
def test_deepspeed_job_continues_bit_for_bit(cluster, ranks, tmp_path, kind, die_at, victims, lost):
    (tmp_path / "undisturbed").mkdir()
    expected = losses(SystemJob("deepspeed_trainer", ranks, tmp_path / "undisturbed", kind).start())
    assert_goes_on(SystemJob("deepspeed_trainer", ranks, tmp_path, kind, cluster), expected, die_at, victims, lost)


@pytest.mark.timeout(300)
def test_unsupported_deepspeed_features_are_refused(ranks, tmp_path):
    for told in SystemJob("deepspeed_trainer", ranks, tmp_path, "refused").start():
        refused = {event["case"]: event["refused"] for event in told if "case" in event}
        assert refused == {
            "stage 0": "ZeRO stage 0 is not captured. Set zero_optimization.stage to 1 or 2",
            "stage 3": "ZeRO stage 3 is not captured. Set zero_optimization.stage to 1 or 2",
            "offload": "an offloaded optimizer is not captured. Remove zero_optimization.offload_optimizer",
            "pipeline": "DeepSpeed's pipeline engine is not captured. Train without PipelineModule",
            "training_data": "the position in `training_data` is not captured. Iterate over Batches(loader), and give "
                             "that to `extra`",
        }
