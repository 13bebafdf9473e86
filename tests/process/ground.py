"""One job for many tests, one fault after the other; another job after a failure."""

import uuid

import pytest
from campaign import Campaign
from chaos_settings import Violation


class Ground:
    def __init__(self, settings, folder):
        self.settings = settings
        self.folder = folder
        self.campaign = None
        self.begun = 0
        self.runs = 0

    def endure(self, name):
        self.runs += 1
        try:
            self._campaign().run(self.runs, name)
        except Violation as violation:
            logs = "\n".join(ends_of_logs(self.campaign.job.logs))
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
            self.campaign = Campaign(self.settings, 1, root, f"ckptengine-test-{uuid.uuid4().hex[:12]}")
            self.campaign.begin()
        return self.campaign


def ends_of_logs(folder):
    for log in sorted(folder.glob("*.log")):
        yield f"---- {log.name}"
        yield from log.read_text(errors="replace").splitlines()[-25:]
