"""Bad input and bad days: each gives one clear sentence and a status, nothing stored is lost, and nothing hangs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time

import pytest
from chaos_settings import OPTIONS
from ckptengine import Capture, Stage, Status
from conftest import BUILD, refused, together
from processes import build_file, kill_process

COMMIT_MS = 20_000


def commit(engine, iteration: int) -> None:
    ticket = engine.snapshot(iteration)
    assert ticket.taken, ticket.message
    assert engine.before_update()
    assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message


def store_one(cluster, content: bytes = b"precious", **options) -> None:
    """An incarnation of one rank that commits iteration 0 and ends."""
    with cluster.engine(**options) as engine:
        engine.register("state", bytearray(content))
        engine.restore()
        commit(engine, 0)


def assert_stored(cluster, content: bytes = b"precious", **options) -> None:
    with cluster.engine(**options) as engine:
        state = bytearray(len(content))
        engine.register("state", state)
        start = engine.restore()
        assert start.found and bytes(state) == content


# ---- Memory ----


def test_arena_beyond_its_budget_is_refused_and_training_continues(cluster):
    with cluster.engine(copies=1, arena_bytes="2MiB") as engine:
        engine.register("state", bytearray(4 << 20))
        engine.restore()
        for iteration in range(3):
            ticket = engine.snapshot(iteration)
            assert ticket.status is Status.NO_SPACE and "arena_bytes" in ticket.message, ticket.message
            engine.before_update()
    assert not list(cluster.arena.glob("*/*/*.segment"))


# ---- Agents ----


def test_engine_reports_a_missing_agent_it_may_not_start(cluster):
    status, message = refused(cluster.engine, agent="attach")
    assert status is Status.NO_AGENT and "agent" in message


def test_agent_of_another_job_is_not_used(cluster):
    store_one(cluster, copies=1)
    (cluster.arena / "other").symlink_to(cluster.arena / cluster.job)
    status, message = refused(cluster.engine, job="other", agent="attach")
    assert status is Status.NO_AGENT and cluster.job in message
    assert_stored(cluster, copies=1)


def test_an_agent_that_cannot_be_run_is_named(cluster):
    status, message = refused(cluster.engine, ckptd="/nowhere/ckptd")
    assert status is Status.NO_AGENT and "/nowhere/ckptd" in message


def test_stale_arena_of_a_dead_run_is_reused(cluster):
    store_one(cluster, copies=1)
    cluster.kill_agents()
    assert list(cluster.arena.glob("*/*/agent.sock"))
    assert_stored(cluster, copies=1)


def test_damaged_pieces_of_a_stale_arena_are_ignored(cluster):
    store_one(cluster, copies=1)
    cluster.kill_agents()
    (folder,) = cluster.arena.glob("*/n0")
    (folder / "999.segment").write_bytes(b"torn")
    (folder / "rank-7.control").write_bytes(b"")
    assert_stored(cluster, copies=1)


def test_arena_is_restored_after_its_coordination_directory_is_gone(cluster):
    """Somebody cleaned /tmp between two runs."""
    store_one(cluster, copies=1)
    cluster.kill_agents()
    subprocess.run(["rm", "-r", cluster.coordination], check=True)
    assert_stored(cluster, copies=1)


def test_peer_that_never_answers_blocks_no_other(cluster):
    """The other node's agent is stopped: training goes on, a restore ends in time, and afterwards all is well."""
    def ranks():
        return together(*(lambda rank=rank: cluster.engine(rank, 2, restore_timeout_ms=3000) for rank in (0, 1)))

    def stop(sig):
        for pid in cluster.agents("n1"):
            kill_process(pid, sig)

    engines = ranks()
    states = [bytearray(b"state of rank 0!"), bytearray(b"state of rank 1!")]
    for engine, state in zip(engines, states, strict=True):
        engine.register("state", state)
    together(*(engine.restore for engine in engines))
    together(*(lambda engine=engine: commit(engine, 0) for engine in engines))

    stop(signal.SIGSTOP)
    begin = time.monotonic()
    for iteration in range(1, 21):
        engines[0].snapshot(iteration)
        engines[0].before_update()
    assert time.monotonic() - begin < 5
    cluster.engines.clear()
    engines[0].close()
    again = cluster.engine(0, 2, restore_timeout_ms=3000)
    again.register("state", bytearray(16))
    status, message = refused(again.restore)
    assert status is Status.TIMEOUT and "did not end in time" in message, message
    # Who leads the job is a matter of which agent came first.
    assert "waiting for ranks 1" in message or "waiting for nodes n1" in message or "leads the job" in message, message
    again.close()

    stop(signal.SIGCONT)
    engines[1].close()
    cluster.engines.clear()
    engines = ranks()
    targets = [bytearray(16), bytearray(16)]
    for engine, state in zip(engines, targets, strict=True):
        engine.register("state", state)
    assert all(start.found for start in together(*(engine.restore for engine in engines)))
    assert targets == states


