"""An extension of griffe, which reads the Python package for the reference: what its docstrings leave to other places.

- A comment behind or above a class attribute is that attribute's docstring.
- Lines `name    what it is` in a docstring, as Checkpointer has them, become a list of definitions.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROW = re.compile(r"^(\S(?:\S| (?! ))*?) {2,}(\S.*)$")


class Docstrings(griffe.Extension):
    def on_attribute_instance(self, *, node: Any, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and isinstance(attr.parent, griffe.Class) and (text := comment_of(attr)):
            attr.docstring = griffe.Docstring(text, parent=attr)

    def on_instance(self, *, node: Any, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_definitions(obj.docstring.value)


def comment_of(attribute: griffe.Attribute) -> str:
    lines = attribute.lines_collection[attribute.filepath]
    line = lines[attribute.lineno - 1]
    behind = re.search(r"  # (.*)$", line)
    return behind[1][:1].upper() + behind[1][1:] + "." if behind else ""


def with_definitions(text: str) -> str:
    lines = text.expandtabs().splitlines()
    shown: list[str] = []
    column = 0  # where the explanations of a list begin
    for line in lines:
        row = ROW.match(line)
        indent = len(line) - len(line.lstrip())
        if row and (column == 0 or row.start(2) == column):
            shown += ["" if column == 0 else "", *(f"`{name.strip()}`" for name in row[1].split(",")), f":   {row[2]}"]
            column = row.start(2)
        elif column and line.strip() and indent == column:
            shown.append(f"    {line.strip()}")
        else:
            column = 0
            shown.append(line)
    return "\n".join(shown)
