"""How ./dev test runs its phases, and what it tells of their times."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "testing"))

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import json
from dataclasses import asdict
from phases import Phase, Run
shell = lambda name, text, **when: Phase(name, ["sh", "-c", text], **when)
more = lambda: [shell("named later", "echo named later", needs=("first",))]
phases = [
    shell("second", "echo second", needs=("first",)),
    shell("first", "echo first", then=more),
    shell("fails", "exit 3"),
    shell("needs it", "echo never", needs=("fails",)),
    shell("after it", "echo after", after=("fails",)),
    Phase("busy", [sys.executable, "-c", "sum(range(20_000_000))"]),
]
print(json.dumps([asdict(phase) for phase in Run().run(phases)]))
"""


def test_phases_wait_for_what_they_need_and_those_whose_need_failed_are_left_out():
    scripts = Path(__file__).resolve().parents[2] / "scripts" / "testing"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(scripts)], capture_output=True, text=True, check=True, timeout=60
    )
    *said, last = done.stdout.splitlines()
    ended = {phase["name"]: phase for phase in json.loads(last)}
    assert said.index("first") < said.index("second")
    assert {"after", "named later"} <= set(said) and "never" not in said
    failed = {name for name, phase in ended.items() if phase["status"] != 0}
    assert failed == {"fails", "needs it"}
    assert ended["fails"]["status"] == 3
    assert ended["busy"]["cpu_s"] > ended["first"]["cpu_s"]
    assert "needs it: left out" in done.stderr
