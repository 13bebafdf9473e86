"""Jobs of real agents for the tests; each test has its own, and nothing of it is left at the end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CKPTENGINE_BUILD_DIR", ROOT / "build" / "release"))
sys.path[:0] = [str(ROOT / "tests" / "chaos"), str(ROOT / "scripts")]

from ckptengine import Engine, Error, Status  # noqa: E402
from processes import agent_pids, build_file, kill_process  # noqa: E402

pytest.register_assert_rewrite("resized_jobs")


def build_file_of(name: str) -> Path:
    return build_file(BUILD, name)


class LocalJob:
    """A job whose engines live in this process and whose agents are real. Rank r runs on node n<r>."""

    def __init__(self, arena: Path, coordination: Path) -> None:
        self.job = arena.name
        self.arena = arena
        self.coordination = coordination
        self.engines: list[Engine] = []

    def options(self, rank: int = 0, world_size: int = 1, **changes: object) -> dict:
        return {
            "job": self.job,
            "rank": rank,
            "world_size": world_size,
            "node": f"n{rank}",
            "arena_dir": self.arena,
            "coordination": self.coordination,
            "ckptd": build_file(BUILD, "ckptd"),
            "copies": 2,
            "heartbeat_ms": 50,
            "node_timeout_ms": 800,
            "lease_ms": 800,
            "node_wait_ms": 1000,
            "restore_timeout_ms": 10_000,
            "claim_timeout_ms": 500,
            "interface": "lo",
        } | changes

    def engine(self, rank: int = 0, world_size: int = 1, **changes: object) -> Engine:
        engine = Engine(library=build_file(BUILD, "libckptengine.so"), **self.options(rank, world_size, **changes))
        self.engines.append(engine)
        return engine

    def agents(self, node: str | None = None) -> list[int]:
        return agent_pids(self.job, node)

    def close_engines(self) -> None:
        while self.engines:
            self.engines.pop().close()

    def kill_agents(self) -> None:
        deadline = time.monotonic() + 30
        while (pids := self.agents()) and time.monotonic() < deadline:
            for pid in pids:
                kill_process(pid, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        for pid in self.agents():
            kill_process(pid, signal.SIGCONT)
        self.close_engines()
        self.kill_agents()
        for folder in (self.arena, self.coordination):
            shutil.rmtree(folder, ignore_errors=True)


def wipe(folder: Path) -> None:
    """Removes a folder at once, also where agents go on writing to it."""
    away = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.wiped")
    folder.rename(away)
    shutil.rmtree(away, ignore_errors=True)


@pytest.fixture
def cluster(monkeypatch):
    for key in [key for key in os.environ if key.startswith("CKPTENGINE_") and key != "CKPTENGINE_BUILD_DIR"]:
        monkeypatch.delenv(key)
    name = f"ckptengine-test-{uuid.uuid4().hex[:12]}"
    cluster = LocalJob(Path("/dev/shm") / name, Path("/tmp") / name)
    yield cluster
    cluster.close()


def nightly_but(each_change, cases) -> list:
    """The parameters of a test. Those that `each_change` does not have are left to the nightly run."""
    return [case if case in each_change else pytest.param(*(case if isinstance(case, tuple) else (case,)),
                                                          marks=pytest.mark.nightly) for case in cases]


def refused(call, *arguments, **options) -> tuple[Status, str]:
    """The error of a call that must fail: its status, and its message, which must be one sentence."""
    with pytest.raises(Error) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return caught.value.status, message


def together(*calls):
    """Runs calls that wait for each other, as those of the ranks of a job do; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call) for call in calls]]
