"""Jobs that checkpoint as Megatron does lose a rank or a node and go on bit for bit."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from ckptengine import Error
from fork_server import TORCH
from rank_processes import ranks_of
from test_frameworks import ITERATIONS, assert_committed
from training_systems import SystemJob, assert_goes_on, losses

TRAINER = "megatron_trainer"


pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("megatron") is None, reason="needs scripts/requirements_training_systems.txt"),
]


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    return losses(SystemJob(TRAINER, ranks, tmp_path_factory.mktemp("undisturbed"), "none").start())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("algo", "die_at", "victims", "lost"),
                         [("atomic", 3, (1,), ""), ("fully_parallel", 5, (0,), "n0")])
def test_megatron_job_continues_bit_for_bit(cluster, ranks, undisturbed, tmp_path, algo, die_at, victims, lost):
    job = SystemJob(TRAINER, ranks, tmp_path, algo, cluster)
    assert_goes_on(job, undisturbed, die_at, victims, lost, elsewhere=0)
    third = job.start(elsewhere=ITERATIONS + 5, iterations=ITERATIONS + 7)
    assert_committed(third)
    assert [events[0]["first"] for events in third] == [ITERATIONS + 5] * 2


def test_a_second_replication_is_refused(monkeypatch):
    from ckptengine.integrations.megatron import install, local_manager

    monkeypatch.setattr(local_manager, "LocalCheckpointManager", None)
    install(job="refused")
    with pytest.raises(Error, match=r"the engine itself replicates checkpoints\. Leave out --replication"):
        local_manager.LocalCheckpointManager("/nowhere", repl_strategy=object())
