"""The runner of all that there is for a GPU: what it counts, its budget, and how it goes on. Small commands stand for
its steps."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from gpu_all import Run, Step, run_all


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


STEPS = [
    Step("good", python("print('ratio: speed = 0.97 (ours 1, theirs 2, s)')"), 60),
    Step("bad", python("raise SystemExit(1)"), 60),
    Step("no sanitizer", python("raise SystemExit(3)"), 60),
    Step("no torch", python("print('training: left out, as there is no PyTorch here (0 s)')"), 60),
    Step("no nccl", ["false"], 60, None, "there is no NCCL here"),
]
HANGS = python("import time; time.sleep(100)")


def results(folder: Path) -> dict[str, str]:
    steps = json.loads((folder / "gpu.json").read_text())["steps"]
    return {name: step["result"] for name, step in steps.items()}


def last_line(folder: Path) -> str:
    return (folder / "gpu.log").read_text().splitlines()[-1]


def test_counts_what_passed_failed_and_was_skipped(tmp_path):
    assert run_all(Run.begin(tmp_path, "GPU", resume=False), STEPS, 100) == 1
    assert last_line(tmp_path) == "gpu: passed=1 failed=1 skipped=3 not_run=0"
    stored = json.loads((tmp_path / "gpu.json").read_text())
    assert stored["device"] == "GPU"
    assert stored["steps"]["good"]["figures"] == ["speed = 0.97 (ours 1, theirs 2, s)"]
    assert stored["steps"]["no torch"]["why"] == "there is no PyTorch here (0 s)"


def test_a_step_that_hangs_fails_at_its_limit_and_the_others_run(tmp_path):
    steps = [Step("hangs", HANGS, 1), *STEPS[:1]]
    assert run_all(Run.begin(tmp_path, "GPU", resume=False), steps, 100) == 1
    assert results(tmp_path) == {"hangs": "failed", "good": "passed"}


def test_the_budget_ends_the_run_and_resume_runs_the_rest(tmp_path):
    marker = tmp_path / "runs"
    counted = Step("counted", python(f"open({str(marker)!r}, 'a').write('x')"), 60)
    begin = time.monotonic()
    assert run_all(Run.begin(tmp_path, "GPU", resume=False), [counted, Step("long", HANGS, 60), *STEPS[:1]], 8) == 0
    assert time.monotonic() - begin < 60
    assert results(tmp_path) == {"counted": "passed", "long": "not_run", "good": "not_run"}
    assert last_line(tmp_path) == "gpu: passed=1 failed=0 skipped=0 not_run=2"
    run = Run.begin(tmp_path, "GPU", resume=True)
    assert run_all(run, [counted, Step("long", python(""), 60), *STEPS[:1]], 100) == 0
    assert last_line(tmp_path) == "gpu: passed=3 failed=0 skipped=0 not_run=0"
    assert marker.read_text() == "x"


def test_results_of_another_device_are_not_resumed(tmp_path):
    run_all(Run.begin(tmp_path, "GPU", resume=False), STEPS[:1], 100)
    assert Run.begin(tmp_path, "another GPU", resume=True).results == {}
