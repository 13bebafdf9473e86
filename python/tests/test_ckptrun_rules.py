"""What ckptrun decides without looking at anything: when a rank starts anew, and who is left behind after a halt."""

from __future__ import annotations

import signal

import pytest
from ckptengine.run._halts import Halts, agents_of, reached_iteration
from ckptengine.run._restarts import Failure, Restart, Restarts, Stop, end_of_trace

TRACE = "Traceback (most recent call last):\n  File ...\nValueError: no luck"


def killed(rank: int = 1) -> Failure:
    return Failure(rank, "was ended by SIGKILL", -signal.SIGKILL)


def raised(iteration: int | None, trace: str = TRACE) -> Failure:
    return Failure(1, "ended with status 1", 1, trace, iteration)


# ---- restarts ----


def test_first_restart_is_immediate_and_later_ones_are_delayed_more_and_more():
    restarts = Restarts(max_restarts=8, window_s=3600)
    delays = [restarts.judge(killed(), now_s=10.0 * i) for i in range(8)]
    assert [each.delay_s for each in delays] == [0, 1, 2, 4, 8, 16, 30, 30]


def test_rank_that_has_run_for_a_while_restarts_immediately():
    restarts = Restarts(max_restarts=8, window_s=3600)
    assert [restarts.judge(killed(), at) for at in (0, 1, 200)] == [Restart(0), Restart(1), Restart(0)]


def test_only_failures_of_the_same_rank_within_the_window_count():
    restarts = Restarts(max_restarts=1, window_s=100)
    assert restarts.judge(killed(), 0) == Restart(0)
    assert restarts.judge(killed(rank=2), 2) == Restart(0)
    assert restarts.judge(killed(), 101) == Restart(0)
    stop = restarts.judge(killed(), 102)
    assert isinstance(stop, Stop)
    assert stop.text.startswith("rank 1 has failed 2 times within 100 s")
    assert "The first failure: rank 2 was ended by SIGKILL" in stop.text


def test_with_no_restarts_allowed_the_first_failure_ends_the_job_with_its_trace():
    stop = Restarts(0, 3600).judge(raised(7), 0)
    assert isinstance(stop, Stop) and stop.text.startswith("rank 1 ended with status 1") and stop.text.endswith(TRACE)


@pytest.mark.parametrize("before, after", [(None, None), (57, 57), (57, 56)])
def test_the_same_failure_without_progress_ends_the_job(before, after):
    restarts = Restarts(max_restarts=8, window_s=3600)
    assert isinstance(restarts.judge(raised(before), 0), Restart)
    stop = restarts.judge(raised(after), 1)
    assert isinstance(stop, Stop) and "has failed twice in the same way" in stop.text and stop.text.endswith(TRACE)


@pytest.mark.parametrize(
    "second",
    [
        raised(58),
        raised(None),  # nobody can tell whether there was progress
        raised(57, TRACE.replace("no luck", "something else")),
        Failure(1, "ended with status 2", 2, TRACE, 57),
        killed(),
    ],
)
def test_a_failure_that_differs_or_comes_after_progress_does_not_end_the_job(second):
    restarts = Restarts(max_restarts=8, window_s=3600)
    restarts.judge(raised(57), 0)
    assert isinstance(restarts.judge(second, 1), Restart)


def test_job_that_ends_names_other_recent_failures():
    restarts = Restarts(max_restarts=8, window_s=3600)
    restarts.judge(killed(rank=3), 0)
    restarts.judge(raised(57), 1)
    restarts.judge(killed(rank=2), 2)
    stop = restarts.judge(raised(57), 3)
    assert isinstance(stop, Stop) and "without progress (meanwhile rank 2 was ended by SIGKILL). rank 1" in stop.text


def test_numbers_in_a_message_do_not_make_two_failures_differ():
    restarts = Restarts(max_restarts=8, window_s=3600)
    restarts.judge(raised(57, "ValueError: object at 0x7f12ab, port 4711"), 0)
    assert isinstance(restarts.judge(raised(57, "ValueError: object at 0x7f34cd, port 815"), 1), Stop)


def test_rank_that_is_killed_from_outside_twice_restarts():
    restarts = Restarts(max_restarts=8, window_s=3600)
    restarts.judge(killed(), 0)
    assert isinstance(restarts.judge(killed(), 1), Restart)


def test_crashes_at_the_same_place_count_as_the_same_failure():
    restarts = Restarts(max_restarts=8, window_s=3600)
    crash = Failure(1, "was ended by SIGSEGV", -signal.SIGSEGV, "", 57)
    restarts.judge(crash, 0)
    assert isinstance(restarts.judge(crash, 1), Stop)


def test_trace_begins_with_the_root_causes_traceback():
    chain = "\n".join([
        "loss 1.0", "Traceback (most recent call last):", "  a", "OSError: old", "warning", "Traceback (m):", "  b",
        "KeyError: 1", "", "During handling of the above exception, another exception occurred:", "", "Traceback (m):",
        "  c", "ValueError: 2"])  # fmt: skip
    assert end_of_trace(chain).splitlines()[0] == "Traceback (m):"
    assert "KeyError: 1" in end_of_trace(chain) and "OSError" not in end_of_trace(chain)
    assert end_of_trace("no memory\n") == "no memory"


# ---- halts ----


