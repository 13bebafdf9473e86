"""The commands `ckptd` and `ckptctl` of an installed package. Each runs the program of its name (exec). Also what the
launcher and the ranks agree on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent.parent

# Exit status of a rank that tells ckptrun to start all ranks anew together: nothing is stored, and its process cannot
# begin the job anew. It is EX_TEMPFAIL of sysexits.h.
BEGIN_ANEW = 75

# How to get a program or library that is missing.
REMEDY = (
    "install a wheel that has it (./dev wheel makes one, pip install WHEEL installs it) or, in a clone, run "
    "./dev build product"
)


def find_program(name: str) -> Path | None:
    """Finds the program `name` in the package, in the bundle around the package, or in the clone's release build.
    Returns None if it is in none of these."""
    places = [PACKAGE / "bin"]
    if PACKAGE.parent.name == "python":  # in other places, bin/ may hold this very command
        places += [ROOT / "bin", ROOT / "build" / "release" / "bin"]
    return next((place / name for place in places if os.access(place / name, os.X_OK)), None)


def _become(name: str) -> NoReturn:
    program = find_program(name)
    if program is None:
        sys.exit(
            f"{name}: this installation of ckptengine ({PACKAGE}) does not contain the program {name}. To get it, "
            f"{REMEDY}"
        )
    os.execv(program, [str(program), *sys.argv[1:]])


def ckptd() -> NoReturn:
    _become("ckptd")


def ckptctl() -> NoReturn:
    _become("ckptctl")
