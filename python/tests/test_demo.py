"""The demo, small: a node dies, and the losses go on as if it had not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo" / "demo.py"


@pytest.mark.timeout(300)
def test_a_node_with_two_ranks_dies_and_the_losses_are_identical(library, tmp_path):
    arguments = ["--nodes=2", "--ranks-per-node=2", "--iterations=10", "--batch=1", f"--library={library}"]
    with tempfile.TemporaryDirectory(prefix="ckptengine-test-", dir="/dev/shm") as arena_root:
        command = [sys.executable, DEMO, *arguments, f"--output={tmp_path}", f"--arena-root={arena_root}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280)
        assert os.listdir(arena_root) == []
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    expected = r"restored iteration \d+ on 4 of 4 ranks \(2 local, 2 peer\); losses identical: yes"
    assert done.returncode == 0 and re.fullmatch(expected, last), done.stdout + done.stderr
    assert (tmp_path / "losses.png").stat().st_size > 0


def test_wrong_arguments_are_refused():
    done = subprocess.run([sys.executable, DEMO, "--nodes=1"], check=False, capture_output=True, text=True)
    assert done.returncode == 2 and "no peer" in done.stderr
