"""Real processes are struck at random moments, every kind of failure at least once, and every restore is compared."""

from __future__ import annotations

import pytest
from chaos_runs import endure
from chaos_settings import Settings
from conftest import BUILD, nightly_but
from faults import KINDS
from ground import Ground
from watch import DEGRADED, NOT_PROTECTED, PROTECTED, SLACK_S, Answer, Commits, Watch

SETTINGS = Settings(BUILD, megabytes=2)
FITTING = [name for name, fault in KINDS.items() if fault.fits(SETTINGS)]
LONG = [name for name in FITTING if KINDS[name].__module__ in ("neighbour_faults", "pause_faults", "store_faults")]
SHORT = [name for name in FITTING if name not in LONG]
# Other tests of real processes strike in the other ways: test_pauses.py, test_coordination.py, test_removed_arena.py,
# test_health.py, test_unauthenticated_peers.py.
EACH_CHANGE = ["store_hangs_in_restore", "store_wiped_and_leader_killed", "node_lost_and_leader_stopped_in_restore"]


@pytest.mark.nightly
def test_job_survives_25_kills(tmp_path):
    tally = endure(tmp_path, Settings(BUILD), 1, SHORT,
                   lambda struck, tally: set(struck) == set(SHORT) and tally.kills >= 25)
    assert (tally.wrong, tally.lost, tally.silent) == (0, 0, 0) and tally.restores >= len(SHORT) - 1


@pytest.mark.parametrize("faults", nightly_but([4], [4, 8]))
def test_job_of_two_nodes_with_two_ranks_each_survives_faults(tmp_path, faults):
    """An agent that serves several ranks."""
    settings = Settings(BUILD, nodes=2, ranks_per_node=2, megabytes=2)
    endure(tmp_path, settings, 2, SHORT, lambda struck, _: len(struck) == faults)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    ground = Ground(SETTINGS, tmp_path_factory.mktemp("ground"))
    yield ground
    ground.close()


@pytest.mark.parametrize("kind", nightly_but(EACH_CHANGE, LONG))
def test_job_restores_the_commit_after_a_fault(ground, kind):
    ground.endure(kind)


# ---- How silence is counted ----


class Bench:
    """A watch over one node, with a clock and a health that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.state, self.allowed_s = PROTECTED, 3.0
        self.commits = Commits(lambda: self.now)
        self.watch = Watch(lambda _: Answer(self.state, self.allowed_s, {}), lambda: ["n0"], self.commits)
        self.commits.begin()

    def look_after(self, seconds: float) -> int:
        self.now += seconds
        self.watch.look("n0")
        return self.watch.silent

    def commit(self, iteration: int) -> None:
        self.commits.take("snapshot", {"iteration": iteration})
        self.commits.take("committed", {"iteration": iteration})


def test_protected_verdict_long_after_the_last_commit_counts_as_silent():
    bench = Bench()
    bench.commit(1)
    assert bench.look_after(bench.allowed_s + SLACK_S) == 0
    assert bench.look_after(0.1) == 1
    assert bench.look_after(1) == 2
    assert len(bench.watch.faults()) == 2 and "iteration 1 was the last commit 5.1 s ago" in bench.watch.faults()[0]
    bench.commit(2)
    assert bench.look_after(1) == 2


@pytest.mark.parametrize("state", [DEGRADED, NOT_PROTECTED])
def test_reported_problem_does_not_count_as_silent(state):
    bench = Bench()
    bench.commit(1)
    bench.state = state
    assert bench.look_after(100) == 0 and bench.watch.asked_when_stopped == 1 and not bench.watch.faults()


def test_job_without_any_commit_counts_as_stopped():
    bench = Bench()
    assert bench.look_after(100) == 0
    bench.commits.take("snapshot", {"iteration": 0})
    assert bench.look_after(100) == 1


def test_ended_job_does_not_count_as_silent():
    bench = Bench()
    bench.commit(1)
    bench.commits.end()
    bench.commit(2)
    assert bench.look_after(100) == 0


def test_excessive_allowance_of_health_counts_as_silent():
    bench = Bench()
    bench.allowed_s = 1000.0
    for iteration in range(10):
        bench.commit(iteration)
        bench.now += 0.1
    assert bench.look_after(30) == 1


def test_allowance_for_a_slow_pace_is_accepted():
    bench = Bench()
    bench.allowed_s = 100.0
    for iteration in range(10):
        bench.commit(iteration)
        bench.now += 20
    assert bench.look_after(30) == 0


def test_health_that_is_never_protected_is_found():
    bench = Bench()
    bench.state = NOT_PROTECTED
    bench.watch.ask = lambda _: bench.commit(int(bench.now)) or Answer(NOT_PROTECTED, 3.0, {})
    for _ in range(30):
        bench.look_after(1)
    (fault,) = bench.watch.faults()
    assert "20 times in a row" in fault


@pytest.mark.parametrize(("status", "said"), [
    (0, '{"state": "not protected", "allowed_ms": 3000}'),
    (2, '{"state": "fine", "allowed_ms": 3000}'),
    (0, "protected"),
    (0, ""),
])
def test_unreadable_health_is_a_fault(status, said):
    with pytest.raises(ValueError, match=f"exit status {status}"):
        Answer.of(status, said, "")
