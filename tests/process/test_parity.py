"""Jobs of real agents that are protected by parity: what is lost is decoded, and what cannot be is named."""

from __future__ import annotations

import itertools

import pytest
from ckptengine import Status, Tier
from conftest import refused, together
from small_job import RANKS, Job

PROTECTIONS = {"xor(4)": 1, "xor(2)": 1, "rs(4,2)": 2, "rs(4,3)": 3, "copies(2)+xor(4)": 1}


@pytest.mark.parametrize("protection", PROTECTIONS)
@pytest.mark.parametrize("shared", [False, True])
def test_nodes_may_be_lost_again_and_again(cluster, protection, shared):
    job = Job(cluster, shared, protection=protection)
    job.start()
    job.restore()
    job.commit(0)
    for round_, nodes in enumerate([(1,), (3, 0)[: PROTECTIONS[protection]], (2,)]):
        job.lose(*nodes)
        job.start()
        job.assert_restored(round_)
        job.commit(round_ + 1)
    job.close()
