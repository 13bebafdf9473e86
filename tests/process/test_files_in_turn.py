"""With several processes of pytest, the tests of a file run in one of them, so a fixture of a module is made once."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

FILE = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(6))
def test_of_a_file(number):
    with pathlib.Path(__file__).with_suffix(".ran").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def workers_by_file(folder: Path, *names: str) -> list[set[str]]:
    for name in names:
        (folder / f"{name}.py").write_text(FILE)
    words = ["-q", "-p", "no:cacheprovider", "-p", "files_in_turn", "-n", "2", "--dist", "loadscope", folder]
    subprocess.run([sys.executable, "-m", "pytest", *words], check=True, capture_output=True, timeout=60, cwd=folder,
                   env=os.environ | {"PYTHONPATH": str(ROOT / "scripts" / "testing")})
    ran = [(folder / f"{name}.ran").read_text().split() for name in names]
    assert [len(workers) for workers in ran] == [6] * len(names)
    return [set(workers) for workers in ran]


def test_tests_of_one_file_run_in_one_process(tmp_path):
    first, second = workers_by_file(tmp_path, "test_first", "test_second")
    assert len(first) == len(second) == 1 and first != second


def test_files_that_use_the_same_networks_run_in_one_process(tmp_path):
    first, second = workers_by_file(tmp_path, "test_netns", "test_network")
    assert len(first) == 1 and first == second
