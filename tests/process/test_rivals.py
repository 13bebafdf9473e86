"""The bench that compares ckptengine with other ways to checkpoint, run with little state and one rival."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import ROOT, build_file_of

BENCH_S = 110
RATIOS = ["rivals_restore_node", "rivals_blocking", "rivals_restore", "rivals_memory", "first_snapshot"]


def run_bench(*arguments: str) -> list[str]:
    library = str(build_file_of("libckptengine.so"))
    command = [sys.executable, str(ROOT / "bench" / "rivals.py"), "--library", library, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BENCH_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def cells(lines: list[str], title: str) -> list[str]:
    return next(line for line in lines if line.startswith(f"| {title}")).strip("| ").split(" | ")


@pytest.mark.nightly
def test_quick_bench_of_rivals_reports_survival_and_ends_with_its_ratios():
    lines = run_bench("--quick", "--mib", "1", "--saves", "1", "--only", "torch-save")
    names = [match.group(1) for line in lines if (match := re.match(r"ratio: (\w+) = ", line))]
    assert names == RATIOS
    assert lines[-len(RATIOS) :] == [line for line in lines if line.startswith("ratio:")]
    flipped_bit, lost_node, all_killed = cells(lines, "ckptengine")[-3:]
    assert (flipped_bit, lost_node, all_killed) == ("noticed, healed", "back", "back")
    flipped_bit, lost_node, all_killed = cells(lines, "`torch.save`")[-3:]
    assert (flipped_bit, lost_node, all_killed) == ("unnoticed", "as the storage", "back")
