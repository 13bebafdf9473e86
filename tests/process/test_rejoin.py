"""Ranks that stay in their processes when another one fails go on with the iteration that was live."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from ckptengine import Capture, Halted, Status, Tier
from conftest import refused, together
from processes import kill_process
from test_halt import CAPTURE_EVERY, DEADLINE_S, RANKS, HaltingJob, undisturbed  # noqa: F401

SOON_S = 20


class RejoiningJob(HaltingJob):
    program = "rejoin_trainer"

    def replace(self, rank: int) -> None:
        """Starts the rank again, as a launcher does that restarts only what died."""
        self.trainers[rank].wait(DEADLINE_S)
        self.trainers[rank] = self.start_rank(rank)

    def lines(self, name: str, rank: int) -> list[list[str]]:
        path = self.folder / f"{name}-{rank}"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def await_true(self, is_so) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so():
            assert time.monotonic() < deadline, self.text(0)
            time.sleep(0.01)

    def pids(self) -> list[int]:
        return [trainer.pid for trainer in self.trainers]

    def hold(self) -> None:
        """Keeps ranks from rejoining."""
        (self.folder / "hold").touch()

    def let_rejoin(self) -> None:
        (self.folder / "hold").unlink()

    def await_rejoined(self, *ranks: int) -> None:
        self.await_true(lambda: all(self.lines("rejoined", rank) for rank in ranks))

    def go_on(self, live: int, kept: set[int], pids: list[int], expected: dict[int, dict[int, str]]) -> None:
        """All restore the iteration that was live. Those that were kept are the same processes, and load nothing of the
        main shard. Losses go on as if nothing had happened."""
        assert live % CAPTURE_EVERY != 0
        self.run_to_the_end()
        for rank in range(RANKS):
            pid, tier, size_bytes, incarnation, iteration = self.lines("restored", rank)[-1]
            assert (int(iteration), int(incarnation)) == (live, 2), rank
            assert (int(pid) == pids[rank], tier == Tier.LIVE.name) == (rank in kept, rank in kept), rank
            assert (int(size_bytes) == 8) == (rank in kept)  # of the random generator
        assert {rank: self.losses(rank) for rank in range(RANKS)} == expected


@pytest.fixture
def job(cluster, tmp_path):
    job = RejoiningJob(cluster, tmp_path / "job")
    yield job
    job.kill()


def test_ranks_keep_their_processes_and_tensors_when_another_one_is_killed(job, undisturbed):  # noqa: F811
    job.start()
    pids = job.pids()
    job.await_iteration(12)
    job.command("die", 1)
    job.replace(1)
    job.go_on(job.newest()[1], {0, 2, 3}, pids, undisturbed)


def test_agents_that_die_between_halt_and_rejoin_lose_nothing(job, undisturbed):  # noqa: F811
    job.start()
    pids = job.pids()
    job.await_iteration(12)
    job.hold()
    job.command("die", 1)
    job.await_halt(captured={0, 2, 3})
    for node in {"n0", job.status(0)["leader"]}:
        for agent in job.cluster.agents(node):
            kill_process(agent, signal.SIGKILL)
    job.let_rejoin()
    job.replace(1)
    job.go_on(job.newest()[1], {0, 2, 3}, pids, undisturbed)


def test_rank_that_dies_while_others_rejoin_is_replaced(job, undisturbed):  # noqa: F811
    job.start()
    pids = job.pids()
    job.await_iteration(12)
    job.command("die", 1)
    job.await_rejoined(0, 2, 3)
    live = job.newest()[1]
    job.signal(2, signal.SIGKILL)
    job.replace(2)
    job.replace(1)
    job.go_on(live, {0, 3}, pids, undisturbed)


def test_a_stopped_rank_that_wakes_up_rejoins_like_the_others(job, undisturbed):  # noqa: F811
    job.start()
    pids = job.pids()
    job.await_iteration(12)
    job.command("stop", 2)
    job.await_rejoined(0, 1, 3)
    job.signal(2, signal.SIGCONT)
    job.go_on(job.newest()[0], {0, 1, 2, 3}, pids, undisturbed)


def test_stopped_rank_that_was_replaced_is_ended(job, undisturbed):  # noqa: F811
    job.start()
    pids = job.pids()
    job.await_iteration(12)
    job.command("stop", 2)
    job.await_rejoined(0, 1, 3)
    stopped, job.trainers[2] = job.trainers[2], job.start_rank(2)
    assert stopped.wait(DEADLINE_S) == -signal.SIGKILL
    job.go_on(job.newest()[0], {0, 1, 3}, pids, undisturbed)


# ---- Several ranks in this process, each with agents of its own ----


class Ranks:
    """Engines of two ranks with the same main shard."""

    def __init__(self, cluster, **options: object) -> None:
        self.engines = [
            cluster.engine(rank, 2, shard="model", on_suspicion="halt", capture_every=10, **options) for rank in (0, 1)]
        self.states = [bytearray(300_000) for _ in self.engines]
        self.counters = [bytearray(8) for _ in self.engines]
        for engine, state, counter in zip(self.engines, self.states, self.counters, strict=True):
            engine.register("state", state)
            engine.register("counter", counter, capture=Capture.SYNCHRONOUS)

    def together(self, method: str, *arguments: object) -> list:
        return together(*(lambda engine=engine: getattr(engine, method)(*arguments) for engine in self.engines))

    def train(self, first: int, last: int) -> None:
        for iteration in range(first, last + 1):
            for engine, state, counter in zip(self.engines, self.states, self.counters, strict=True):
                engine.before_update()
                state[:] = iteration.to_bytes(2, "little") * (len(state) // 2)
                counter[:] = iteration.to_bytes(8, "little")
                engine.snapshot(iteration)

    def halt(self) -> None:
        self.engines[0].report_trouble("a connection was closed")
        assert all(self.together("wait_halt", SOON_S))


@pytest.fixture
def ranks(cluster):
    ranks = Ranks(cluster)
    ranks.together("restore")
    return ranks


def test_a_rank_that_reports_trouble_halts_the_job_at_once(ranks):
    ranks.train(0, 3)
    assert ranks.engines[1].wait_halt(0) is None
    ranks.halt()
    halt = ranks.engines[1].wait_halt(0)
    assert (halt.captured, halt.incarnation, halt.iteration) == (True, 1, 3)
    assert "the state of iteration 3 is captured" in halt.text
    with pytest.raises(Halted, match="call ckpt_rejoin"):
        ranks.engines[1].before_update()


def test_flipped_bit_in_a_survivor_is_reported_and_the_tensor_loaded(ranks, caplog):
    ranks.train(0, 3)
    ranks.halt()
    whole = bytes(ranks.states[1])
    ranks.states[1][123_456] ^= 32
    ranks.together("rejoin")
    restored = ranks.together("restore")
    assert [each.main_tier is Tier.LIVE for each in restored] == [True, False]
    assert ranks.states[1] == whole
    assert "tensor state is not what was captured at iteration 3" in caplog.text
    assert str(restored[0]).startswith("restored iteration 3 from its own tensors: 0.0 MiB")


def test_a_rank_that_never_rejoins_is_named_to_the_others(cluster):
    ranks = Ranks(cluster, restore_timeout_ms=1500)
    ranks.together("restore")
    ranks.train(0, 3)
    ranks.halt()
    ranks.engines[0].rejoin()
    status, message = refused(ranks.engines[0].restore)
    assert status is Status.TIMEOUT
    assert "1" in message
    ranks.engines[1].rejoin()
    restored = ranks.together("restore")
    assert [each.main_tier for each in restored] == [Tier.LIVE] * 2


def resources(pids: list[int]) -> tuple[list[int], list[int], int]:
    """Open files and threads of each process, and KiB of memory of all."""
    files = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
    threads = [len(os.listdir(f"/proc/{pid}/task")) for pid in pids]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return files, threads, 4 * pages


def is_as_small(after: tuple, before: tuple) -> bool:
    counts = zip(after[0] + after[1], before[0] + before[1], strict=True)
    return all(now <= at_first + 2 for now, at_first in counts) and after[2] <= before[2] + 8 * 1024


def test_fifty_rejoins_leave_nothing_behind(cluster, ranks):
    pids = [os.getpid(), *cluster.agents()]
    iteration = 0
    for count in range(50):
        ranks.train(iteration, iteration + 2)
        ranks.halt()
        iteration += 3
        ranks.together("rejoin")
        restored = ranks.together("restore")
        assert [(each.iteration, each.main_tier) for each in restored] == [(iteration - 1, Tier.LIVE)] * 2, count
        if count == 9:
            before = resources(pids)
    deadline = time.monotonic() + SOON_S
    while not is_as_small(after := resources(pids), before):  # some threads live for a moment
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.05)
