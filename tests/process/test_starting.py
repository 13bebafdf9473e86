"""The engine starts the node's agent: where that cannot work, it says why at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from ckptengine import Status
from conftest import BUILD, refused
from processes import build_file, kill_process

AT_ONCE_S = 2  # far below the time that an agent is given to get ready


def refused_at_once(cluster, **options) -> str:
    begin = time.monotonic()
    status, message = refused(cluster.engine, **options)
    assert time.monotonic() - begin < AT_ONCE_S
    assert status is Status.NO_AGENT, message
    return message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"transport": "pigeon"}, "pigeon"),
        ({"interface": "eth99"}, "eth99"),
        ({"arena_dir": "/proc/arena"}, "option arena_dir"),
        ({"arena_dir": "/dev/null"}, "option arena_dir"),
        ({"coordination": "/dev/null"}, "option coordination"),
        ({"log_file": "/proc/ckptd.log"}, "option log_file"),
        ({"ckptd": "/bin/false"}, "/bin/false ended with status 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_trainer_does_not_wait_for_an_agent_that_ends_immediately(cluster, options, named):
    assert named in refused_at_once(cluster, **options)


def test_agent_killed_while_it_starts_is_reported(cluster, tmp_path):
    program = tmp_path / "ckptd"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    assert "signal 9" in refused_at_once(cluster, ckptd=program)


def test_directory_of_another_user_is_not_used(cluster):
    """Whoever makes /dev/shm/ckptengine-<uid> first must not get to see, or to forge, another's state."""
    node = cluster.arena / cluster.job / "n0"
    if os.geteuid() == 0:
        node.mkdir(parents=True)
        os.chown(node, 12345, 12345)
    else:
        node.parent.mkdir(parents=True)
        node.symlink_to("/usr")
    assert "another user" in refused_at_once(cluster)


def test_the_log_needs_an_absolute_path_since_agents_run_elsewhere(cluster):
    status, message = refused(cluster.engine, log_file="ckptd.log")
    assert status is Status.INVALID and "log_file" in message and "absolute" in message


def test_a_config_that_is_a_directory_is_named(cluster, tmp_path):
    status, message = refused(cluster.engine, config=tmp_path)
    assert status is Status.INVALID and str(tmp_path) in message


def test_agents_exit_status_distinguishes_refusal_from_failure(cluster):
    cluster.engine(copies=1)
    words = [f"{key}={value}" for key, value in cluster.options(copies=1).items()]
    command = [build_file(BUILD, "ckptd"), *words]
    second = subprocess.run(command, check=False, text=True, capture_output=True, timeout=30)
    assert second.returncode == 2 and "another agent" in second.stderr


def test_second_engine_of_a_rank_in_one_process_is_refused_and_the_first_named(cluster):
    cluster.engine(copies=1)
    status, message = refused(cluster.engine, copies=1)
    assert status is Status.CLAIMED and "another engine of this process" in message


def test_an_agent_that_is_stopped_by_a_signal_is_named(cluster):
    with cluster.engine(copies=1):
        (agent,) = cluster.agents()
    kill_process(agent, signal.SIGSTOP)
    status, message = refused(cluster.engine, copies=1)
    assert status is Status.TIMEOUT and str(agent) in message and "stopped" in message
    kill_process(agent, signal.SIGCONT)
    with cluster.engine(copies=1) as engine:
        assert not engine.restore().found
