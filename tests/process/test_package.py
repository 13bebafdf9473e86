"""The installed Python package finds its library and programs by itself, and says which command brings a missing one.

tests/wheel/test_wheel.py does it with the real wheel, in a bare system.
"""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, build_file_of

COMMAND = "#!{python}\nfrom ckptengine._programs import {name}\n{name}()\n"


@pytest.fixture
def installed(tmp_path):
    """The package as a wheel lays it out, and the environment of somebody who has installed it."""
    package = tmp_path / "site-packages" / "ckptengine"
    shutil.copytree(ROOT / "python" / "ckptengine", package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package / "bin", package / "lib", tmp_path / "bin"):
        folder.mkdir()
    for name in ("ckptd", "ckptctl"):
        shutil.copy(build_file_of(name), package / "bin")
        (tmp_path / "bin" / name).write_text(COMMAND.format(python=sys.executable, name=name))
        (tmp_path / "bin" / name).chmod(0o755)
    shutil.copy(build_file_of("libckptengine.so"), package / "lib" / "libckptengine.so.0")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTENGINE_", "PYTHON"))}
    environment |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHONPATH": str(package.parent)}

    def run(*command):
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=110
        )

    return package, run


def test_installed_package_finds_its_programs_without_options(installed):
    _, run = installed
    story = run(sys.executable, str(ROOT / "tests" / "wheel" / "job.py"))
    assert story.returncode == 0, story.stderr
    assert story.stdout.splitlines()[-1] == "restored iteration 5 on 2 of 2 ranks"


def test_missing_program_or_library_is_reported_with_the_command_that_installs_it(installed):
    package, run = installed
    (package / "bin" / "ckptctl").unlink()
    tool = run("ckptctl", "--version")
    assert tool.returncode == 1
    shutil.rmtree(package / "lib")
    library = run(sys.executable, "-c", "import ckptengine; ckptengine.load_library()")
    assert library.returncode == 1
    for said in (tool.stderr, library.stderr.splitlines()[-1]):
        assert "pip install" in said, said
        assert "./dev build" in said, said
        assert "\n" not in said.strip(), said


def test_missing_agent_is_reported_with_the_command_that_installs_it(installed, tmp_path):
    package, run = installed
    (package / "bin" / "ckptd").unlink()
    (tmp_path / "bin" / "ckptd").unlink()
    engine = f"ckptengine.Engine(job='none', rank=0, world_size=1, arena_dir={str(tmp_path)!r})"
    said = run(sys.executable, "-c", f"import ckptengine; {engine}").stderr.splitlines()[-1]
    assert "pip install" in said, said
    assert "./dev build" in said, said
