"""Jobs of real agents that are protected by parity: what is lost is decoded, and what cannot be is named."""

from __future__ import annotations

import itertools
import json
import subprocess
import time

import pytest
from ckptengine import Error, Status, Tier
from conftest import build_file_of, nightly_but, refused, together
from small_job import DEADLINE_S, RANKS, Job

# And how many nodes of the one group may be lost at once.
PROTECTIONS = {"xor(4)": 1, "xor(2)": 1, "rs(4,2)": 2, "rs(4,3)": 3, "copies(2)+xor(4)": 1}


def agent_status(cluster, node: str) -> dict:
    ckptctl = build_file_of("ckptctl")
    where = [f"--arena-dir={cluster.arena}", f"--coordination={cluster.coordination}"]
    answer = subprocess.run([ckptctl, "status", "--json", *where, f"--job={cluster.job}"], capture_output=True,
                            text=True, check=False, timeout=30)
    return next(agent for agent in json.loads(answer.stdout)["agents"] if agent["node"] == node)


# Each protection once, with shards of either kind.
EACH_CHANGE = [("xor(4)", False), ("xor(2)", True), ("rs(4,2)", True), ("rs(4,3)", False), ("copies(2)+xor(4)", True)]


@pytest.mark.parametrize(("protection", "shared"), nightly_but(
    EACH_CHANGE, [(protection, shared) for protection in PROTECTIONS for shared in (False, True)]))
def test_nodes_may_be_lost_repeatedly(cluster, protection, shared):
    job = Job(cluster, shared, protection=protection)
    job.start()
    job.restore()
    job.commit(0)
    for round_, nodes in enumerate([(1,), (3, 0)[: PROTECTIONS[protection]], (2,)]):
        job.lose(*nodes)
        job.start()
        job.assert_restored(round_)
        job.commit(round_ + 1)
    job.close()


def test_only_lost_pieces_are_decoded(cluster):
    job = Job(cluster, False, protection="rs(4,2)")
    job.start()
    job.restore()
    job.commit(0)
    job.lose(1, 2)
    job.start()
    starts = job.restore()
    job.assert_state(0)
    assert [start.main_tier for start in starts] == [Tier.LOCAL, Tier.DECODED, Tier.DECODED, Tier.LOCAL]
    assert [start.private_tier for start in starts] == [Tier.LOCAL, Tier.DECODED, Tier.DECODED, Tier.LOCAL]


@pytest.mark.parametrize(("protection", "shared", "nodes"), [
    ("xor(4)", True, (1, 3)), ("rs(4,2)", False, (0, 1, 3)),
    *(pytest.param(*case, marks=pytest.mark.nightly) for case in (
        ("xor(4)", False, (0, 1)), ("xor(2)", False, (0, 2)))),
])
def test_loss_beyond_the_tolerance_is_reported(cluster, protection, shared, nodes):
    job = Job(cluster, shared, protection=protection)
    job.start()
    job.restore()
    job.commit(0)
    job.lose(*nodes)
    job.start()
    results = together(*(lambda engine=engine: refused(engine.restore) for engine in job.engines))
    for status, message in results:
        assert status is Status.LOST and "beyond tolerance" in message, message


def test_a_node_of_each_group_may_be_lost(cluster):
    """xor(2) on four nodes makes the groups {0, 2} and {1, 3}."""
    job = Job(cluster, False, protection="xor(2)")
    job.start()
    job.restore()
    job.commit(0)
    job.lose(0, 1)
    job.start()
    job.assert_restored(0)


def damage(cluster, node: str) -> None:
    """A byte of every piece that the node holds, beneath its agent."""
    for segment in agent_status(cluster, node)["segments"]:
        with open(segment["file"], "r+b") as file:
            size = file.seek(0, 2)
            for at in range(200_000, size, 60_000):
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 0x10]))


@pytest.mark.parametrize("rounds", nightly_but([4], [4, 10]))
def test_rounds_of_losses_and_damage_each_with_others(cluster, rounds):
    job = Job(cluster, False, protection="rs(4,2)")
    job.start()
    job.restore()
    job.commit(0)
    for round_ in range(rounds):
        first, second = round_ % RANKS, (round_ * 3 + 1) % RANKS
        job.close()
        if round_ % 2:
            damage(cluster, f"n{second}")
        job.lose(first)
        job.start()
        job.assert_restored(round_)
        job.commit(round_ + 1)


def test_status_reports_how_much_protection_there_is(cluster):
    job = Job(cluster, False, protection="rs:4,2")
    job.start()
    job.restore()
    job.commit(0)
    status = agent_status(cluster, "n1")
    assert (status["protection"], status["parity"], status["copies"]) == ("rs(4,2)", 2, 1)
    parity = [segment for segment in status["segments"] if segment["shard"].startswith("parity.")]
    assert len(parity) == 2, "one for main shards, one for private ones"
    assert all(segment["kind"] == "held" for segment in parity)
    shards = {segment["shard"] for segment in status["segments"]}
    assert shards - {segment["shard"] for segment in parity} == {"rank1", "rank1.private"}, "and nobody's copy"
    words = subprocess.run(
        [build_file_of("ckptctl"), "status", f"--arena-dir={cluster.arena}", f"--coordination={cluster.coordination}"],
        capture_output=True, text=True, check=False, timeout=30).stdout
    assert "parity for 2 of 2 losses in a group" in words


@pytest.mark.parametrize("protection", ["xor", "xor(1)", "rs(4,4)", "copies(0)", "copies(2)+copies(3)", "raid6"])
def test_unknown_protection_is_refused(cluster, protection):
    status, message = refused(cluster.engine, protection=protection)
    assert status is Status.INVALID and "protection" in message and "xor(n)" in message


@pytest.mark.parametrize("shard", ["parity.x", "parity.0123456789abcdef.0of4"])
def test_shard_names_like_parity_are_refused(cluster, shard):
    status, message = refused(cluster.engine, shard=shard)
    assert status is Status.INVALID and "parity." in message


def test_memory_for_parity_is_reserved_before_the_first_snapshot(cluster):
    """Groups are as large as there are nodes, however large they may be: parity takes a third of the state here."""
    job = Job(cluster, False, protection="xor(16)", arena_bytes=int(1.77 * 2**20))
    job.start()
    job.restore()
    errors = together(*(lambda engine=engine: snapshot_error(engine) for engine in job.engines))
    assert any("arena_bytes" in error for error in errors), errors


def snapshot_error(engine) -> str:
    """What the first snapshot says that is not skipped while memory is reserved."""
    deadline = time.monotonic() + DEADLINE_S
    for iteration in itertools.count():
        try:
            ticket = engine.snapshot(iteration)
        except Error as error:
            assert error.status is Status.NO_SPACE
            return str(error)
        if ticket.taken or ticket.status is not Status.SKIPPED:
            return ticket.message
        assert time.monotonic() < deadline, ticket.message
