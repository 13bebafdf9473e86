"""The list of cases that a change leaves to the nightly run names cases that exist, and becomes a GoogleTest filter."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "testing"))

import nightly_cases

ROOT = Path(__file__).resolve().parents[2]
CASE = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.MULTILINE)


def test_each_pattern_matches_an_existing_suite_and_case():
    sources = "".join(file.read_text() for file in ROOT.glob("tests/*/*_test.cpp"))
    cases = set(CASE.findall(sources))
    patterns = [pattern for preset in ("release", "asan", "tsan") for pattern in nightly_cases.left_to_nightly(preset)]
    assert patterns
    for pattern in patterns:
        suite, case = re.sub(r"^\w+/", "", pattern).split(".")
        name = case.split("/")[0]
        known = {known_case for known_suite, known_case in cases if known_suite == suite}
        assert known, f"{pattern}: there is no suite {suite}"
        assert "*" in name or name in known, f"{pattern}: {suite} has no case {name}"


def test_filters_exclude_nightly_cases():
    without = nightly_cases.without
    assert without("", []) == ""
    assert without("", ["A.*"]) == "*-A.*"
    assert without("B.Holds:A.*", ["A.Fails"]) == "B.Holds:A.*-A.Fails"
    assert without("*-A.*", ["B.Holds", "B.Fails"]) == "*-A.*:B.Holds:B.Fails"


def test_list_names_only_sanitizer_presets():
    lines = [line.split() for line in nightly_cases.LIST.read_text().splitlines() if line and line[0] != "#"]
    assert {line[0] for line in lines} <= {"release", "asan", "tsan"}
