"""Nodes with a network and a real etcd between them, each fault of which strikes once; every restore is compared."""

from __future__ import annotations

import uuid

import netns
import pytest
from campaign import Campaign
from conftest import BUILD
from faults import KINDS
from job import Settings, Violation

SETTINGS = Settings(BUILD, megabytes=2, network=True, coordinator="etcd", standbys=1)
WITHOUT_NETWORK = Settings(BUILD)
OF_NETWORK = [name for name, fault in KINDS.items() if fault.fits(SETTINGS) and not fault.fits(WITHOUT_NETWORK)]
AT_ROOT = ["root_killed", "root_frozen", "root_killed_in_restore", "two_failures_in_a_row"]


class Ground:
    """One job for all tests of this file, one after the other; another one after a failure."""

    def __init__(self, folder):
        self.folder = folder
        self.campaign = None
        self.begun = 0
        self.runs = 0

    def endure(self, name):
        self.runs += 1
        try:
            self._campaign().run(self.runs, name)
        except Violation as violation:
            logs = "\n".join(self._ends_of_logs())
            self.close()
            pytest.fail(f"{logs}\nrun {self.runs} ({name}): {violation}", pytrace=False)
        except BaseException:
            self.close()
            raise

    def close(self):
        if self.campaign is not None:
            self.campaign.close()
        self.campaign = None

    def _campaign(self):
        if self.campaign is None:
            self.begun += 1
            root = self.folder / str(self.begun)
            self.campaign = Campaign(SETTINGS, 1, root, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
            self.campaign.begin()
        return self.campaign

    def _ends_of_logs(self):
        for log in sorted(self.campaign.job.logs.glob("*.log")):
            yield f"---- {log.name}"
            yield from log.read_text(errors="replace").splitlines()[-25:]


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    reason = netns.why_not()
    if reason is not None:
        pytest.skip(reason)
    ground = Ground(tmp_path_factory.mktemp("network"))
    yield ground
    ground.close()


@pytest.mark.parametrize("kind", [*OF_NETWORK, *AT_ROOT])
def test_a_job_restores_what_was_committed_after(ground, kind):
    ground.endure(kind)
