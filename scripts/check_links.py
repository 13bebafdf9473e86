#!/usr/bin/env python3
"""Checks the links of all tracked Markdown files.

    check_links.py

A link to a file of the repository must name a file that exists. A link with an anchor must name a heading of that file,
as GitHub writes it. Prints `file:line: link: what is wrong` for each, then `broken_links=N`. Exits 1 when N is not 0.
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path.cwd()
LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$")
ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def prose(text: str) -> str:
    """The text with code blocks and code spans blanked: no links are in them. Lines keep their numbers."""
    text = re.sub(r"^```.*?^```", lambda block: re.sub(r"[^\n]", " ", block[0]), text, flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", lambda span: "`" + " " * (len(span[0]) - 2) + "`", text)


def slug(heading: str) -> str:
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    text = path.read_text()
    found = set(ANCHOR.findall(text))
    counts: dict[str, int] = {}
    for line in re.sub(r"^```.*?^```", "", text, flags=re.M | re.S).splitlines():
        if heading := HEADING.match(line):
            name = slug(heading[1])
            number = counts.get(name, 0)
            counts[name] = number + 1
            found.add(f"{name}-{number}" if number else name)
    return frozenset(found)


def problem(document: Path, target: str) -> str | None:
    if re.match(r"[a-z][a-z+.-]*:", target):
        return None
    name, _, anchor = target.partition("#")
    path = (document.parent / name).resolve() if name else document
    if not path.exists():
        return f"{target}: there is no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{target}: that file has no such heading"
    return None


def check(document: Path) -> list[str]:
    text = prose(document.read_text())
    found = []
    for link in LINK.finditer(text):
        if what := problem(document, link[1]):
            line = text.count("\n", 0, link.start()) + 1
            found.append(f"{document.relative_to(ROOT)}:{line}: {what}")
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    documents = [ROOT / name for name in listed.splitlines()]
    found = [line for document in documents if document.is_file() for line in check(document)]
    for line in found:
        print(line, file=sys.stderr)
    print(f"broken_links={len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
