"""Runs the phases of ./dev test and ends with the line "N passed, N failed"."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import plan
import summary
import times
from phases import Run

RESULTS = Path("build/test-results")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["change", "fast", "all", "preset", "times"])
    parser.add_argument("--since", default="", help="compare with this revision to see what changed")
    parser.add_argument("--preset", default="release")
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    arguments = parser.parse_args()
    if arguments.kind == "times":
        return times.show(RESULTS)
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    run = Run()
    ended = run.run(plan.phases_of(arguments, RESULTS))
    times.write(RESULTS, run.begin_unix_s, ended)
    for phase in ended:
        if phase.status != 0:
            (RESULTS / f"{phase.name}-broken.txt").write_text(f"{phase.name}: it ended with status {phase.status}")
    return summary.main(RESULTS)


if __name__ == "__main__":
    sys.exit(main())
