"""Runs torch's own tests of distributed checkpoints with ckptengine.dcp in place of FileSystemWriter and
FileSystemReader, on CPUs:

    .venv/bin/python scripts/dcp_upstream.py PYTORCH/test/distributed/checkpoint

The folder is that of a checkout of torch, of the installed version or near it. torch's tests need the Python package
expecttest. Each file runs three times: with torch's
own classes, as the control, and with ours, loading from storage and from memory. A case counts if the control passes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODES = ("torch", "storage", "memory")
Outcomes = dict[str, str]  # by case: "" if it passed, else why not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="test/distributed/checkpoint of a checkout of torch")
    parser.add_argument("--file", action="append", help="only these test files (default: all that save or load)")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="build folder of this project")
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="time limit of one case, in seconds")
    parser.add_argument("-k", metavar="EXPRESSION", help="only cases that match, as with pytest")
    arguments = parser.parse_args()
    files = [arguments.folder / name for name in arguments.file or ()] or files_of_interest(arguments.folder)
    passed, failed, others = 0, [], []
    print("| file | cases | torch's own | ours, storage | ours, memory |\n|---|---|---|---|---|", flush=True)
    for file in files:
        name = file.relative_to(arguments.folder)
        outcomes = {mode: run(file, mode, arguments) for mode in MODES}
        control = [case for case, why in outcomes["torch"].items() if not why]
        counts = [sum(not outcomes[mode].get(case, "did not run") for case in control) for mode in MODES[1:]]
        print(f"| {name} | {len(outcomes['torch'])} | {len(control)} | {counts[0]} | {counts[1]} |", flush=True)
        others += [f"{name}::{case}: {why}" for case, why in outcomes["torch"].items() if why]
        for mode in MODES[1:]:
            bad = {case: outcomes[mode].get(case, "did not run") for case in control}
            failed += [f"{name}::{case} ({mode}): {why}" for case, why in bad.items() if why]
            passed += len(control) - len([why for why in bad.values() if why])
    for title, lines in (("failed with ours", failed), ("do not apply: they fail with torch's own, too", others)):
        print(f"\n{title}:", *(lines or ["none"]), sep="\n  ")
    print(f"\n{passed} passed, {len(failed)} failed")
    return bool(failed)


def files_of_interest(folder: Path) -> list[Path]:
    words = ("FileSystemWriter", "FileSystemReader", "checkpoint_id=")
    return [path for path in sorted(folder.rglob("test_*.py")) if any(word in path.read_text() for word in words)]


def run(file: Path, mode: str, arguments: argparse.Namespace) -> Outcomes:
    with tempfile.TemporaryDirectory() as place:
        report, jobs = Path(place) / "report.xml", Path(place) / "jobs"
        jobs.mkdir()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "dcp_upstream_plugin", "-p", "no:cacheprovider"]
        command += ["--timeout", str(arguments.timeout), f"--junit-xml={report}", "--rootdir", str(file.parent)]
        command += ["-k", arguments.k] if arguments.k else []
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]),
            "CKPTENGINE_TEST_DCP": mode,
            "CKPTENGINE_TEST_SCRATCH": str(jobs),
            "CKPTENGINE_BUILD_DIR": str(arguments.build.resolve()),
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONWARNINGS": "ignore",
        }
        log = subprocess.run([*command, str(file)], check=False, cwd=place, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        if not report.exists():
            return {"(file)": last_line(log.stdout)}
        return dict(map(outcome, xml.parse(report).iter("testcase")))


def outcome(case: xml.Element) -> tuple[str, str]:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return case.get("name", ""), last_line(cause(found.text or "") or found.get("message", ""))
    return case.get("name", ""), ""


def cause(text: str) -> str:
    """The line that names an exception, of a rank if there is one."""
    lines = [line.removeprefix("E").strip() for line in text.splitlines()]
    named = [line for line in lines if "Error" in line.split(":")[0] or "Exception" in line.split(":")[0]]
    return next((line for line in reversed(named) if "Process" not in line), "")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no reason was given"


if __name__ == "__main__":
    sys.exit(main())
