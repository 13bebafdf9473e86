"""An extension of griffe, which reads the Python package for the reference: makes docstrings ready for Markdown.

- Attributes of a class become a table in its docstring. A comment behind an attribute says what it is, if nothing else
  does.
- Lines `name    what it is`, as in the docstring of Checkpointer, become a list of definitions.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROW = re.compile(r"(\w+(?:, \w+)*)( {2,})(\S.*)")
COMMENT = re.compile(r"  # (.*)$")


class Docstrings(griffe.Extension):
    def on_instance(self, *, node: Any, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_definitions(escaped(obj.docstring.value))

    def on_class_members(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        """After the docstrings of its attributes were seen."""
        attributes = [one for one in cls.attributes.values() if not one.name.startswith("_") and not one.is_alias]
        attributes = [one for one in attributes if "property" not in one.labels]
        is_enum = any("Enum" in str(base) for base in cls.bases)
        for one in attributes:
            del cls.members[one.name]
        attributes = [one for one in attributes if is_enum or one.annotation or meaning(one)]
        if not attributes:
            return
        rows = [["value", "number", "meaning"] if is_enum else ["attribute", "type", "meaning"], ["---"] * 3]
        for one in attributes:
            second = str(one.value if is_enum else one.annotation or "")
            rows.append([f"`{one.name}`", f"`{second}`" if second else "", meaning(one)])
        if not any(row[2] for row in rows[2:]):
            rows = [row[:2] for row in rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        text = f"{cls.docstring.value}\n\n{table}" if cls.docstring else table
        cls.docstring = griffe.Docstring(text, parent=cls)


def meaning(attribute: griffe.Attribute) -> str:
    if attribute.docstring:
        return " ".join(attribute.docstring.value.split())  # a row is one line
    behind = COMMENT.search(attribute.lines_collection[attribute.filepath][attribute.lineno - 1])
    return escaped(behind[1]) if behind else ""


def escaped(text: str) -> str:
    """`<` outside code would begin an HTML tag."""
    lines = [
        line if line.startswith("    ") else re.sub(r"(`[^`]*`)|<", lambda m: m[1] or "&lt;", line)
        for line in text.splitlines()
    ]
    return "\n".join(lines)


def with_definitions(text: str) -> str:
    shown: list[str] = []
    column = 0  # where the explanations of a list begin; 0 outside of a list
    for line in text.splitlines():
        row = ROW.fullmatch(line)
        # A name that is too long moves its explanation to the right.
        if row and (column == 0 or row.start(3) >= column):
            column = column or row.start(3)
            shown += ["", f"`{row[1]}`".replace(", ", "`, `"), f":   {row[3]}"]
        elif column and line.startswith(" " * column):
            shown.append(f"    {line.strip()}")
        else:
            column = 0
            shown.append(line)
    return "\n".join(shown)
