"""Fault after fault on one chaos job, for test_chaos.py and its neighbours."""

import uuid

import pytest
from campaign import Campaign, schedule
from chaos_settings import Violation
from ground import ends_of_logs


def endure(tmp_path, settings, seed, kinds, enough):
    """Fault after fault until `enough(kinds so far, tally)`."""
    campaign = Campaign(settings, seed, tmp_path, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
    struck = []
    try:
        campaign.begin()
        for number, name in enumerate(schedule(settings, seed, kinds), 1):
            if enough(struck, campaign.tally):
                return campaign.tally
            campaign.run(number, name)
            struck.append(name)
    except Violation as violation:
        logs = "\n".join(ends_of_logs(campaign.job.logs))
        pytest.fail(f"{logs}\nrun {len(struck) + 1}, seed {seed}, after {struck}: {violation}", pytrace=False)
    finally:
        campaign.close()
        print(campaign.tally.line())
