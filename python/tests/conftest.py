"""Engines for the tests: every test has its own job, arena and agent, and the agent is stopped at its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CKPTENGINE_BUILD_DIR", ROOT / "build" / "release"))


def _built(name: str) -> Path:
    found = sorted(BUILD.glob(f"**/{name}"))
    assert found, f"{name} was not found under {BUILD}: build it first"
    return found[0]


@pytest.fixture(scope="session")
def library() -> Path:
    return _built("libckptengine.so")


@pytest.fixture
def job(library: Path) -> dict:
    """Options of a job of one rank on one node. The arena is small and in /dev/shm, as in real life."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    arena = Path("/dev/shm") / f"ckptengine-{name}"
    coordination = Path("/tmp") / f"ckptengine-{name}"
    for folder in (arena, coordination):
        folder.mkdir(mode=0o700)
    options = {
        "library": library,
        "ckptd": _built("ckptd"),
        "job": name,
        "rank": 0,
        "world_size": 1,
        "node": "n0",
        "copies": 1,
        "arena_dir": arena,
        "coordination": coordination,
    }
    yield options
    where = [f"job={name}", "node=n0", f"arena_dir={arena}", f"coordination={coordination}"]
    subprocess.run([_built("ckptctl"), "stop", *where], check=False, capture_output=True, timeout=30)
    for folder in (arena, coordination):
        shutil.rmtree(folder, ignore_errors=True)
