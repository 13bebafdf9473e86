"""Runs the C++ tests of one preset with ctest. Results go to RESULTS/PRESET-ctest.xml as JUnit XML, case by case.

A test that fails is not repeated: it may have seen a fault that comes seldom. The one exception is a known defect of
UCX, which is named in the summary.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import nightly_cases
import whole_programs
from stack_watch import StackWatch

TEST_JOBS = 3  # many wait more than they compute

# UCX 1.13 keeps an event that it could not handle at once under the number of its descriptor, and aborts where that
# number belongs to another worker by then. Only tests have several workers in a process; an agent has one.
UCX_ABORT = "Assertion `handler->async == async' failed"


# Choices of ctest: what a change runs, the mutants, or all.
SCOPES = {
    "change": ["-LE", "^(nightly|long|mutants)$", "-E", "_NOT_BUILT$"],
    "mutants": ["-L", "^mutants$"],
    "preset": ["-LE", "^(long|mutants)$"],
    "all": [],
}
OUTPUT_BYTES = str(16 << 20)  # of a whole program
ROUNDS = 8  # how often a program that ended early goes on


def ctest_command(preset, choice):
    return ["ctest", "--preset", preset, *choice]


def listed_tests(preset, choice):
    """Maps each test's name to its command line and timeout in seconds."""
    listing = subprocess.run(
        [*ctest_command(preset, choice), "--show-only=json-v1"], check=False, capture_output=True, text=True
    )
    if listing.returncode != 0:
        sys.exit(f"ctest could not list the tests of {preset}: {listing.stderr.strip()}")
    tests = {}
    for test in json.loads(listing.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        command = tuple(test.get("command", []))
        if command and Path(command[0]).name == "nice":  # it becomes what it starts
            command = command[3:]
        tests[test["name"]] = command, float(properties.get("TIMEOUT", 1500))
    return tests


def exactly(names):
    return ["-R", f"^({'|'.join(map(re.escape, names))})$"]


def run_ctest(preset, choice, report, jobs, cases=""):
    """Runs what is chosen; `cases` is a GoogleTest filter. Returns whether there is a report."""
    tests = listed_tests(preset, choice)
    if not tests:
        return False
    log = report.with_suffix(".log")
    command = [*ctest_command(preset, choice), "--parallel", str(jobs), "--output-junit", str(report.resolve())]
    command += ["--test-output-size-passed", OUTPUT_BYTES, "--test-output-size-failed", OUTPUT_BYTES]
    environment = os.environ | ({"GTEST_FILTER": cases} if cases else {})
    with open(log, "w") as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        )
        with StackWatch(child.pid, dict(tests.values()), report.parent / f"{preset}-stacks.txt"):
            for line in child.stdout:
                output.write(line)
                show_progress(preset, line)
            child.wait()
    end_progress()
    if not report.exists():
        print(log.read_text()[-4000:])
    return report.exists()


def run_choice(preset, choice, results, name, cases=""):
    """Runs tests, leaves a report of their cases in RESULTS/NAME.xml, and returns whether all passed."""
    report = results / f"{name}.xml"
    if not run_ctest(preset, choice, report, TEST_JOBS, cases):
        return not listed_tests(preset, choice)
    tree = xml.parse(report)
    suite = tree.getroot()
    for case in list(suite.iter("testcase")):
        program = whole_programs.program_of(case)
        if program:
            suite.remove(case)
            suite.extend(whole_program(preset, program, case, results, cases))
    tree.write(report)
    return not any(case.find("failure") is not None for case in suite.iter("testcase"))


def whole_program(preset, program, case, results, only):
    """The cases of a program. Where it ended in one of them, it runs once more for those that are left."""
    done, forgiven = [], set()
    for _ in range(ROUNDS):
        cases, ended_in = whole_programs.cases_of(program, case)
        again = None
        if ended_in and was_aborted(cases[-1]) and ended_in not in forgiven:
            with (results / f"{preset}-unsteady.txt").open("a") as file:
                print(f"{program}.{ended_in}: UCX aborted it, and it ran again", file=file)
            forgiven.add(ended_in)
            again = cases.pop()
        done += cases
        if not ended_in:
            return done
        names = [told.get("name").removeprefix(f"{program}.") for told in done]
        rest = nightly_cases.without(only, names)
        report = results / f"{preset}-{program}-rest.junit"
        if not run_ctest(preset, exactly([f"{whole_programs.PREFIX}{program}"]), report, 1, rest):
            return [*done, again] if again is not None else done
        case = next(xml.parse(report).getroot().iter("testcase"))
    return [*done, whole_programs.told(f"{program}.(the program itself)", "failed", f"it ended {ROUNDS} times")]


def was_aborted(case):
    return UCX_ABORT in (case.findtext("system-out") or "")


def run_only(preset, only, results):
    """Tests whose name contains a text; of programs that run whole, the cases that do."""
    tests = listed_tests(preset, [])
    prefix = whole_programs.PREFIX
    passed = True
    ordinary = [name for name in tests if not name.startswith(prefix) and only in name]
    if ordinary:
        passed = run_choice(preset, exactly(ordinary), results, f"{preset}-ctest")
    for name, (command, _) in tests.items():
        program = name.removeprefix(prefix)
        cases = [case for case in listed_cases(command) if only in f"{program}.{case}"] if name != program else []
        if cases:
            choice = exactly([name])
            passed = run_choice(preset, choice, results, f"{preset}-{program}-ctest", ":".join(cases)) and passed
    return passed


def listed_cases(command):
    """What a GoogleTest program has."""
    listing = subprocess.run([*command, "--gtest_list_tests"], check=False, capture_output=True, text=True)
    suite, cases = "", []
    for line in listing.stdout.splitlines():
        word = line.split("#")[0].rstrip()
        if word.startswith("  "):
            cases.append(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return cases


def show_progress(preset, line):
    """On a terminal one line that ctest's progress overwrites; elsewhere only what went wrong is shown, at the end."""
    progress = re.match(r"\s*(\d+/\d+) Test +#\d+: (\S+)", line)
    if progress and sys.stderr.isatty():
        print(f"\r\033[K{preset} {progress[1]} {progress[2][:90]}", end="", file=sys.stderr, flush=True)


def end_progress():
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def choice_of(scope, programs):
    return exactly(ctest_name(program) for program in programs) if programs else SCOPES[scope]


def ctest_name(program):
    """replay_NAME is the test fuzz.NAME; all others are GoogleTest programs."""
    fuzzed = program.removeprefix("replay_")
    return f"fuzz.{fuzzed}" if fuzzed != program else f"{whole_programs.PREFIX}{program}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--name", default="ctest", help="the report is RESULTS/PRESET-NAME.xml")
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--scope", choices=SCOPES, default="preset")
    parser.add_argument("--programs", nargs="+", help="only these test programs")
    arguments = parser.parse_args()
    preset, results = arguments.preset, arguments.results
    if arguments.only:
        return 0 if run_only(preset, arguments.only, results) else 1
    left_out = nightly_cases.left_to_nightly(preset) if arguments.scope == "change" else []
    cases = nightly_cases.without("", left_out)
    choice = choice_of(arguments.scope, arguments.programs)
    return 0 if run_choice(preset, choice, results, f"{preset}-{arguments.name}", cases) else 1


if __name__ == "__main__":
    sys.exit(main())
