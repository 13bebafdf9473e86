"""What the launcher of node 0 tells the others to do. No processes, no connections."""

from __future__ import annotations

import signal

import pytest
from ckptengine.run import _loop
from ckptengine.run._halts import Question
from ckptengine.run._job import Job
from ckptengine.run._loop import Timer
from ckptengine.run._restarts import Failure
from ckptengine.run._settings import parse

NODES, RANKS = 3, 2


class Peer:
    """A launcher: what the job has told it."""

    def __init__(self) -> None:
        self.told: list[dict] = []

    def send(self, message: dict) -> None:
        self.told.append(message)

    def take(self) -> list[tuple]:
        """What it was told since the last call, without sentences for people."""
        told, self.told = self.told, []
        return [(one["do"], *([one["rank"]] if "rank" in one else [])) for one in told if one["do"] != "told"]


class Loop:
    """Timers that a test lets expire."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Timer]] = []

    def after(self, delay_s: float, call) -> Timer:
        self.timers.append((delay_s, Timer(call)))
        return self.timers[-1][1]

    def expire(self, delay_s: float) -> None:
        for _, timer in [each for each in self.timers if each[0] == delay_s]:
            if timer.call is not None:
                timer.call()


class Cluster:
    def __init__(self, *options: str) -> None:
        words = [
            "--nnodes",
            str(NODES),
            "--nproc-per-node",
            str(RANKS),
            "--rdzv-endpoint",
            "h:1",
            "--node-rank",
            "0",
            "-m",
        ]
        self.loop, self.ports = Loop(), iter(range(100, 200))
        prepare = lambda then: then({"MASTER_PORT": str(next(self.ports))})  # noqa: E731
        self.job = Job(self.loop, parse([*words, *options, "train.py"]), prepare, lambda text: None)
        self.peers = [self.join(number) for number in range(NODES)]

    def join(self, number: int | None) -> Peer:
        peer = Peer()
        self.job.heard(peer, {"say": "hello", "node_rank": number, "shape": [NODES, RANKS], "name": f"host {number}"})
        return peer

    def fail(self, peer: Peer, rank: int, how: str = "was ended by SIGKILL", status: int = -signal.SIGKILL) -> None:
        self.job.heard(peer, {"say": "failed", "failure": Failure(rank, how, status).to_message()})

    def take(self) -> list[list[tuple]]:
        return [peer.take() for peer in self.peers]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster()
    assert cluster.take() == [[("start",)]] * NODES
    return cluster


def test_only_the_failed_ranks_node_is_notified(cluster):
    cluster.fail(cluster.peers[1], 3)
    assert cluster.take() == [[], [("restart", 3)], []]


def test_launcher_reports_only_its_own_ranks(cluster):
    cluster.fail(cluster.peers[2], 3)
    cluster.fail(Peer(), 3)
    assert cluster.take() == [[], [], []]


def test_replaced_node_is_ignored(cluster):
    old = cluster.peers[1]
    cluster.job.lost(old, "has ended")
    cluster.peers[1] = cluster.join(1)
    cluster.take()
    cluster.fail(old, 3)
    cluster.job.lost(old, "has ended")
    assert cluster.take() == [[], [], []]


def test_ranks_that_fail_while_a_node_is_missing_wait_for_it_and_are_not_counted(cluster):
    cluster.job.lost(cluster.peers[1], "has ended")
    for _ in range(5):  # more often than --max-restarts, and in the same way
        cluster.fail(cluster.peers[0], 0, "ended with status 1", 1)
    assert cluster.take() == [[], [], []]
    cluster.peers[1] = cluster.join(1)
    assert cluster.take()[0][0] == ("restart", 0) and cluster.peers[0].take() == []
    cluster.fail(cluster.peers[0], 0, "ended with status 1", 1)
    assert cluster.take()[0] == [("restart", 0)]


def test_ranks_that_cannot_restart_alone_start_with_all_others(cluster):
    cluster.fail(cluster.peers[0], 0)
    assert cluster.take()[0] == [("restart", 0)]
    for peer, rank in ((cluster.peers[1], 2), (cluster.peers[2], 4), (cluster.peers[1], 3)):
        cluster.fail(peer, rank, "ended with status 75", 75)
    assert cluster.take() == [[("clear",)]] * NODES
    for peer in cluster.peers:
        cluster.job.heard(peer, {"say": "cleared"})
    assert [peer.told[-1]["common"] for peer in cluster.peers] == [{"MASTER_PORT": "101"}] * NODES
    assert cluster.peers[0].told[-1]["restarts"] == {"0": 2, "1": 1}
    assert cluster.take() == [[("start",)]] * NODES


def test_all_ranks_restart_after_a_node_loss_before_the_first_checkpoint(cluster):
    cluster.job.lost(cluster.peers[1], "has ended")
    cluster.fail(cluster.peers[2], 4)  # held
    cluster.fail(cluster.peers[0], 0, "ended with status 75", 75)
    assert cluster.take() == [[("clear",)], [], [("clear",)]]
    cluster.peers[1] = cluster.join(1)
    for peer in (cluster.peers[0], cluster.peers[2]):
        assert peer.take() == []
        cluster.job.heard(peer, {"say": "cleared"})
    assert cluster.take() == [[("start",)]] * NODES


def test_job_waits_for_a_node_lost_while_all_ranks_end(cluster):
    cluster.fail(cluster.peers[0], 0, "ended with status 75", 75)
    cluster.take()
    cluster.job.lost(cluster.peers[1], "has ended")
    for peer in (cluster.peers[0], cluster.peers[2]):
        cluster.job.heard(peer, {"say": "cleared"})
    assert cluster.take() == [[], [], []]
    cluster.peers[1] = cluster.join(None)
    assert cluster.take() == [[("start",)]] * NODES


def test_with_two_nodes_missing_a_rank_waits_for_both(cluster):
    cluster.job.lost(cluster.peers[1], "has ended")
    cluster.job.lost(cluster.peers[2], "has ended")
    cluster.fail(cluster.peers[0], 0)
    cluster.peers[2] = cluster.join(2)
    assert cluster.take() == [[], [], [("start",)]]
    cluster.peers[1] = cluster.join(None)
    assert cluster.take() == [[("restart", 0)], [("start",)], []]


def test_job_ends_everywhere_if_a_lost_launcher_is_not_replaced(cluster):
    cluster.job.lost(cluster.peers[1], "has ended")
    cluster.loop.expire(300)
    assert cluster.take() == [[("end",)], [], [("end",)]]


def test_job_continues_if_a_lost_launcher_is_replaced_in_time(cluster):
    cluster.job.lost(cluster.peers[1], "has ended")
    cluster.peers[1] = cluster.join(1)
    cluster.take()
    cluster.loop.expire(300)
    assert cluster.take() == [[], [], []]


def test_the_job_ends_if_not_all_nodes_join_in_time():
    late = Cluster("--join-timeout", "7")
    late.take()
    late.loop.expire(7)
    assert late.take() == [[], [], []]  # all had joined
    alone = Loop()
    waiting = Job(alone, late.job._settings, lambda then: None, lambda text: None)
    peer = Peer()
    waiting.heard(peer, {"say": "hello", "node_rank": 1, "shape": [NODES, RANKS], "name": "host"})
    alone.expire(7)
    assert peer.told[-1]["do"] == "end" and "no launcher of node 0, 2 has joined within 7 s" in peer.told[-1]["text"]


def test_job_is_finished_once_all_nodes_are_done_even_if_one_has_left(cluster):
    cluster.job.heard(cluster.peers[1], {"say": "done"})
    cluster.job.lost(cluster.peers[1], "has ended")
    cluster.job.heard(cluster.peers[0], {"say": "done"})
    cluster.job.heard(cluster.peers[2], {"say": "done"})
    assert cluster.take()[0] == [("finished",)]


def test_restart_all_ends_every_rank_first_and_uses_a_new_store():
    cluster = Cluster("--restart", "all")
    assert cluster.peers[0].told[-1]["common"] == {"MASTER_PORT": "100"}
    cluster.take()
    cluster.fail(cluster.peers[1], 3)
    assert cluster.take() == [[("clear",)]] * NODES
    for _ in range(5):  # in consequence
        cluster.fail(cluster.peers[0], 0)
    for peer in cluster.peers[:2]:
        cluster.job.heard(peer, {"say": "cleared"})
    assert cluster.take() == [[], [], []]
    cluster.job.heard(cluster.peers[2], {"say": "cleared"})
    for number, peer in enumerate(cluster.peers):
        assert peer.told == [{
            "do": "start", "node_rank": number, "common": {"MASTER_PORT": "101"},
            "restarts": {str(rank): 1 for rank in (2 * number, 2 * number + 1)}}]  # fmt: skip


def test_restart_all_needs_a_finished_node_again():
    cluster = Cluster("--restart", "all")
    cluster.job.heard(cluster.peers[2], {"say": "done"})
    cluster.job.lost(cluster.peers[2], "has ended")
    cluster.take()
    cluster.fail(cluster.peers[1], 3)
    for peer in cluster.peers[:2]:
        cluster.job.heard(peer, {"say": "cleared"})
    cluster.take()
    cluster.peers[2] = cluster.join(None)
    assert cluster.take() == [[("start",)]] * NODES


def test_restart_all_waits_for_a_lost_node():
    cluster = Cluster("--restart", "all")
    cluster.take()
    cluster.job.lost(cluster.peers[2], "has ended")
    assert cluster.take() == [[("clear",)], [("clear",)], []]
    for peer in cluster.peers[:2]:
        cluster.job.heard(peer, {"say": "cleared"})
    assert cluster.take() == [[], [], []]
    cluster.peers[2] = cluster.join(None)
    assert cluster.take() == [[("start",)]] * NODES


def test_ckptctl_that_cannot_be_started_gives_no_answer(tmp_path):
    loop, answers = _loop.Loop(), []
    Question(loop, str(tmp_path), answers.append)  # a folder
    loop.turn(0)
    assert answers == [[]]
