"""Lists functions of the product that nothing in the product mentions outside their declaration and definition.

What tests alone call counts as uncalled. Public functions (include/) need no caller. ALLOWED names functions that are
called in a way that text does not show, or whose caller comes later, with the reason. Prints each function, then
"uncalled=N". Status 1 where there is one, or where an entry of ALLOWED is out of date.
"""

import collections
import re
import subprocess
import sys
from pathlib import Path

FOLDERS = ["include", "kernels", "placement", "schedule", "src"]
ALLOWED = Path("scripts/uncalled_allowed.txt")  # "name  reason" per line
SOURCE = re.compile(r"\.(h|hpp|c|cpp|cu|cuh|inl)$")
WORD = re.compile(r"[A-Za-z_]\w*")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"')


def product_files():
    tracked = subprocess.run(["git", "ls-files", *FOLDERS], check=True, capture_output=True, text=True).stdout.split()
    return [path for path in tracked if SOURCE.search(path) and Path(path).exists()]


def functions(files):
    """Maps each function's name to its tags: {(path, line)}, of declarations and definitions."""
    command = ["ctags", "--languages=C++", "--langmap=C++:+.cu.cuh.inl.h", "--kinds-C++=fp", "-n", "-o", "-", "-L", "-"]
    listing = subprocess.run(command, check=True, input="\n".join(files), capture_output=True, text=True).stdout
    tags = collections.defaultdict(set)
    for line in listing.splitlines():
        if line.startswith("!"):
            continue
        name, path, number = line.split("\t")[:3]
        tags[name].add((path, int(number.split(";")[0])))
    return tags


def blank(match):
    """A comment's or text's lines, empty."""
    return "\n" * match[0].count("\n")


def mentions(files):
    """Maps each word to the places where code mentions it: [(path, line)], once for each mention."""
    places = collections.defaultdict(list)
    for path in files:
        code = COMMENT.sub(blank, TEXT.sub(blank, Path(path).read_text()))
        for number, line in enumerate(code.splitlines(), 1):
            for word in WORD.findall(line):
                places[word].append((path, number))
    return places


def is_ordinary(name):
    return WORD.fullmatch(name) and name != "main" and not name.startswith(("operator", "__"))


def is_override(path, line):
    return "override" in Path(path).read_text().splitlines()[line - 1]


def uncalled(files):
    places = mentions(files)
    public = {path for path in files if path.startswith("include/")}
    for name, tags in sorted(functions(files).items()):
        if not is_ordinary(name) or any(path in public for path, _ in tags):
            continue
        used = [place for place in places[name] if place not in tags]
        # A line may both declare and call it, as `int x() { return y.x(); }` does.
        doubled = [place for place, count in collections.Counter(places[name]).items() if place in tags and count > 1]
        if not used and not doubled and not any(is_override(*tag) for tag in tags):
            yield name, min(tags)


def read_allowed():
    if not ALLOWED.exists():
        return {}
    lines = [line.split(None, 1) for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#")]
    return {name: reason for name, reason in lines}


def main():
    allowed = read_allowed()
    found = dict(uncalled(product_files()))
    for name, (path, line) in sorted(found.items(), key=lambda item: item[1]):
        if name not in allowed:
            print(f"{path}:{line}: nothing in the product calls {name}(); remove it, or list it in {ALLOWED}",
                  file=sys.stderr)
    stale = sorted(set(allowed) - set(found))
    for name in stale:
        print(f"{ALLOWED}: {name}() is called now, or no longer exists; remove its line", file=sys.stderr)
    count = len(set(found) - set(allowed))
    print(f"uncalled={count}")
    return 1 if count or stale else 0


if __name__ == "__main__":
    sys.exit(main())
