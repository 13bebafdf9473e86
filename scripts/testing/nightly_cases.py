"""Which cases of GoogleTest programs a change leaves to the nightly run (tests/nightly_cases.txt)."""

from pathlib import Path

LIST = Path(__file__).resolve().parents[2] / "tests" / "nightly_cases.txt"


def left_to_nightly(preset):
    """Patterns of the cases that a change does not run in this preset."""
    lines = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return [pattern for of_preset, pattern in lines if of_preset == preset]


def without(cases, patterns):
    """The GoogleTest filter that leaves these out of those that the filter `cases` takes ("": all)."""
    taken, _, left_out = cases.partition("-")
    patterns = [*filter(None, [left_out]), *patterns]
    return f"{taken or '*'}-{':'.join(patterns)}" if patterns else cases
