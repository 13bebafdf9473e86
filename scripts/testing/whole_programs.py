"""GoogleTest programs that ctest runs whole, as whole.PROGRAM: what they wrote, told case by case."""

import re
import xml.etree.ElementTree as xml

PREFIX = "whole."
BEGIN = re.compile(r"\[ RUN      \] (\S+)")
END = re.compile(r"\[  (?:     (OK)|(FAILED) |(SKIPPED)) \] ([^\s,]+)[^\n]*?\((\d+) ms\)")


def program_of(case):
    """The program that a case of ctest's report is the whole of; None where it is an ordinary test."""
    name = case.get("name")
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def ended_cases(output):
    """Yields (name, outcome, seconds, output) of each case that came to its end."""
    at = 0
    for end in END.finditer(output):
        begin = output.rfind(f"[ RUN      ] {end[4]}", at, end.start())
        if begin >= 0:
            outcome = "passed" if end[1] else "failed" if end[2] else "skipped"
            yield end[4], outcome, int(end[5]) / 1000, output[begin : end.end()]
            at = end.end()


def unended_case(output):
    """The case in which the program ended, and what it wrote in it; None where it ended between cases."""
    begins = list(BEGIN.finditer(output))
    if not begins:
        return None
    name = begins[-1][1]
    if any(end[4] == name for end in END.finditer(output, begins[-1].start())):
        return None
    return name, output[begins[-1].start() :]


def told(name, outcome, output="", seconds=0.0):
    """A case of a report."""
    case = xml.Element("testcase", name=name, status="run", time=f"{seconds:g}")
    if outcome == "failed":
        xml.SubElement(case, "failure", message="failed")
        xml.SubElement(case, "system-out").text = output
    elif outcome == "skipped":
        xml.SubElement(case, "skipped", message=output)
    return case


def cases_of(program, whole):
    """The cases of a whole program in ctest's report, and the name of the one in which it ended, or None."""
    output = whole.findtext("system-out") or ""
    failure = whole.find("failure")
    cases = [told(f"{program}.{name}", outcome, text, seconds) for name, outcome, seconds, text in ended_cases(output)]
    unended = unended_case(output)
    if unended:
        cases.append(told(f"{program}.{unended[0]}", "failed", unended[1]))
        return cases, unended[0]
    if whole.get("status") in ("notrun", "disabled") or (
        failure is not None and all(case.find("failure") is None for case in cases)
    ):
        cases.append(told(f"{program}.(the program itself)", "failed", output[-20000:] or whole.get("status")))
    return cases, None
