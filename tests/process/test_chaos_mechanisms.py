"""Processes are struck while nodes repeat updates, while another number of ranks takes over shards, and while many
nodes fetch from few. Every restored byte is compared."""

from __future__ import annotations

import random
import uuid

import pytest
from campaign import Campaign
from chaos_runs import endure
from chaos_settings import RECOMPUTE, RESIZE, SPREAD, Settings, WrongBytes
from conftest import BUILD
from faults import KINDS, Aftermath

# Of each mechanism, the faults that strike its own stages. test_chaos_mechanisms_long.py has all.
OWN = {
    RECOMPUTE: ["agent_killed_in_repeat", "node_lost_in_repeat"],
    RESIZE: ["trainer_killed_in_stage", "node_lost_and_resized"],
    SPREAD: ["node_lost_and_agent_killed_while_fetched"],
}


def settings_of(mode: str) -> Settings:
    return Settings(BUILD, megabytes=2, mode=mode)


@pytest.mark.parametrize("mode", OWN)
def test_no_byte_is_wrong_after_faults_in_processes(tmp_path, mode):
    tally = endure(tmp_path, settings_of(mode), 1, OWN[mode], lambda struck, _: set(struck) == set(OWN[mode]))
    assert (tally.wrong, tally.lost, tally.silent) == (0, 0, 0) and tally.restores >= len(OWN[mode])
    if mode != SPREAD:
        assert tally.repeated["recomputed"] > 0, "nodes repeated updates"
    if mode != RECOMPUTE:
        assert tally.resized > 0, "another number of ranks restored"


@pytest.mark.parametrize("mode", OWN)
def test_each_mode_has_its_own_kinds_of_faults(mode):
    fitting = [name for name, fault in KINDS.items() if fault.fits(settings_of(mode))]
    assert set(OWN[mode]) < set(fitting) and "trainer_killed" in fitting


def test_state_that_differs_from_training_is_noticed(tmp_path):
    """The digests of the past are changed instead of the state, which nobody may change."""
    campaign = Campaign(settings_of(RECOMPUTE), 1, tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    job = campaign.job
    try:
        campaign.begin()
        job.train_until_commit()
        job.end_incarnation(random.Random(1))
        for file in job.digests.iterdir():
            file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
        job.start_incarnation()
        with pytest.raises(WrongBytes):
            campaign.judge(Aftermath())
    finally:
        campaign.close()
