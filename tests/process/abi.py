"""The C API as programs depend on it: functions, struct layouts, enum values and constants, read from the header and
laid out by the C compiler. `python abi.py HEADER` prints them; tests/abi.txt holds what they are to be."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "ckptengine" / "ckptengine.h"
LIST = ROOT / "tests" / "abi.txt"

PROGRAM = """
#include <stdio.h>
#include "ckptengine/ckptengine.h"
#define FIELD(type, name) printf("  %zu %zu " #name "\\n", offsetof(type, name), sizeof(((type*)0)->name))
int main(void) {{
{}
  return 0;
}}
"""


def listing(header: Path = HEADER) -> str:
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.DOTALL)
    functions = sorted(" ".join(found.split()) for found in re.findall(r"CKPT_API ([^;{]+);", text))
    callbacks = sorted(" ".join(found.split()) for found in re.findall(r"typedef ([^;{]*\(\*\w+\)[^;]*);", text))
    lines = [*(f"function {signature}" for signature in functions), *(f"type {each}" for each in callbacks)]
    return "\n".join(lines) + "\n" + _laid_out(text, header)


def _laid_out(text: str, header: Path) -> str:
    """What only a compiler knows: a program that is made of the declarations prints it."""
    body = []
    for fields, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        body.append(f'  printf("struct {name} %zu\\n", sizeof({name}));')
        body += [f"  FIELD({name}, {field});" for field in re.findall(r"(\w+)(?:\[\w+\])?;", fields)]
    for values, name in re.findall(r"typedef enum \w+ \{(.*?)\} (\w+);", text, re.DOTALL):
        body.append(f'  printf("enum {name} %zu\\n", sizeof({name}));')
        body += [f'  printf("  %d {value}\\n", (int){value});' for value in re.findall(r"(CKPT_\w+)\s*=", values)]
    for name in re.findall(r"#define (CKPT_\w+) (?:\d+|\(\(void)", text):
        if "VERSION" not in name:
            body.append(f'  printf("constant {name} %lld\\n", (long long)({name}));')
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "abi.c"), Path(folder, "abi")
        source.write_text(PROGRAM.format("\n".join(body)))
        subprocess.run(["cc", "-std=c11", f"-I{header.parents[1]}", source, "-o", program], check=True, timeout=60)
        return subprocess.run([program], check=True, capture_output=True, text=True, timeout=60).stdout


if __name__ == "__main__":
    print(listing(Path(*sys.argv[1:]) if sys.argv[1:] else HEADER), end="")
