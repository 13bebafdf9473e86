"""pytest plugin for pytest-xdist: the tests of a file run one after another in one process, because they share what
takes long to make. Files that take longest come first."""

from pathlib import PurePath

import pytest

# Files that use the same thing of the machine: they count as one file.
TOGETHER = {"test_netns": "test_network"}
# By the time that they take, the longest first.
LONGEST = (
    "test_resize_parallel",
    "test_halt",
    "test_network",
    "test_frameworks",
    "test_health",
    "test_storage",
    "test_rejoin",
    "test_jit",
    "test_watchdog",
    "test_launchers",
    "test_chaos",
    "test_unauthenticated_peers",
    "test_dcp_torch_cases",
    "test_coordination",
    "test_ckptrun_halts",
    "test_parity",
    "test_bad_days",
    "test_groups",
    "test_pauses",
    "test_demo",
    "test_storage_tools",
    "test_etcd",
)


def unit_of(nodeid: str) -> str:
    """The file, by its name. No two files have the same name."""
    name = PurePath(nodeid.partition("::")[0]).stem
    return TOGETHER.get(name, name)


def pytest_collection_modifyitems(items):
    def place(item) -> int:
        unit = unit_of(item.nodeid)
        return LONGEST.index(unit) if unit in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class InTurn(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False  # by the number of tests
    return InTurn(config, log)
