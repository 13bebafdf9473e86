"""Somebody removes or cuts off an arena's files under a living agent, as RemoveIPC of systemd-logind does: the agent
says so, and what it holds is of use for as long as it lives."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from ckptengine import Stage
from conftest import BUILD, ROOT, build_file_of
from processes import build_file, has_ended, kill_process

DEADLINE_S = 60


def eventually(what):
    """What is asked for, once it is not false."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def ckptctl(cluster, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run([build_file_of("ckptctl"), *words, f"job={cluster.job}", f"arena_dir={cluster.arena}"],
                          check=False, capture_output=True, text=True, timeout=DEADLINE_S)


def alarm(cluster) -> str:
    asked = ckptctl(cluster, "status", "--json")
    agents = json.loads(asked.stdout).get("agents", []) if asked.stdout else []
    return agents[0]["alarm"] if agents else ""


def commit(engine, iteration: int) -> None:
    """The first snapshot from this iteration on that is committed."""
    deadline = time.monotonic() + DEADLINE_S
    while not (ticket := engine.snapshot(iteration)).taken:
        engine.before_update()
        assert time.monotonic() < deadline, ticket.message
        iteration += 1
        time.sleep(0.02)
    assert engine.before_update()
    assert ticket.wait(Stage.COMMITTED, DEADLINE_S * 1000), ticket.message


def folder(cluster) -> Path:
    return cluster.arena / cluster.job / "n0"


def test_agent_with_a_removed_arena_reports_it_and_keeps_serving(cluster):
    engine = cluster.engine(copies=1)
    engine.register("state", bytearray(b"precious"))
    engine.restore()
    commit(engine, 0)
    (pid,) = cluster.agents("n0")
    shutil.rmtree(cluster.arena)
    assert "and are lost when it ends" in eventually(lambda: alarm(cluster))
    assert "BAD" in ckptctl(cluster, "doctor").stdout
    assert "somebody removed the arena" in (folder(cluster) / "ckptd.log").read_text()
    commit(engine, 1)  # its trainer goes on

    engine.close()  # and so does the next one
    cluster.engines.clear()
    again = cluster.engine(copies=1)
    state = bytearray(8)
    again.register("state", state)
    start = again.restore()
    assert start.found and start.iteration >= 1 and bytes(state) == b"precious"
    commit(again, start.iteration + 1)
    assert cluster.agents("n0") == [pid]


def test_an_agent_that_was_replaced_leaves_its_successors_socket(cluster):
    engine = cluster.engine(copies=1)
    (old,) = cluster.agents("n0")
    kill_process(old, signal.SIGSTOP)
    shutil.rmtree(cluster.arena)
    words = [f"{key}={value}" for key, value in cluster.options(copies=1).items()
             if key not in ("rank", "world_size", "ckptd", "restore_timeout_ms", "claim_timeout_ms")]
    subprocess.run([build_file(BUILD, "ckptd"), "--detach", *words], check=True, timeout=DEADLINE_S)
    made = (folder(cluster) / "agent.sock").stat().st_ino
    kill_process(old, signal.SIGCONT)
    eventually(lambda: has_ended(old))
    assert (folder(cluster) / "agent.sock").stat().st_ino == made
    engine.close()
    cluster.engines.clear()
    with cluster.engine(copies=1, agent="attach") as next_one:
        next_one.register("state", bytearray(b"precious"))
        next_one.restore()
        commit(next_one, 0)


def test_an_agent_that_is_started_right_after_its_arena_was_removed_takes_over(cluster):
    """Before the former one has looked whether its arena is still there."""
    words = [f"{key}={value}" for key, value in cluster.options(copies=1).items()
             if key not in ("rank", "world_size", "ckptd", "restore_timeout_ms", "claim_timeout_ms")]
    subprocess.run([build_file(BUILD, "ckptd"), "--detach", *words], check=True, timeout=DEADLINE_S)
    for _ in range(6):
        (old,) = cluster.agents("n0")
        shutil.rmtree(cluster.arena)
        subprocess.run([build_file(BUILD, "ckptd"), "--detach", *words], check=True, timeout=DEADLINE_S)
        eventually(lambda old=old: has_ended(old) or cluster.agents("n0") == [old])
        assert len(cluster.agents("n0")) == 1


TRAINER = """
import json, sys, time
from ckptengine import Engine, Stage
engine = Engine(**json.loads(sys.argv[1]))
engine.register("state", bytearray(1 << 20))
engine.restore()
def commit(iteration):
    while not (ticket := engine.snapshot(iteration)).taken:
        engine.before_update()
        iteration += 1
        time.sleep(0.02)
    assert engine.before_update()
    assert ticket.wait(Stage.COMMITTED, 60_000), ticket.message
    return iteration
for line in sys.stdin:
    print(commit(int(line)), flush=True)
"""


def test_truncated_segments_are_recreated_and_no_process_dies(cluster):
    options = {key: str(value) for key, value in cluster.options(copies=1).items()}
    options["library"] = str(build_file(BUILD, "libckptengine.so"))
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, json.dumps(options)], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONPATH": f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"})

    def commit_from(iteration: int) -> int:
        trainer.stdin.write(f"{iteration}\n")
        trainer.stdin.flush()
        said = trainer.stdout.readline()
        assert said, f"the trainer ended with status {trainer.wait(DEADLINE_S)}"
        return int(said)

    try:
        last = commit_from(0)
        (pid,) = cluster.agents("n0")
        for segment in folder(cluster).glob("*.segment"):
            os.truncate(segment, 4096)
        eventually(lambda: not list(folder(cluster).glob("*.segment")))  # the agent has seen it
        time.sleep(1)  # the trainer looks at its slots twenty times a second, and tells nobody
        assert commit_from(last + 1) > last
        assert cluster.agents("n0") == [pid]
        assert "truncated" in ckptctl(cluster, "status").stdout
    finally:
        trainer.kill()
        trainer.communicate()


def test_unreadable_answer_gives_one_sentence_about_versions(cluster):
    """An agent of another version, whose status lacks what this ckptctl shows."""
    with cluster.engine(copies=1):
        pass
    cluster.kill_agents()
    listener = socket.socket(socket.AF_UNIX)
    (folder(cluster) / "agent.sock").unlink()
    listener.bind(str(folder(cluster) / "agent.sock"))
    listener.listen()

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                body = json.dumps({"status": 0, "agent": {"job": cluster.job}}).encode()
                connection.sendall(struct.pack("<I", len(body)) + body)
                connection.recv(1)

    with open(folder(cluster) / "node", "rb") as head:
        fcntl.flock(head, fcntl.LOCK_EX)
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        told = [ckptctl(cluster, command) for command in ("status", "doctor")]
        server.join(DEADLINE_S)
    listener.close()
    for asked in told:
        said = asked.stdout + asked.stderr
        assert "one version" in said and "json.exception" not in said, said


def test_foreground_agent_also_logs_to_standard_error(cluster, tmp_path):
    words = [f"{key}={value}" for key, value in cluster.options(copies=1, log_file=tmp_path / "new" / "log").items()
             if key not in ("rank", "world_size", "ckptd", "restore_timeout_ms", "claim_timeout_ms")]
    agent = subprocess.Popen([build_file(BUILD, "ckptd"), *words], stderr=subprocess.PIPE, text=True)
    try:
        while "agent of node n0" not in (line := agent.stderr.readline()):
            assert line
        # In a directory that it has made. The file is flushed after the line went to standard error.
        eventually(lambda: "agent of node n0" in (tmp_path / "new" / "log").read_text())
    finally:
        agent.terminate()
        agent.communicate(timeout=DEADLINE_S)
