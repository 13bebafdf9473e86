"""Real processes are killed at random moments, every kind of failure at least once, and every restore is compared."""

from __future__ import annotations

import uuid

import pytest
from campaign import Campaign, schedule
from conftest import BUILD
from faults import KINDS
from job import Settings, Violation


def endure(tmp_path, settings, seed, enough):
    """Fault after fault until `enough(kinds so far, tally)`."""
    campaign = Campaign(settings, seed, tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    struck = []
    try:
        campaign.begin()
        for number, name in enumerate(schedule(settings, seed), 1):
            if enough(struck, campaign.tally):
                return campaign.tally
            campaign.run(number, name)
            struck.append(name)
    except Violation as violation:
        logs = "\n".join(f"---- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                         for log in sorted(campaign.job.logs.glob("*.log")))
        pytest.fail(f"{logs}\nrun {len(struck) + 1}, seed {seed}, after {struck}: {violation}", pytrace=False)
    finally:
        campaign.close()
        print(campaign.tally.line())


def test_chaos_25(tmp_path):
    settings = Settings(BUILD)
    kinds = {name for name, fault in KINDS.items() if fault.fits(settings)}
    tally = endure(tmp_path, settings, 1, lambda struck, tally: set(struck) == kinds and tally.kills >= 25)
    assert (tally.wrong, tally.lost) == (0, 0) and tally.restores >= len(kinds) - 1


def test_chaos_two_nodes_of_two_ranks(tmp_path):
    """An agent that serves several ranks."""
    settings = Settings(BUILD, nodes=2, ranks_per_node=2, megabytes=2)
    endure(tmp_path, settings, 2, lambda struck, _: len(struck) == 8)
