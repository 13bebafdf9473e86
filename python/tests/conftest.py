"""Engines for the tests: every test has its own job, arena and agent, and the agent is stopped at its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CKPTENGINE_BUILD_DIR", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "scripts"))


def _built(name: str) -> Path:
    found = sorted(BUILD.glob(f"**/{name}"))
    assert found, f"{name} was not found under {BUILD}: build it first"
    return found[0]


@pytest.fixture(scope="session")
def library() -> Path:
    return _built("libckptengine.so")


@pytest.fixture
def job(library: Path) -> Iterator[dict]:
    """Options of a job of one rank on one node, whose arena is in /dev/shm, as in real life."""
    agent, tool = _built("ckptd"), _built("ckptctl")
    name = f"test-{uuid.uuid4().hex[:12]}"
    with (
        tempfile.TemporaryDirectory(prefix="ckptengine-test-", dir="/dev/shm") as arena,
        tempfile.TemporaryDirectory(prefix="ckptengine-test-") as coordination,
    ):
        yield {
            "library": library,
            "ckptd": agent,
            "job": name,
            "rank": 0,
            "world_size": 1,
            "node": "n0",
            "copies": 1,
            "transport": "shm",  # one node needs no network, and not every sandbox shows its interfaces
            "arena_dir": arena,
            "coordination": coordination,
        }
        where = [f"job={name}", "node=n0", f"arena_dir={arena}", f"coordination={coordination}"]
        subprocess.run([tool, "stop", *where], check=False, capture_output=True, timeout=30)
