"""./dev demo --jit, ./dev bench jit and ./dev chaos --jit as wholes. Nightly."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, build_file_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(590)]


def run(*words: object) -> list[str]:
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=570, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_demo_shows_four_faults_that_cost_no_healthy_process(tmp_path):
    said = run(ROOT / "examples/demo/jit_demo.py", "--library", build_file_of("libckptengine.so"), "--output", tmp_path)
    assert re.fullmatch(r"jit: faults=4 healthy_ended=0 slowest_ms=\d+; losses identical: yes", said[-1]), said
    assert (tmp_path / "jit.png").stat().st_size > 0


def test_the_bench_ends_with_its_ratios():
    said = run(ROOT / "bench/jit.py", "--rounds", 1, "--iterations", 10, "--faults", "kill", "--rivals", "none",
               "--library", build_file_of("libckptengine.so"))
    names = [match[1] for line in said if (match := re.match(r"ratio: (\w+) = \d", line))]
    assert {"jit_iteration", "jit_vs_restart"} <= set(names)


def test_faults_of_each_kind_at_random_moments_cost_no_healthy_process():
    said = run(ROOT / "scripts/chaos_jit.py", "--runs", 6, "--seed", 1, "--build", BUILD)
    assert re.fullmatch(r"chaos: faults=6 .* wrong=0 healthy_ended=0", said[-1]), said
