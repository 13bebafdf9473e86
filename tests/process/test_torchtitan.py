"""Jobs of torchtitan's parts lose a rank or a node and go on bit for bit; from its folder if all is lost."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec

import pytest
from ckptengine import Error
from conftest import build_file_of
from fork_server import TORCH
from rank_processes import ranks_of
from test_frameworks import ITERATIONS, assert_committed
from training_systems import SystemJob, assert_goes_on, losses

TRAINER = "torchtitan_trainer"


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="needs scripts/requirements_training_systems.txt"),
]


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return losses(SystemJob(TRAINER, ranks, folder, "titan").start(folder=str(folder)))


def forget(cluster) -> None:
    """Gives up what is lost, as the error of a restore says."""
    command = [build_file_of("ckptctl"), "gc", f"job={cluster.job}", f"arena_dir={cluster.arena}",
               f"coordination={cluster.coordination}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("die_at", "victims", "lost"), [(3, (1,), ""), (5, (0,), "n0")])
def test_torchtitan_job_continues_bit_for_bit(cluster, ranks, undisturbed, tmp_path, die_at, victims, lost):
    job = SystemJob(TRAINER, ranks, tmp_path, "titan", cluster)
    assert_goes_on(job, undisturbed, die_at, victims, lost, folder=str(tmp_path))
    if lost:
        job.lose_node("n0")
        job.lose_node("n1")
        forget(cluster)
        third = job.start(folder=str(tmp_path), iterations=ITERATIONS + 2)
        assert_committed(third)
        assert [events[0]["first"] for events in third] == [ITERATIONS] * 2


@pytest.mark.parametrize("option", [{"load_only": True}, {"exclude_from_loading": ["dataloader"]}])
def test_unsupported_torchtitan_features_are_refused(tmp_path, option):
    from ckptengine.integrations.torchtitan import CheckpointManager

    config = CheckpointManager.Config(job="refused", keep_latest_k=0, **option)
    with pytest.raises(Error, match=f"does not support the setting checkpoint.{next(iter(option))}. Leave it out"):
        config.build(dataloader=None, model_parts=[], optimizers=None, lr_schedulers=None, states={}, sd_adapter=None)
