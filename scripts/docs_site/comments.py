#!/usr/bin/env python3
"""The filter through which doxygen reads the headers: turns their plain comments into comments of doxygen.

    comments.py HEADER

Prints the header. A comment on lines of its own describes what follows it, one behind code describes that code.
"""

import re
import sys
from pathlib import Path

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|(?://[^\n]*(?:\n[ \t]*(?=//))?)+', re.S)


def as_markdown(lines: list[str]) -> list[str]:
    """What doxygen must not take for its own is escaped. Blocks that are indented become code."""
    shown, is_code = [], False
    for line in lines:
        indented = bool(re.match(r" {2,}\S", line)) and (is_code or not shown or bool(re.search(r"(:|^)$", shown[-1])))
        if indented != is_code and (line.strip() or not is_code):
            shown.append("```")
            is_code = indented
        shown.append(line if is_code else re.sub(r"(`[^`]*`)|([<>@#\\])", lambda m: m[1] or f"\\{m[2]}", line))
    return [*shown, "```"] if is_code else shown


def dedent(lines: list[str]) -> list[str]:
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[least:].rstrip() for line in lines]


def text_of(comment: str) -> list[str]:
    if comment.startswith("/*"):
        lines = comment[2:-2].rstrip().splitlines()
        lines = [lines[0].strip(), *(re.sub(r"^ *\* ?", "", line) if is_starred(lines) else line for line in lines[1:])]
        return [lines[0], *dedent(lines[1:])] if len(lines) > 1 else lines
    return dedent([re.sub(r"^\s*//", "", line) for line in comment.splitlines()])


def is_starred(lines: list[str]) -> bool:
    return all(line.lstrip().startswith("*") for line in lines[1:])


def convert(source: str) -> str:
    is_first = True

    def converted(token: re.Match) -> str:
        nonlocal is_first
        if token[0].startswith('"'):
            return token[0]
        before = source[source.rfind("\n", 0, token.start()) + 1 : token.start()]
        lines = as_markdown(text_of(token[0]))
        end = "\n" if token[0].endswith("\n") or not token[0].startswith("/*") else ""
        if before.lstrip().startswith(("}", "#")):  # says only what ends there
            return end
        if before.strip():
            return "/**< " + " ".join(line.strip() for line in lines) + " */" + end
        head = "/** @file\n" if is_first else "/**\n"
        is_first = False
        return head + "\n".join(lines) + "\n*/" + end

    return TOKEN.sub(converted, source)


if __name__ == "__main__":
    print(convert(Path(sys.argv[1]).read_text()))
