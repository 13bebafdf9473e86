"""The cases of torch's own tests that use a FileSystemWriter and a FileSystemReader, with ours in their place.

The ranks of a world size run once, all their cases one after another (dcp_cases.py), each on a node of its own.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from conftest import LocalJob, build_file_of
from dcp_cases import CASES
from test_dcp import Ranks, engines, ranks

__all__ = ["ranks"]


@pytest.fixture(scope="module")
def told(ranks, tmp_path_factory):
    """What went wrong in each case, by world size and name. A world size runs when it is asked for first."""
    found: dict[int, dict[str, str]] = {}

    def of(world_size: int) -> dict[str, str]:
        if world_size not in found:
            try:
                found[world_size] = run(ranks, tmp_path_factory.mktemp("cases"), world_size)
            except AssertionError as error:  # not again for each case
                found[world_size] = dict.fromkeys(CASES[world_size], str(error) or "the ranks did not end well")
        return found[world_size]

    return of


def run(ranks, folder: Path, world_size: int) -> dict[str, str]:
    name = f"ckptengine-test-{uuid.uuid4().hex[:12]}"
    storage = folder / "storage"
    storage.mkdir()
    cluster = LocalJob(Path("/dev/shm") / name, Path("/tmp") / name)
    try:
        own = engines(cluster, world_size, copies=min(2, world_size), storage=storage, storage_every=1,
                      node_timeout_ms=5000, lease_ms=5000)
        where = {"engine": own, "storage": str(storage), "job": name, "grouped": world_size > 1,
                 "library": str(build_file_of("libckptengine.so"))}
        by_rank = Ranks(ranks, folder).run("cases", world_size, **where)
    finally:
        cluster.close()
    return {one: "\n".join(told.get(one, "did not run") for told in by_rank if told.get(one, "did not run"))
            for one in CASES[world_size]}


ALL = [(world_size, name) for world_size, cases in CASES.items() for name in cases]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world_size", "name"), ALL, ids=[f"{name}-{size}" for size, name in ALL])
def test_dcp_case_passes_as_in_torch(told, world_size, name):
    assert not told(world_size)[name], told(world_size)[name]
