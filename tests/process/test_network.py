"""Nodes with a network and a real etcd between them, each fault of which strikes once; every restore is compared."""

from __future__ import annotations

import campaign  # noqa: F401 (it knows all kinds)
import netns
import pytest
from chaos_settings import Settings
from conftest import BUILD, nightly_but
from faults import KINDS
from ground import Ground

SETTINGS = Settings(BUILD, megabytes=2, network=True, coordinator="etcd", standbys=1)
WITHOUT_NETWORK = Settings(BUILD)
OF_NETWORK = [name for name, fault in KINDS.items() if fault.fits(SETTINGS) and not fault.fits(WITHOUT_NETWORK)]
AT_LEADER = ["leader_killed", "leader_frozen", "leader_killed_in_restore", "two_failures_in_a_row"]
OF_STORE = ["store_hangs", "store_hangs_in_restore", "store_wiped", "store_wiped_and_agent_killed"]
# Each way in which links, etcd and standby nodes fail, once. Others change the moment, or strike what test_chaos.py and
# test_etcd.py strike, too.
EACH_CHANGE = ["link_down", "leader_cut_off", "link_one_way", "link_down_in_restore", "node_cut_off_and_replaced",
               "etcd_killed_in_restore", "etcd_cut_off", "standby_takes_over"]
OF_ALL = ["trainer_stopped", "unauthenticated_peers_at_every_port", "node_lost_and_all_agents_stopped_in_restore"]


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    reason = netns.why_not()
    if reason is not None:
        pytest.skip(reason)
    ground = Ground(SETTINGS, tmp_path_factory.mktemp("network"))
    yield ground
    ground.close()


@pytest.mark.parametrize("kind", nightly_but(EACH_CHANGE, [*OF_NETWORK, *AT_LEADER, *OF_STORE, *OF_ALL]))
def test_job_restores_the_commit_after_a_network_fault(ground, kind):
    ground.endure(kind)
