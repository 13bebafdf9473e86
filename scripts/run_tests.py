"""Runs tests of one preset by ctest or pytest. Results go to RESULTS/PRESET-{ctest,pytest}.xml as JUnit XML."""

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

PYTEST_FOLDERS = ["python/tests", "tests/process"]
PYTEST_TIMEOUT_S = 120  # of one test
PYTEST_DEADLINE_S = 1800  # of all of them
PYTEST_JOBS = 2
TEST_JOBS = 3  # many wait more than they compute
REPEATED_MAX = 3  # more failures than that are no matter of a machine that hesitated
# Tests of real processes, which run by real clocks.
REPEATED = ("tests/process/", "python/tests/test_demo.py", "python/tests/test_groups.py")

# What says that the code is wrong, however slow the machine was.
DEFECT = re.compile("Sanitizer|runtime error:|a bug in ckptengine")
OUTPUT_KEPT = 2000  # of one test, for the summary

# UCX 1.13 keeps an event that it could not handle at once under the number of its descriptor, and aborts where that
# number belongs to another worker by then. Only tests have several workers in a process; an agent has one.
UCX_ABORT = "Assertion `handler->async == async' failed"


# What of the tests a run has, as a choice of ctest: for each change, all but the longest, or all.
SCOPES = {
    "change": ["-LE", "^(nightly|long|mutants)$", "-E", "_NOT_BUILT$"],
    "core": ["-LE", "^(nightly|long)$", "-E", "_NOT_BUILT$"],
    "preset": ["-LE", "^long$"],
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
        elif case.find("failure") is not None and was_aborted(case) and passes(preset, case.get("name"), results):
            forgive(case)
    repeat_hurried(preset, suite, results)
    tree.write(report)
    return not any(case.find("failure") is not None for case in suite.iter("testcase"))


def repeat_hurried(preset, suite, results):
    """Many tests wait for real threads, beside other tests and builds. A few that failed run once more, by themselves;
    those that pass then are named in the summary, with what they said. What a sanitizer reported stays a failure.
    """
    failed = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    if len(failed) > REPEATED_MAX:
        return
    for case in failed:
        output = case.findtext("system-out") or ""
        if DEFECT.search(output) or not passes_alone(preset, case.get("name"), results):
            continue
        with (results / f"{preset}-unsteady.txt").open("a") as file:
            print(f"{case.get('name')}\n{output[-OUTPUT_KEPT:]}", file=file)
        case.remove(case.find("failure"))


def passes_alone(preset, name, results):
    """Whether a case of a GoogleTest program passes, with nothing beside it."""
    program, _, case = name.partition(".")
    whole = f"{whole_programs.PREFIX}{program}"
    if whole not in listed_tests(preset, []):
        return passes(preset, name, results)
    report = results / f"{preset}-again.junit"
    if not run_ctest(preset, exactly([whole]), report, 1, case):
        return False
    cases, _ = whole_programs.cases_of(program, next(xml.parse(report).getroot().iter("testcase")))
    return any(one.get("name") == name for one in cases) and all(one.find("failure") is None for one in cases)


def whole_program(preset, program, case, results, only):
    """The cases of a program. Where it ended in one of them, it runs once more for those that are left."""
    done, forgiven = [], set()
    for _ in range(ROUNDS):
        cases, ended_in = whole_programs.cases_of(program, case)
        again = None
        if ended_in and was_aborted(cases[-1]) and ended_in not in forgiven:
            print(f"{program}.{ended_in}: UCX aborted it; it runs again")
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


def passes(preset, name, results):
    report = results / f"{preset}-again.junit"
    if not run_ctest(preset, exactly([name]), report, 1):
        return False
    return all(case.find("failure") is None for case in xml.parse(report).getroot().iter("testcase"))


def forgive(case):
    print(f"{case.get('name')}: UCX aborted it; it passed when it was run again")
    case.remove(case.find("failure"))
    case.set("status", "run")


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


def run_pytest(preset, only, results):
    folders = [folder for folder in PYTEST_FOLDERS if any(Path(folder).glob("**/test_*.py"))]
    if not folders:
        return 0
    report = results / f"{preset}-pytest.xml"
    choice = ["-p", "only_containing", "--only-containing", only, *folders]
    if not only:
        choice = ["-n", str(PYTEST_JOBS), "--dist", "loadscope", "-p", "files_in_turn", *choice]
    status = start_pytest(preset, choice, report)
    no_tests = 5
    if status == no_tests:
        return 0
    return 0 if status == 1 and repeat_failed(preset, report, results) else status


def start_pytest(preset, choice, report):
    """Runs pytest, leaves its report, and returns its exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-summary", "--rootdir", "."]
    command += ["--timeout", str(PYTEST_TIMEOUT_S), "-o", "junit_family=xunit1", f"--junit-xml={report}", *choice]
    paths = [str(Path("scripts").resolve()), str(Path("python").resolve()), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "CKPTENGINE_BUILD_DIR": str(Path("build", preset).resolve()),
    }
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    with StackWatch(child.pid, {tuple(command): PYTEST_DEADLINE_S}, report.with_name(f"{report.stem}-stacks.txt")):
        try:
            return child.wait(PYTEST_DEADLINE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            print(f"pytest was killed: it did not end in {PYTEST_DEADLINE_S} s")
            return child.wait()


def repeat_failed(preset, report, results):
    """Tests of real processes run beside builds. A few that failed run once more, by themselves; those
    that pass then are named in the summary, with what they said. Returns whether nothing is left that failed.
    """
    tree = xml.parse(report)
    failed = {case_id(case): case for case in tree.getroot().iter("testcase") if failures_of(case)}
    if len(failed) > REPEATED_MAX or not all(name.startswith(REPEATED) for name in failed):
        return False
    again = results / f"{preset}-pytest-again.junit"
    start_pytest(preset, list(failed), again)
    if not again.exists():
        return False
    passed = {case_id(case) for case in xml.parse(again).getroot().iter("testcase") if not failures_of(case)}
    unsteady = results / f"{preset}-unsteady.txt"
    for name in sorted(passed & failed.keys()):
        for failure in failures_of(failed[name]):
            with unsteady.open("a") as file:
                print(f"{name}\n{failure.text or failure.get('message')}", file=file)
            failed[name].remove(failure)
    tree.write(report)
    return failed.keys() <= passed


def case_id(case):
    return f"{case.get('file')}::{case.get('name')}"


def failures_of(case):
    return [entry for entry in case if entry.tag in ("failure", "error")]


def show_progress(preset, line):
    """On a terminal one line that ctest's progress overwrites; elsewhere only what went wrong is shown, at the end."""
    progress = re.match(r"\s*(\d+/\d+) Test +#\d+: (\S+)", line)
    if progress and sys.stderr.isatty():
        print(f"\r\033[K{preset} {progress[1]} {progress[2][:90]}", end="", file=sys.stderr, flush=True)


def end_progress():
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="", help="only tests whose name contains this text")
    parser.add_argument("--scope", choices=SCOPES, default="preset")
    parser.add_argument("--parts", nargs="+", choices=["ctest", "pytest"], default=["ctest"])
    arguments = parser.parse_args()
    print(f"==> {arguments.preset}: testing ({', '.join(arguments.parts)})", file=sys.stderr, flush=True)
    preset, only, results = arguments.preset, arguments.only, arguments.results
    passed = True
    if "ctest" in arguments.parts and only:
        passed = run_only(preset, only, results)
    elif "ctest" in arguments.parts:
        is_for_change = arguments.scope in ("change", "core")
        cases = nightly_cases.without("", nightly_cases.left_to_nightly(preset) if is_for_change else [])
        passed = run_choice(preset, SCOPES[arguments.scope], results, f"{preset}-ctest", cases)
    if "pytest" in arguments.parts:
        passed = run_pytest(preset, only, results) == 0 and passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
