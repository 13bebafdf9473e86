"""Ranks that hold a halted job up are killed by ckptrun, and start anew; and torch's store outlives ranks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import build_file_of, nightly_but
from launched import Job, runs, until
from processes import kill_process

HALT_RANK = Path(__file__).with_name("ckptrun_halt_rank.py")
RANKS = 3


@pytest.fixture
def job(tmp_path, cluster):
    job = Job(tmp_path)
    options = cluster.options(0, RANKS, restore_timeout_ms=40_000, hang_floor_ms=1000, on_suspicion="halt",
                              capture_every=10)
    for name in ("rank", "world_size"):  # ckptrun gives them
        del options[name]
    job.environment |= {f"CKPTENGINE_{key.upper()}": str(value) for key, value in options.items()}
    job.environment["PATH"] = f"{build_file_of('ckptctl').parent}:{os.environ['PATH']}"
    yield job
    job.close()


def train(job: Job, *options, words=()):
    (job.folder / "places").write_bytes(bytes(8 * RANKS))
    launcher = job.launch("--nproc-per-node", RANKS, *options, script=HALT_RANK,
                          words=[build_file_of("libckptengine.so"), *words])

    def is_between_captures() -> bool:
        done = [newest(job, rank) for rank in range(RANKS)]
        return min(done) > 12 and all(3 <= each % 10 <= 6 for each in done)

    job.until(is_between_captures)
    return launcher


def newest(job: Job, rank: int) -> int:
    path = job.folder / f"done-{rank}"
    return int(path.read_text() or -1) if path.exists() else -1


def restored(job: Job, rank: int) -> list[tuple[int, int]]:
    """Process and iteration of each restore."""
    path = job.folder / f"restored-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


STOPPED, SPINS = ("stop", "its process is stopped"), ("spin", "it has neither ended nor rejoined within 1 s")


@pytest.mark.parametrize(("command", "why"), nightly_but([STOPPED], [STOPPED, SPINS]))
def test_rank_that_delays_a_halted_job_is_killed_without_losing_an_iteration(job, command, why):
    launcher = train(job, "--halt-grace", 1)
    (job.folder / f"{command}-1").touch()
    launcher.await_text(rf"^ckptrun: rank 1 holds the halted job up: {why}. It is killed, and starts anew$")
    live = newest(job, 0)
    # The others wait for rank 1 and cannot rejoin: they follow.
    job.until(lambda: all(len(restored(job, rank)) == 2 for rank in range(RANKS)))
    assert [restored(job, rank)[1][1] for rank in range(RANKS)] == [live] * RANKS, job.told()
    finish(job, launcher)


@pytest.mark.parametrize("command", nightly_but(["spin"], ["die", "stop", "spin"]))
def test_ranks_that_rejoin_keep_their_processes(job, command):
    rank = 1
    launcher = train(job, "--halt-grace", 2, words=["rejoin"])
    (job.folder / f"{command}-{rank}").touch()
    job.until(lambda: all(len(restored(job, each)) == 2 for each in range(RANKS)))
    finish(job, launcher)
    for each in range(RANKS):
        (first, _), (second, iteration) = restored(job, each)
        assert (first == second) == (each != rank), job.told()
        assert iteration == restored(job, 0)[1][1]
    assert len(re.findall("starts anew as", launcher.text)) == 1


def test_a_rank_that_raises_in_the_same_iteration_twice_ends_the_job(job):
    launcher = train(job, "--halt-grace", 0.3)
    iteration = newest(job, 1) + 5
    (job.folder / f"raise-1-{iteration}").touch()
    assert launcher.end() == 1
    assert f"rank 1 has failed twice in the same way after iteration {iteration - 1}, without pro" in launcher.text
    assert len(restored(job, 1)) == 2


def finish(job: Job, launcher) -> None:
    whole = job.folder / "end.new"
    whole.write_text(str(newest(job, 0) + 20))
    whole.rename(job.folder / "end")
    assert launcher.end() == 0, launcher.text


def test_captured_ranks_restart_together_if_the_script_cannot_rejoin(job):
    launcher = train(job, "--restart", "all")
    pids = [restored(job, rank)[0][0] for rank in range(RANKS)]
    (job.folder / "die-1").touch()
    launcher.await_text("^ckptrun: rank 1 was ended by SIGKILL")
    live = newest(job, 0)
    job.until(lambda: all(len(restored(job, rank)) == 2 for rank in range(RANKS)))
    assert live % 10 != 0 and [restored(job, rank)[1][1] for rank in range(RANKS)] == [live] * RANKS, job.told()
    assert not [pid for pid in pids if runs(pid)]
    finish(job, launcher)
    assert len(re.findall(r"^ckptrun: rank \d starts anew", launcher.text, re.MULTILINE)) == RANKS


def test_next_start_restores_from_agents_that_outlived_the_launcher(job):
    launcher = train(job)
    pids = [restored(job, rank)[0][0] for rank in range(RANKS)]
    kill_process(launcher.pid)
    until(lambda: not [pid for pid in pids if runs(pid)], job.told)
    launcher = job.launch("--nproc-per-node", RANKS, script=HALT_RANK, words=[build_file_of("libckptengine.so")])
    job.until(lambda: all(len(restored(job, rank)) == 2 for rank in range(RANKS)))
    assert len({restored(job, rank)[1][1] for rank in range(RANKS)}) == 1 and restored(job, 0)[1][1] >= 10
    finish(job, launcher)


def test_torch_finds_a_store_that_outlives_rank_0(tmp_path):
    pytest.importorskip("torch")
    job = Job(tmp_path)
    try:
        job.environment |= {"GLOO_SOCKET_IFNAME": "lo"}
        launcher = job.launch("--nproc-per-node", 2, "--preload", "torch",
                              script=Path(__file__).with_name("ckptrun_torch_rank.py"))
        stories = [job.folder / f"story-{rank}" for rank in range(2)]
        for story in stories:
            job.until(lambda: story.exists() and "sum 1" in story.read_text())  # noqa: B023
        kill_process(int(stories[0].read_text().split()[0]))
        job.until(lambda: len(stories[0].read_text().splitlines()) == 2)
        assert stories[0].read_text().splitlines()[1].endswith("found 1, torch was there")
        job.do("end")
        assert launcher.end() == 0, launcher.text
        assert len(stories[1].read_text().splitlines()) == 1
    finally:
        job.close()