@pytest.mark.nightly  # the next test stops the agent in the same way
def test_agent_stopped_before_the_first_snapshot_does_not_delay_training(cluster):
    """Memory is asked of it in the background, and it does not answer until it is woken."""
    with cluster.engine(copies=1) as engine:
        engine.restore()
        (pid,) = cluster.agents("n0")
        kill_process(pid, signal.SIGSTOP)
        engine.register("state", bytearray(b"precious"))
        ticket = snapshot_until(engine, 0, lambda ticket: ticket.status is Status.TIMEOUT)
        assert "stopped" in ticket.message, ticket.message
        kill_process(pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        iteration = 100_000
        while not (ticket := engine.snapshot(iteration)).taken:
            assert time.monotonic() < deadline, ticket
            iteration += 1
            time.sleep(0.05)
        engine.before_update()
        assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
    assert_stored(cluster, copies=1)


def snapshot_until(engine, iteration: int, fits):
    """The first ticket that is as it should be, and its iteration."""
    deadline = time.monotonic() + 60
    while not fits(ticket := engine.snapshot(iteration)):
        engine.before_update()
        assert time.monotonic() < deadline, ticket
        iteration += 1
        time.sleep(0.02)
    engine.before_update()
    return ticket


def test_trainer_keeps_its_rank_during_a_long_loss_of_its_agent(cluster):
    """Its agent is stopped before the first snapshot, and when it wakes, the trainer cannot open a connection."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with cluster.engine(copies=1) as engine:
        engine.restore()
        (pid,) = cluster.agents("n0")
        kill_process(pid, signal.SIGSTOP)
        engine.register("state", bytearray(b"precious"))
        ticket = snapshot_until(engine, 0, lambda ticket: ticket.status is Status.TIMEOUT)
        assert "stopped" in ticket.message, ticket.message
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            snapshot_until(engine, 10_000, lambda ticket: "Too many open files" in ticket.message)
            os.kill(pid, signal.SIGCONT)
            time.sleep(1.5)  # three claim timeouts, for the agent to do wrong: nothing waits for this
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        ticket = snapshot_until(engine, 100_000, lambda ticket: ticket.taken)
        assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
    assert_stored(cluster, copies=1)


# ---- Ranks ----


def test_second_trainer_of_a_rank_is_refused_and_the_first_continues(cluster):
    options = OPTIONS | cluster.options(copies=1)
    environment = os.environ | {f"CKPTENGINE_{key.upper()}": str(value) for key, value in options.items()}
    program = [build_file(BUILD, "chaos_trainer"), "lockstep=1", "bytes=65536"]
    first = subprocess.Popen(program, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        def wait_for(event):
            while (said := json.loads(first.stdout.readline()))["event"] != event:
                pass
            return said

        wait_for("ready")
        status, message = refused(cluster.engine, copies=1)
        assert status is Status.CLAIMED and str(first.pid) in message
        for _ in range(3):
            first.stdin.write("go\n")
            first.stdin.flush()
        assert wait_for("committed")["iteration"] >= 0
    finally:
        first.kill()
        first.communicate()
    with cluster.engine(copies=1) as second:
        assert second.stored_layout()["found"]


def test_another_world_size_than_the_stored_one_is_refused(cluster):
    store_one(cluster, copies=1)
    engines = [cluster.engine(rank, 2, node="n0", copies=1) for rank in (0, 1)]
    for engine in engines:
        engine.register("state", bytearray(8))
    for status, message in together(*(lambda engine=engine: refused(engine.restore) for engine in engines)):
        assert status is Status.MISMATCH and "1 rank" in message and "2" in message
    cluster.close_engines()
    assert_stored(cluster, copies=1)


def test_ranks_with_different_world_sizes_are_refused(cluster):
    one = cluster.engine(0, 2, node="n0", copies=1)
    other = cluster.engine(1, 3, node="n0", copies=1, restore_timeout_ms=3000)
    for engine in (one, other):
        engine.register("state", bytearray(8))
    status, message = refused(other.restore)
    assert status is Status.MISMATCH and "3" in message and "2" in message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda engine: engine.register("weight", bytearray(9)), "weight"),
        (lambda engine: engine.register("weights", bytearray(8)), "weight"),
        (lambda engine: None, "weight"),
        (lambda engine: [engine.register(name, bytearray(8)) for name in ("weight", "extra")], "extra"),
        (lambda engine: engine.register("weight", bytearray(8), capture=Capture.SYNCHRONOUS), "weight"),
    ],
    ids=["shape", "renamed", "missing", "added", "capture"],
)
def test_different_layout_is_refused_and_the_first_tensor_named(cluster, change, named):
    with cluster.engine(copies=1) as engine:
        engine.register("bias", bytearray(b"12345678"))
        engine.register("weight", bytearray(b"abcdefgh"))
        engine.restore()
        commit(engine, 0)
    with cluster.engine(copies=1) as engine:
        engine.register("bias", bytearray(8))
        change(engine)
        status, message = refused(engine.restore)
        assert status is Status.MISMATCH and f'"{named}' in message.replace("'", '"'), message
    with cluster.engine(copies=1) as engine:
        weight = bytearray(8)
        engine.register("bias", bytearray(8))
        engine.register("weight", weight)
        assert engine.restore().found and weight == b"abcdefgh"


# ---- Calls ----


def test_snapshot_without_tensors_is_refused(cluster):
    with cluster.engine(copies=1) as engine:
        engine.restore()
        status, message = refused(engine.snapshot, 0)
        assert status is Status.INVALID and "register" in message


def test_calls_out_of_order_are_refused_and_change_nothing(cluster):
    with cluster.engine(copies=1) as engine:
        status, message = refused(engine.snapshot, 0)
        assert status is Status.INVALID and "restore" in message
        state = bytearray(b"precious")
        engine.register("state", state)
        engine.register_pointer("empty", 0, 1, [0, 4])
        for name, size, where in (("state", 8, "state"), ("null", 8, "null")):
            status, message = refused(engine.register_pointer, name, 0 if name == "null" else 4096, 1, [size])
            assert status is Status.INVALID and where in message
        engine.restore()
        commit(engine, 7)
        for iteration in (7, 3, -1):
            status, message = refused(engine.snapshot, iteration)
            assert status is Status.INVALID and str(iteration) in message
        commit(engine, 8)
    with cluster.engine(copies=1) as engine:
        layout = engine.stored_layout()
        assert layout["iteration"] == 8 and layout["main"]["empty"]["shape"] == [0, 4]
        state = bytearray(8)
        engine.register("state", state)
        engine.register_pointer("empty", 0, 1, [0, 4])
        assert engine.restore().iteration == 8 and state == b"precious"


WRONG = [("bananas", "3"), ("copies", "many"), ("arena_dir", "relative")]
SOURCES = ["code", "environment", "file"]


# An unknown variable is none of the engine's: test_environment.py.
@pytest.mark.parametrize(("source", "key", "value"), [(source, *wrong) for source in SOURCES for wrong in WRONG
                                                      if (source, wrong[0]) != ("environment", "bananas")])
def test_an_option_that_is_unknown_or_malformed_is_named_with_its_source(cluster, monkeypatch, tmp_path, source, key,
                                                                         value):
    options = cluster.options()
    options.pop(key, None)
    if source == "code":
        options[key] = value
    elif source == "environment":
        monkeypatch.setenv(f"CKPTENGINE_{key.upper()}", value)
    else:
        options["config"] = tmp_path / "options.json"
        options["config"].write_text(json.dumps({key: value}))
    monkeypatch.setattr(cluster, "options", lambda *_, **__: options)
    status, message = refused(cluster.engine)
    where = {"code": "option", "environment": f"CKPTENGINE_{key.upper()}", "file": "options.json"}[source]
    assert status is Status.INVALID and key in message.lower() and where in message
    assert not cluster.agents() and not cluster.arena.exists()
