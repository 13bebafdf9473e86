"""The Python environments in which the ways to checkpoint run. All share our torch; each has its other packages."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from .catalog import Entry

INSTALL_S = 600
ERROR = "ERROR: "  # before what pip says
DONE = "installed.txt"  # what was asked for


class NotInstalled(Exception):
    """Why a way cannot run here, as one sentence."""


def python_of(entry: Entry, folder: Path) -> Path:
    """Returns the Python interpreter for a way. Makes the way's environment in `folder` if it is missing."""
    if not entry.requirements:
        return Path(sys.executable)
    home = folder / entry.module
    python = home / "bin" / "python"
    wanted = "\n".join([sys.version, sysconfig.get_path("purelib"), *entry.requirements])
    done = home / DONE
    if not done.exists() or done.read_text() != wanted:
        print(f"installing {' '.join(entry.requirements)} into {home}", flush=True)
        _install(entry, home, python)
        done.write_text(wanted)
    return python


def _install(entry: Entry, home: Path, python: Path) -> None:
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([str(python), "-c", where]).strip())
    (packages / "torch_of_the_bench.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run([str(python), "-m", "pip", "install", "--quiet", "--progress-bar", "off", *entry.requirements])


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=True).stdout
    except subprocess.CalledProcessError as error:
        said = [line.removeprefix(ERROR) for line in (error.stderr or "").splitlines() if line.startswith(ERROR)]
        raise NotInstalled(f"it does not install: {said[-1] if said else error}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"it does not install: {error}") from None