def agent(*ranks: tuple[int, int, int], now: int = 1, halted: int | None = None, over: bool = True) -> dict:
    """`ranks` are (rank, process, incarnation); the job is in incarnation `now`."""
    told = [{"rank": rank, "pid": pid, "incarnation": one, "restoring": False} for rank, pid, one in ranks]
    halt = None if halted is None else {"incarnation": halted, "over": over, "culprits": [0]}
    return {"job": "j", "node": "n", "ranks": told, "halt": halt, "incarnation": now}


def nobody_is_stopped(pid: int) -> bool:
    return False


def test_no_rank_is_left_behind_before_the_halt_is_over():
    halts = Halts(grace_s=5)
    running = agent((0, 100, 1), (1, 101, 1), halted=1, over=False)
    assert halts.left_behind([running], {0: 100, 1: 101}, lambda pid: True, 0) == {}
    assert halts.left_behind([running], {0: 100, 1: 101}, lambda pid: True, 1000) == {}


def test_stopped_rank_is_left_behind_after_the_halt_and_others_after_the_grace_period():
    halts, ours = Halts(grace_s=5), {0: 100, 1: 101}
    over = agent((0, 100, 1), (1, 101, 1), halted=1)
    assert list(halts.left_behind([over], ours, lambda pid: pid == 101, 0)) == [1]
    assert halts.left_behind([over], ours, nobody_is_stopped, 4.9) == {}
    assert list(halts.left_behind([over], ours, nobody_is_stopped, 5)) == [0]
    assert halts.left_behind([over], ours, nobody_is_stopped, 100) == {}


def test_rank_is_left_behind_even_if_the_others_rejoined_before_the_first_poll():
    halts, ours = Halts(grace_s=5), {0: 100, 1: 101}
    later = agent((0, 100, 2), (1, 101, 1), now=2)
    assert halts.left_behind([later], ours, nobody_is_stopped, 0) == {}
    assert list(halts.left_behind([later], ours, nobody_is_stopped, 5)) == [1]


def test_ranks_that_have_rejoined_or_ended_are_not_left_behind():
    halts, over = Halts(grace_s=5), agent((0, 100, 1), (1, 101, 1), (2, 102, 1), halted=1)
    halts.left_behind([over], {0: 100, 1: 101, 2: 102}, nobody_is_stopped, 0)
    later = agent((0, 100, 2), (1, 201, 2), (2, 102, 1), now=2)  # rank 1 is a new process
    assert list(halts.left_behind([later], {0: 100, 1: 201, 2: 102}, nobody_is_stopped, 6)) == [2]


def test_a_rank_that_joins_is_not_left_behind():
    halts = Halts(grace_s=5)
    joins, restores = agent((0, 100, 0), now=2), agent((0, 100, 1), now=2)
    restores["ranks"][0]["restoring"] = True
    for status in (joins, restores):
        assert halts.left_behind([status], {0: 100}, nobody_is_stopped, 0) == {}
        assert halts.left_behind([status], {0: 100}, nobody_is_stopped, 9) == {}


def test_a_rank_that_leaves_its_old_session_and_never_comes_back_is_left_behind():
    halts = Halts(grace_s=5)
    halts.left_behind([agent((0, 100, 1), halted=1)], {0: 100}, nobody_is_stopped, 0)
    assert list(halts.left_behind([agent(now=2)], {0: 100}, nobody_is_stopped, 5)) == [0]


def test_process_unknown_to_the_agent_is_not_left_behind():
    halts = Halts(grace_s=5)
    over = agent((0, 100, 1), (1, 101, 1), halted=1)
    halts.left_behind([over], {0: 100, 1: 201}, nobody_is_stopped, 0)
    assert list(halts.left_behind([over], {0: 100, 1: 201}, nobody_is_stopped, 6)) == [0]


def test_each_halt_has_its_own_grace_period():
    halts = Halts(grace_s=5)
    halts.left_behind([agent((0, 100, 1), halted=1)], {0: 100}, nobody_is_stopped, 0)
    halts.left_behind([agent((0, 100, 2), now=2)], {0: 100}, nobody_is_stopped, 3)
    again = agent((0, 100, 2), now=2, halted=2)
    assert halts.left_behind([again], {0: 100}, nobody_is_stopped, 10) == {}
    assert list(halts.left_behind([again], {0: 100}, nobody_is_stopped, 15)) == [0]


def test_ranks_of_one_launcher_may_have_several_agents():
    halts = Halts(grace_s=5)
    agents = [agent((0, 100, 2), now=2), agent((1, 101, 1), now=2)]
    assert list(halts.left_behind(agents, {0: 100, 1: 101}, lambda pid: True, 0)) == [1]


def test_agents_are_found_by_the_processes_of_their_ranks():
    other, own, second = agent((0, 7, 1)), agent((0, 8, 1)), agent((1, 9, 1))
    assert agents_of([other, own, second], {0: 8, 1: 9}) == [own, second]
    assert agents_of([other, own], {0: 10}) == []


def test_progress_is_the_newest_iteration_of_commits_and_ranks():
    def status(committed: int | None, *attempted: int) -> dict:
        return {"committed": committed and {"iteration": committed}, "ranks": [{"attempted": one} for one in attempted]}

    assert reached_iteration([status(None), status(7, -1), status(5, 8, 9)]) == 9
    assert reached_iteration([status(7, 6)]) == 7
    assert reached_iteration([status(None, -1)]) is None
