"""Checks every #include of the product against the table "Where things are" in docs/architecture.md.

The table is the rule: a folder may include itself, include/, and what its row lists (folders, or single files).
Prints each violation, then "include_violations=N". Status 1 where there is one.
"""

import re
import subprocess
import sys
from pathlib import Path

TABLE = Path("docs/architecture.md")
ROOTS = ["src", ".", "include"]  # the compiler's search path
FOLDERS = ["include", "kernels", "placement", "schedule", "src"]
ROW = re.compile(r"^\| `([^`]+)/`[^|]*\|[^|]*\| *([^|]*?) *\|$")
INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"')


def folder_names(rows):
    """Maps each folder's short name to its path: the table says `base` for src/base."""
    return {path.removeprefix("src/"): path for path in rows} | {path: path for path in rows}


def read_table(text):
    """Maps each folder of the table to what it may include: paths of folders and files, or None for everything."""
    rows = {}
    for line in text.splitlines():
        row = ROW.match(line)
        if row:
            rows[row[1]] = row[2]
    names = folder_names(rows)
    return {path: allowed_of(cell, names, rows) for path, cell in rows.items()}


def allowed_of(cell, names, rows):
    listed = re.findall(r"`([^`]+)`", cell)
    if cell.startswith("all but"):
        return set(rows) - {names[name] for name in listed}
    allowed = set()
    for name in listed:
        if name.rstrip("/") in names:
            allowed.add(names[name.rstrip("/")])
        else:
            allowed.add(resolve(name) or sys.exit(f"{TABLE}: there is no folder or file '{name}'"))
    return allowed


def resolve(included):
    for root in ROOTS:
        path = Path(root, included)
        if path.is_file():
            return path.as_posix()
    return None


def folder_of(path, table):
    """The row that a file belongs to: the deepest folder of the table above it."""
    rows = [row for row in table if path.startswith(row + "/") or (row.startswith("include/") and path.startswith(row))]
    return max(rows, key=len, default=None)


def violations(table, files):
    for file in files:
        folder = folder_of(file, table)
        if folder is None:
            yield f"{file}: its folder has no row in {TABLE}"
            continue
        for number, line in enumerate(Path(file).read_text().splitlines(), 1):
            include = INCLUDE.match(line)
            if not include:
                continue
            path = resolve(include[1])
            if path is None:
                yield f"{file}:{number}: '{include[1]}' is no file of the project"
            elif not may_include(table, folder, path):
                yield f"{file}:{number}: {folder}/ may not include {path}"


def may_include(table, folder, path):
    target = folder_of(path, table)
    return target == folder or path.startswith("include/") or path in table[folder] or target in table[folder]


def main():
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], check=True, capture_output=True, text=True).stdout.split()
    files = [path for path in tracked if re.search(r"\.(h|hpp|c|cpp|cu|cuh|inl)$", path) and Path(path).exists()]
    found = list(violations(read_table(TABLE.read_text()), files))
    for sentence in found:
        print(sentence, file=sys.stderr)
    print(f"include_violations={len(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
