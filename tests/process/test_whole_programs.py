"""What ./dev test tells of a GoogleTest program that ran whole, also where it did not come to its end."""

import sys
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "testing"))

import whole_programs

ENDED = """[==========] Running 4 tests from 2 test suites.
[ RUN      ] Door.Opens
[       OK ] Door.Opens (1200 ms)
[ RUN      ] Door.Closes
handshake_listener_test.cpp:7: Failure
it stands open[  FAILED  ] Door.Closes (3 ms)
[ RUN      ] Door.NeedsLeader
handshake_listener_test.cpp:9: Skipped
not leader
[  SKIPPED ] Door.NeedsLeader (0 ms)
[ RUN      ] Sizes/ListenerTest.Fits/wide
[  FAILED  ] Sizes/ListenerTest.Fits/wide, where GetParam() = 8 (0 ms)
[  PASSED  ] 1 test.
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] Door.Closes
"""
ABORTED = """[ RUN      ] Door.Opens
[       OK ] Door.Opens (0 ms)
[ RUN      ] Door.Falls
==7==ERROR: AddressSanitizer: heap-use-after-free
"""
LEAKED = """[ RUN      ] Door.Opens
[       OK ] Door.Opens (0 ms)
[  PASSED  ] 1 test.
==7==ERROR: LeakSanitizer: detected memory leaks
"""


def whole(output, status="run", failed=False):
    case = xml.Element("testcase", name="whole.listener_test", status="fail" if failed else status)
    if failed:
        xml.SubElement(case, "failure", message="")
    xml.SubElement(case, "system-out").text = output
    return case


def outcomes(case):
    cases, ended_in = whole_programs.cases_of("listener_test", case)
    told = {}
    for each in cases:
        outcome = "failed" if each.find("failure") is not None else "passed"
        told[each.get("name")] = "skipped" if each.find("skipped") is not None else outcome
    return told, ended_in


def test_each_case_is_reported_with_its_outcome():
    assert outcomes(whole(ENDED, failed=True)) == (
        {
            "listener_test.Door.Opens": "passed",
            "listener_test.Door.Closes": "failed",
            "listener_test.Door.NeedsLeader": "skipped",
            "listener_test.Sizes/ListenerTest.Fits/wide": "failed",
        },
        None,
    )


def test_failure_contains_only_the_cases_own_output():
    cases, _ = whole_programs.cases_of("listener_test", whole(ENDED, failed=True))
    output = cases[1].findtext("system-out")
    assert "it stands open" in output and "Opens" not in output and "NeedsLeader" not in output


def test_case_during_which_the_program_ended_fails_and_is_named():
    expected = {"listener_test.Door.Opens": "passed", "listener_test.Door.Falls": "failed"}
    assert outcomes(whole(ABORTED, failed=True)) == (expected, "Door.Falls")


def test_program_that_fails_after_its_last_case_is_its_own_failure():
    expected = {"listener_test.Door.Opens": "passed", "listener_test.(the program itself)": "failed"}
    assert outcomes(whole(LEAKED, failed=True)) == (expected, None)


def test_a_program_that_did_not_run_is_a_failure():
    assert outcomes(whole("", status="notrun")) == ({"listener_test.(the program itself)": "failed"}, None)
