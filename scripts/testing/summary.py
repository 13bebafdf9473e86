"""Reads the JUnit XML files of a test run, shows what failed and why, and ends with "N passed, N failed"."""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

OUTPUT_SHOWN = 6000  # characters of a failing test, from its end


def results_of(report):
    """Yields (name, outcome, output) of every test in a report."""
    suite = report.name.removesuffix(".xml")
    for case in xml.parse(report).getroot().iter("testcase"):
        name = f"{suite}: {case.get('name')}"
        if suite.endswith("pytest"):
            name = f"{suite}: {case.get('file') or case.get('classname')}::{case.get('name')}"
        broken = [entry for entry in case if entry.tag in ("failure", "error")]
        output = "\n".join(entry.text or entry.get("message") or "" for entry in [*broken, *case.findall("system-out")])
        if broken:
            yield name, "failed", output
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            reason = case.find("skipped")
            message = reason.get("message") if reason is not None else case.get("status")
            missing = case.get("status") == "notrun" and "SKIP" not in (message or "")
            yield name, "failed" if missing else "skipped", message or output
        else:
            yield name, "passed", ""


def main(folder):
    outcomes = {"passed": [], "failed": [], "skipped": []}
    for report in sorted(folder.glob("*.xml")):
        for name, outcome, output in results_of(report):
            outcomes[outcome].append((name, output))
    for broken in sorted(folder.glob("*-broken.txt")):  # counts where no test of that preset tells more
        preset = broken.name.removesuffix("-broken.txt")
        if not any(name.startswith(preset) for name, _ in outcomes["failed"]):
            outcomes["failed"].append((broken.read_text().strip(), ""))
    for name, output in outcomes["failed"]:
        print(f"---- FAILED {name}\n{output[-OUTPUT_SHOWN:].rstrip()}")
    for unsteady in sorted(folder.glob("*-unsteady.txt")):
        text = unsteady.read_text()[-OUTPUT_SHOWN:].rstrip()
        print(f"---- unsteady: a known defect of a library ended these tests; they ran again ({unsteady})\n{text}")
    for stacks in sorted(folder.glob("*-stacks.txt")):
        text = stacks.read_text()[-OUTPUT_SHOWN * 3:].rstrip()
        print(f"---- stacks of tests that exceeded their time limit ({stacks})\n{text}")
    for outcome in ("skipped", "failed"):
        if outcomes[outcome]:
            print(f"{outcome}:")
            print("\n".join(f"  {name}" for name, _ in outcomes[outcome]))
    if not outcomes["passed"] and not outcomes["failed"]:
        print("dev: no test ran, because no test has a matching name")
    print(f"{len(outcomes['passed'])} passed, {len(outcomes['failed'])} failed", flush=True)
    return 0 if outcomes["passed"] and not outcomes["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
