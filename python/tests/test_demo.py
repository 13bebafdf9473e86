"""The demo, small: a node dies, and the losses go on as if it had not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"
WITH_FORKS = (Path(__file__).with_name("demo_with_forks.py"), DEMO.parent)


def run_demo(library, tmp_path, *arguments: str, program: tuple = (DEMO,)) -> list[str]:
    """What a small demo says, which must end well and leave nothing behind."""
    words = ["--nodes=2", "--iterations=10", "--batch=1", f"--library={library}", f"--output={tmp_path}", *arguments]
    with tempfile.TemporaryDirectory(prefix="ckptengine-test-", dir="/dev/shm") as arena_root:
        command = [sys.executable, *program, *words, f"--arena-root={arena_root}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
        assert os.listdir(arena_root) == []
    assert done.returncode == 0 and done.stdout, done.stdout + done.stderr
    assert (tmp_path / "losses.png").stat().st_size > 0
    return done.stdout.splitlines()


PARTS = {"trainers stopped and started again", "decided what to restore", "fetched", "loaded", "first iteration"}


def parts(said: list[str]) -> set[str]:
    """Of the time from the kill on."""
    begin = next(number for number, line in enumerate(said) if line.startswith("from the kill on"))
    rows = [re.fullmatch(r"  (.+?) +(-?\d+\.\d{3}) s +(\d+\.\d{3}) s", line) for line in said[begin + 1 :]]
    found = [row.groups() for row in rows if row is not None]
    assert all(float(seconds) >= 0 for _, seconds, _ in found), said
    return {name for name, _, _ in found}


@pytest.mark.nightly  # twelve processes import torch
@pytest.mark.timeout(300)
def test_losses_are_identical_after_a_node_with_two_ranks_dies(library, tmp_path):
    said = run_demo(library, tmp_path, "--ranks-per-node=2")
    expected = r"restored iteration \d+ on 4 of 4 ranks \(2 local, 2 peer\); losses identical: yes"
    assert re.fullmatch(expected, said[-1]), said
    # An incarnation that has begun before the node was missed tells of it afterwards.
    assert parts(said) - {"node declared lost"} == PARTS | {"agent of node2 started"}


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")
def test_standby_node_replaces_a_dead_one_with_etcd(library, tmp_path):
    said = run_demo(library, tmp_path, "--coordinator=etcd", "--standby", "--kill-node=1", "--kill-at=7",
                    program=WITH_FORKS)
    # The standby node has what was committed. What was not yet, and is whole all the same, it gets with the restore.
    expected = r"restored iteration \d+ on 2 of 2 ranks \((2 local|1 local, 1 peer)\); losses identical: yes"
    assert re.fullmatch(expected, said[-1]), said
    assert parts(said) == PARTS | {"node declared lost", "its place taken, copies made again"}


def test_wrong_arguments_are_refused():
    done = subprocess.run([sys.executable, DEMO, "--nodes=1"], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "no peer" in done.stderr
