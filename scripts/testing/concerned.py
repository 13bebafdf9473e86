"""Which test programs a change concerns: those whose own sources changed, or the sources of a module that they name.

The build writes what each target is made of to targets.txt. A module that a test program reaches only through another
module is tested by its own programs.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_FOLDER = "include/ckptengine/"
LIBRARY = "ckptengine"  # libckptengine.so, which is no module
LIBRARY_FOLDERS = ("src/client/", PUBLIC_FOLDER)
# A change of these concerns the mutants that break the core.
CORE = ("src/core/", "src/sim/", "placement/", "tests/core/", "tests/mutants/")
SOURCES = (".c", ".cpp", ".cu", ".h", ".hpp", ".inl")


@dataclass
class Target:
    name: str
    folder: str
    sources: list[str]
    libraries: list[str]

    def folders(self) -> set[str]:
        """Where its sources are, each with a slash at its end."""
        files = [PurePosixPath(self.folder, source) for source in self.sources]
        return {f"{normal(file.parent)}/" for file in files}


def normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def read_targets(file: Path) -> dict[str, Target]:
    targets = {}
    for line in file.read_text().splitlines():
        name, folder, sources, libraries = line.split("|")
        targets[name] = Target(name, folder, sources.split(";"), libraries.split(";"))
    return targets


def is_test(target: Target) -> bool:
    return target.folder.startswith(("tests/", "fuzz"))


def concerned_programs(targets: dict[str, Target], changed: list[str]) -> list[str]:
    """Names of the test programs that a change of these files (paths in the tree) concerns."""
    sources = [file for file in changed if file.endswith(SOURCES)]
    return sorted(
        target.name
        for target in targets.values()
        if is_test(target) and any(concerns(file, target, targets) for file in sources)
    )


def concerns(file: str, test: Target, targets: dict[str, Target]) -> bool:
    own = f"{test.folder}/"
    if file.startswith(own):
        return file.endswith((".h", ".hpp", ".inl")) or file.removeprefix(own) in test.sources
    for library in test.libraries:
        folders = LIBRARY_FOLDERS if library == LIBRARY else targets[library].folders() if library in targets else ()
        if any(file.startswith(folder) for folder in folders):
            return True
    return False


def changed_files(since: str) -> list[str] | None:
    """Files that differ from revision `since`, also those not committed. If git cannot tell, None.

    If `since` is empty, it is the revision where the branch left origin's main branch or, on the main branch, the
    commit (or merge) before.
    """
    base = since or left_main_at() or "HEAD~1"
    differing = git("diff", "--name-only", base, "--")
    return None if differing is None else [*differing, *(git("ls-files", "--others", "--exclude-standard") or [])]


def left_main_at() -> str:
    base = git("merge-base", "HEAD", "origin/HEAD")
    return "" if not base or base == git("rev-parse", "HEAD") else base[0]


def git(*arguments: str) -> list[str] | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None
