#!/usr/bin/env python3
"""Looks for retired words (scripts/retired_words.txt) in all tracked text files.

    check_words.py [--list FILE] [ROOT]

Prints `file:line: word; say ...` for each, then `retired_words=N`. Exits 1 when N is not 0. The words that took their
place are in docs/architecture.md.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The list names every retired word, and the changelog tells what was renamed.
LEFT_OUT = {"CHANGELOG.md", "LICENSE", "scripts/check_words.py", "scripts/retired_words.txt"}
BINARY = {".png", ".svg"}


@dataclass
class Rule:
    word: re.Pattern
    instead: str
    globs: list[str] = field(default_factory=list)
    allowed: list[re.Pattern] = field(default_factory=list)

    def holds(self, path: str) -> bool:
        taken = [glob for glob in self.globs if not glob.startswith("!")]
        left = [glob[1:] for glob in self.globs if glob.startswith("!")]
        return (not taken or any(matches(path, g) for g in taken)) and not any(matches(path, g) for g in left)


def matches(path: str, glob: str) -> bool:
    pattern = re.escape(glob).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.fullmatch(pattern, path) is not None


def read_rules(path: Path) -> list[Rule]:
    """Lines of four columns, separated by tabs: regular expression, what to say instead, globs, and what is allowed."""
    rules = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, instead, globs, allowed = [*line.split("\t"), "", "", ""][:4]
        rules.append(
            Rule(
                re.compile(word),
                instead,
                [glob.strip() for glob in globs.split(",") if glob.strip() not in ("", "*")],
                [re.compile(allowed)] if allowed else [],
            )
        )
    return rules


def tracked(root: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=root, check=True, capture_output=True, text=True).stdout
    return [
        path
        for path in listed.splitlines()
        if path not in LEFT_OUT and Path(path).suffix not in BINARY and (root / path).is_file()
    ]


def findings(root: Path, path: str, rules: list[Rule]) -> list[str]:
    found = []
    for rule in rules:
        if rule.word.search(path):
            found.append(f"{path}: the file's name; say {rule.instead}")
    try:
        lines = (root / path).read_text().splitlines()
    except UnicodeDecodeError:
        return found
    for number, line in enumerate(lines, 1):
        for rule in rules:
            rest = line
            for pattern in rule.allowed:
                rest = pattern.sub(" ", rest)
            for match in rule.word.finditer(rest):
                found.append(f"{path}:{number}: {match[0]}; say {rule.instead}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=HERE.parent)
    parser.add_argument("--list", type=Path, default=HERE / "retired_words.txt")
    arguments = parser.parse_args()
    rules = read_rules(arguments.list)
    count = 0
    for path in tracked(arguments.root):
        for line in findings(arguments.root, path, [rule for rule in rules if rule.holds(path)]):
            print(line)
            count += 1
    print(f"retired_words={count}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
