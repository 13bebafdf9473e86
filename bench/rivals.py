"""Compares ckptengine with other ways to checkpoint: how long training stands still, how long a restore takes, how much
memory it costs, and what survives.

Two ranks with gloo run on a node each. Both nodes share this machine and its tmpfs. Every iteration takes a checkpoint.
While a GPU would compute, the host is idle, so copies in the background meet no training on the CPU. The ways take
turns, run by run. Each has processes of its own. A way that cannot be installed is skipped.

  blocking   How long training waits: in the save, and before the update. The figure is the median of all saves but the
             first, which is shown apart.
  restore    How long the call takes that brings the state back into the tensors, on the slower rank. That is without
             the start of processes, and without the time to notice that a node is lost. Measured after one rank was
             killed (SIGKILL; the other rank gets SIGTERM), and after a node was lost (the same, and the node's memory
             is gone).
  memory     The most that all processes and files in tmpfs take during a save, less what they took before the first
             checkpoint, divided by the bytes of state.
  faults     Whether the state survives one flipped bit in the stored copy, a lost node, and the death of all ranks at
             once. Tried in the first run, with the smallest size.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

from _rivals.catalog import WAYS, Entry
from _rivals.environments import NotInstalled, python_of
from _rivals.results import OURS, Results, settings
from ckptengine import load_library
from run import find_programs

ENVIRONMENTS = ROOT / "build" / "rivals" / "venvs"
LOGS = ROOT / "build" / "rivals" / "logs"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- ./dev bench rivals: begin -->", "<!-- ./dev bench rivals: end -->"
RUN_S = 400
ENDING_S = 20
WIDTH = 120  # characters in a line of the page


class Failed(Exception):
    """A way did not get through a run."""


def drive(entry: Entry, python: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs one way once. Returns what its driver found."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{entry.name}.log"
    where = f"log: {log.relative_to(ROOT)}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CKPTENGINE_")}
    paths = [ROOT / "bench", ROOT / "python", ROOT / "examples" / "demo"]
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = [str(python), "-m", "_rivals.drive", entry.name, *arguments]
    with open(log, "w") as errors:
        driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            output, _ = driver.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not end in {RUN_S} s ({where})") from None
        finally:
            end(driver)
    lines = output.splitlines()
    if driver.returncode != 0 or not lines:
        raise Failed(f"its driver ended with status {driver.returncode} ({where})")
    found = json.loads(lines[-1])
    for mib, of_size in found["sizes"].items():
        if "failure" in of_size:
            raise Failed(f"with {mib} MiB {of_size['failure']} ({where})")
    return found


def end(driver: subprocess.Popen) -> None:
    if driver.poll() is None:
        driver.terminate()  # the driver then removes its processes and files
        try:
            driver.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()


def environments(ways: list[Entry], results: Results) -> dict[str, Path]:
    pythons = {}
    for entry in ways:
        try:
            pythons[entry.name] = python_of(entry, ENVIRONMENTS)
        except NotInstalled as reason:
            results.skip(entry, str(reason))
            print(f"{entry.name} is skipped: {reason}", flush=True)
    return pythons


def measure(ways: list[Entry], arguments: argparse.Namespace, programs: dict[str, str]) -> Results:
    """Runs all ways, in turns."""
    results = Results(arguments.mib)
    pythons = environments(ways, results)
    begin = time.monotonic()
    words = ["--saves", str(arguments.saves), "--programs", json.dumps(programs)]
    words += [f"--mib={mib}" for mib in arguments.mib]
    for number in range(arguments.runs):
        for entry in ways:
            if entry.name in results.skipped:
                continue
            at = f"{time.monotonic() - begin:4.0f} s  run {number + 1} of {arguments.runs}, {entry.name}"
            try:
                found = drive(entry, pythons[entry.name], words + ([] if number else ["--all-faults"]))
            except Failed as reason:
                results.skip(entry, str(reason))
                print(f"{at} is skipped from now on: {reason}", flush=True)
                continue
            results.add(entry, found)
            for mib, of_size in found["sizes"].items():
                print(f"{at}, {mib} MiB: {in_short(of_size)}", flush=True)
    return results


def in_short(found: dict[str, Any]) -> str:
    restores = [found.get(f"restore_{what}_ms") for what in ("rank", "node")]
    text = f"blocking {found['blocking_ms']:.1f} ms (first {found['first_ms']:.0f}), restore "
    text += ", ".join("-" if ms is None else f"{ms:.0f}" for ms in restores)
    return f"{text} ms, memory {found['memory']:.1f}x"


def machine() -> str:
    cpu = next(
        line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    )
    return f"{os.cpu_count()} cores of {cpu.strip()}"


def load() -> float:
    return os.getloadavg()[1]


def section(results: Results, arguments: argparse.Namespace, load_before: float) -> str:
    """Makes the text that docs/performance.md has between the markers."""
    runs = "one run" if arguments.runs == 1 else f"medians of {arguments.runs} runs in turns"
    header = (
        f"{date.today():%-d %B %Y}, {machine()}, torch {version('torch')}, {runs}, {arguments.saves} saves after the "
        f"first. Load average before the bench: {load_before:.1f}, after it: {load():.1f}. "
        "The bench alone makes it 1 to 2."
    )
    if load_before > os.cpu_count():
        header += " The machine had more to run than it could carry: trust what came back, and not the times."
    goals = filter(None, (ratio.goal() for ratio in results.ratios()))
    parts = [
        textwrap.fill(header, WIDTH),
        results.table(),
        "```\n" + "\n".join(map(str, results.ratios())) + "\n```",
        textwrap.fill(f"Goals: {', '.join(goals)}.", WIDTH),
        "Settings:",
        settings(found.entry for found in results.in_order()),
    ]
    titles = {entry.name: entry.title for entry in WAYS}
    parts += [textwrap.fill(f"{titles[name]} was left out: {why}.", WIDTH) for name, why in results.skipped.items()]
    return "\n\n".join(parts)


def write_page(text: str) -> None:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise SystemExit(f"{PAGE} lacks the lines '{BEGIN}' and '{END}'; put them where the table belongs")
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def sizes(text: str) -> list[int]:
    return sorted(int(word) for word in text.split(","))


def parse() -> argparse.Namespace:
    names = [entry.name for entry in WAYS]
    parser = argparse.ArgumentParser(
        prog="./dev bench rivals --", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each way (default: %(default)s)")
    parser.add_argument("--mib", type=sizes, default="32,512", help="MiB of state per rank (default: %(default)s)")
    parser.add_argument("--saves", type=int, default=2, help="saves after the first (default: %(default)s)")
    parser.add_argument("--only", action="append", choices=names, help="compare only this rival; may be repeated")
    parser.add_argument("--quick", action="store_true", help="one run with 32 MiB")
    parser.add_argument("--write-docs", action="store_true", help="put the table into docs/performance.md")
    parser.add_argument("--library", type=Path, help="libckptengine.so, with its programs beside it")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs = 1
        arguments.mib = [min(32, *arguments.mib)]
    return arguments


def main() -> int:
    arguments = parse()
    programs = {name: str(path) for name, path in find_programs(Path(load_library(arguments.library).path)).items()}
    ways = [entry for entry in WAYS if not arguments.only or entry.name in (OURS, *arguments.only)]
    load_before = load()
    results = measure(ways, arguments, programs)
    print("\n" + results.table() + "\n")
    if arguments.write_docs:
        write_page(section(results, arguments, load_before))
    for ratio in results.ratios():
        print(ratio)
    return 0 if OURS in results.found else 1


if __name__ == "__main__":
    sys.exit(main())
