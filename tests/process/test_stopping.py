"""What was ended on purpose stays so, and whoever is left behind is told what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
from ckptengine import Stage, Status
from conftest import BUILD, refused, together
from processes import build_file

DEADLINE_S = 30


def commit(engine, iteration: int) -> None:
    ticket = engine.snapshot(iteration)
    assert ticket.taken, ticket.message
    assert engine.before_update()
    assert ticket.wait(Stage.COMMITTED, DEADLINE_S * 1000), ticket.message


def snapshots_until(engine, iteration: int, fits):
    """Goes on training until a ticket `fits`; that ticket."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        ticket = engine.snapshot(iteration)
        engine.before_update()
        if fits(ticket):
            return ticket
        iteration += 1
        time.sleep(0.01)
    pytest.fail(f"not within {DEADLINE_S} s; the last ticket: {ticket!r} {ticket.message}")


def begin(cluster, content: bytes = b"precious", **options):
    engine = cluster.engine(copies=1, **options)
    state = bytearray(content)
    engine.register("state", state)
    engine.restore()
    commit(engine, 0)
    return engine


def stop(cluster) -> None:
    words = [build_file(BUILD, "ckptctl"), "stop", f"job={cluster.job}", f"arena_dir={cluster.arena}"]
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    assert not cluster.agents()


def assert_stored(cluster, iteration: int, content: bytes = b"precious") -> None:
    with cluster.engine(copies=1) as engine:
        state = bytearray(len(content))
        engine.register("state", state)
        start = engine.restore()
        assert start.iteration == iteration and state == content


def test_trainers_start_no_agent_after_theirs_was_stopped_on_purpose(cluster):
    engine = begin(cluster)
    stop(cluster)
    ticket = snapshots_until(engine, 1, lambda ticket: "on purpose" in ticket.message)
    assert ticket.status is Status.NO_AGENT and "start ckptd" in ticket.message
    assert not cluster.agents()
    words = [f"{key}={value}" for key, value in cluster.options(copies=1).items()]
    subprocess.run([build_file(BUILD, "ckptd"), "--detach", *words], check=True, capture_output=True, timeout=60)
    ticket = snapshots_until(engine, ticket.iteration + 1, lambda ticket: ticket.taken)
    assert ticket.wait(Stage.COMMITTED, DEADLINE_S * 1000), ticket.message


def test_a_new_trainer_starts_the_agent_that_was_stopped(cluster):
    begin(cluster).close()
    stop(cluster)
    assert_stored(cluster, 0)


def test_remaining_rank_is_told_to_restart_with_the_others(cluster):
    first, second = together(*(lambda rank=rank: cluster.engine(rank, 2, node="n0", copies=1) for rank in (0, 1)))
    for engine in (first, second):
        engine.register("state", bytearray(8))
    together(first.restore, second.restore)
    together(lambda: commit(first, 0), lambda: commit(second, 0))
    second.close()
    cluster.engine(1, 2, node="n0", copies=1)
    ticket = snapshots_until(first, 1, lambda ticket: ticket.status is Status.SUPERSEDED)
    assert "incarnation 2" in ticket.message and "restart the rank" in ticket.message
    status, message = first._wait(ticket.iteration + 1, Stage.COMMITTED, 0)
    assert status is Status.SUPERSEDED and "restart the rank" in message


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced_by_a_file"])
def test_coordination_directory_removed_during_a_run_is_reported_without_loss(cluster, replaced):
    engine = begin(cluster, restore_timeout_ms=2000)
    gone = cluster.coordination.with_name(cluster.coordination.name + "-gone")
    os.rename(cluster.coordination, gone)
    if replaced:
        cluster.coordination.write_text("in the way")
    shutil.rmtree(gone, ignore_errors=True)  # agents may still be writing there
    for iteration in range(1, 4):
        commit(engine, iteration)
    engine.close()
    engine = cluster.engine(copies=1, restore_timeout_ms=2000)
    engine.register("state", bytearray(8))
    if replaced:
        status, message = refused(engine.restore)
        assert status is Status.TIMEOUT and "coordination" in message, message
    else:
        assert engine.restore().iteration == 3  # the agent has written the records again
    engine.close()
    log = (cluster.arena / cluster.job / "n0" / "ckptd.log").read_text()
    assert log.count("keeps trying") <= 4, log
    stop(cluster)
    if replaced:
        cluster.coordination.unlink()
    assert_stored(cluster, 3)


def test_job_continues_from_memory_after_unusable_records_are_removed(cluster):
    begin(cluster).close()
    stop(cluster)
    assignments = [file for file in cluster.coordination.rglob("*") if file.is_file() and "assignments" in str(file)]
    assert assignments
    for file in assignments:
        file.unlink()
    with cluster.engine(copies=1, restore_timeout_ms=1000) as engine:
        engine.register("state", bytearray(8))
        status, _ = refused(engine.restore)
        assert status is Status.TIMEOUT
        words = [build_file(BUILD, "ckptctl"), "status", f"job={cluster.job}", f"arena_dir={cluster.arena}"]

        deadline = time.monotonic() + 30
        told = ""
        while "ckptctl gc --records" not in told:
            assert time.monotonic() < deadline, told
            told = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60).stdout
    stop(cluster)
    words = [build_file(BUILD, "ckptctl"), "gc", "--records", f"job={cluster.job}", f"arena_dir={cluster.arena}",
             f"coordination={cluster.coordination}"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "its memory stays" in done.stdout, done
    assert_stored(cluster, 0)
