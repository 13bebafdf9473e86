"""Writes python/ckptengine/_options.py from the one list of options, src/options/options.cpp, as ckptctl tells it.

    python_options.py CKPTCTL

tests/process/test_options.py fails where the file is not what this would write."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "python" / "ckptengine" / "_options.py"
WIDTH = 120
HEAD = '''"""The options of an engine. Written by scripts/python_options.py from `ckptctl options`: do not edit."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(kw_only=True)
class Options:
    """Options of an Engine or Checkpointer. Sizes are bytes, or text as "64MiB".

    None leaves an option to the environment (CKPTENGINE_<OPTION>), then to the file that `config` names, then to its
    default. Values are checked when the engine is created.
    """

'''
TAIL = '''
    def given(self) -> dict[str, Any]:
        """Returns the options that are not None, by name."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}
'''
TYPES = {"integer": "int", "bytes": "int | str", "text": "str | os.PathLike[str]", "flag": "bool"}


def options_of(ckptctl: Path | str) -> list[dict]:
    listed = subprocess.run([ckptctl, "options", "--json"], check=True, capture_output=True, text=True, timeout=60)
    return json.loads(listed.stdout)


def render(options: list[dict]) -> str:
    return HEAD + "".join(field(option) for option in options) + TAIL


def field(option: dict) -> str:
    type_ = TYPES.get(option["type"])
    if type_ is None:
        type_ = f"Literal[{', '.join(json.dumps(word) for word in option['type'].split('|'))}]"
    # Links lead from docs/options.md.
    text = re.sub(r"\[\w+\]\((\w+\.md)(?:#[\w-]+)?\)", r"docs/\1", option["help"])
    default = re.sub(r"^`([^`]*)`$", r"\1", option["default"])
    text += " Required." if option["required"] else f" Default: {default}."
    lines = textwrap.wrap(text.replace("\\", "\\\\"), WIDTH - 4 - 6, break_long_words=False, break_on_hyphens=False)
    doc = "\n    ".join(lines)
    return f'    {option["name"]}: {type_} | None = None\n    """{doc}"""\n'


def main() -> None:
    FILE.write_text(render(options_of(sys.argv[1])))
    print(FILE)


if __name__ == "__main__":
    main()
