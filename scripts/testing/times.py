"""Tells where the time of a test run went: its phases, and its longest test programs and files."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from phases import Ended

FILE = "times.json"
GROUPS_SHOWN = 15
LINKED = (".so", ".a")


def write(results: Path, begin_unix_s: float, ended: list[Ended]) -> None:
    """Keeps what the phases of a run took, for show()."""
    content = {"phases": [asdict(phase) for phase in ended], "steps": steps_of_builds(begin_unix_s)}
    (results / FILE).write_text(json.dumps(content, indent=1))


def steps_of_builds(begin_unix_s: float) -> dict[str, dict[str, float]]:
    """For each preset, the seconds that its steps of compiling and of linking took since the run began."""
    return {log.parent.name: steps_of(log, begin_unix_s) for log in sorted(Path("build").glob("*/.ninja_log"))}


def steps_of(log: Path, begin_unix_s: float) -> dict[str, float]:
    seconds: Counter[str] = Counter()
    seen = set()
    for line in log.read_text().splitlines()[1:]:
        begin_ms, end_ms, written_ns, output, key = line.split("\t")
        step = (begin_ms, end_ms, key)
        if int(written_ns) / 1e9 < begin_unix_s or step in seen:
            continue
        seen.add(step)
        seconds[kind_of(output)] += (int(end_ms) - int(begin_ms)) / 1000
    return dict(seconds)


def kind_of(output: str) -> str:
    if output.endswith((".o", ".gch", ".pch")):
        return "compile"
    is_program = "." not in Path(output).name
    return "link" if is_program or output.endswith(LINKED) or ".so." in output else "other"


def show(results: Path) -> int:
    """Prints the table of the last run."""
    file = results / FILE
    if not file.exists():
        print("dev: there is no finished test run to tell of; run './dev test' first", file=sys.stderr)
        return 1
    content = json.loads(file.read_text())
    phases = [Ended(**phase) for phase in content["phases"]]
    print("| phase | begins after | wall | CPU |\n|---|---|---|---|")
    for phase in sorted(phases, key=lambda phase: phase.begin_s):
        print(f"| {phase.name} | {phase.begin_s:.0f} s | {phase.wall_s:.0f} s | {phase.cpu_s:.0f} s |")
    for preset, seconds in content["steps"].items():
        if seconds:
            steps = ", ".join(f"{kind} {value:.0f} s" for kind, value in sorted(seconds.items()))
            print(f"\nSteps of {preset}'s build, added up: {steps}")
    for report in sorted(results.glob("*-*test.xml")):
        show_groups(report)
    print(f"times: total_s={max((phase.begin_s + phase.wall_s for phase in phases), default=0):.0f}")
    return 0


def show_groups(report: Path) -> None:
    seconds: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for case in xml.parse(report).getroot().iter("testcase"):
        group = case.get("file") or case.get("name", "").split(".")[0]
        seconds[group] += float(case.get("time") or 0)
        cases[group] += 1
    print(f"\n{report.stem}: {sum(cases.values())} tests, {sum(seconds.values()):.0f} s added up; the longest:")
    print("| tests | number | seconds |\n|---|---|---|")
    for group, value in seconds.most_common(GROUPS_SHOWN):
        print(f"| {group} | {cases[group]} | {value:.1f} |")
