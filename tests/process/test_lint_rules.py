"""The project's own lint rules find what they are there to find."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

TABLE = """
| folder | what | may include |
|---|---|---|
| `include/ckptengine/` | the interface | - |
| `src/base/` | errors | - |
| `src/agent/` | the agent | `base` |
"""


@pytest.fixture
def tree(tmp_path):
    """A small project: base and agent, which may include base."""
    write(tmp_path, "docs/architecture.md", TABLE)
    write(tmp_path, "src/base/error.hpp", "int error_number();\n")
    write(tmp_path, "src/agent/main.cpp", '#include "base/error.hpp"\nint main() { return error_number(); }\n')
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def write(tree, path, text):
    file = tree / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def check(tree, script):
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    return subprocess.run([sys.executable, SCRIPTS / script], cwd=tree, check=False, capture_output=True, text=True)


def test_an_include_that_the_table_allows_is_no_violation(tree):
    result = check(tree, "check_includes.py")
    assert (result.returncode, result.stdout) == (0, "include_violations=0\n")


def test_an_include_against_the_table_is_named_with_its_line(tree):
    write(tree, "src/base/upward.hpp", '#pragma once\n#include "agent/agent.hpp"\n')
    write(tree, "src/agent/agent.hpp", "")
    result = check(tree, "check_includes.py")
    assert (result.returncode, result.stdout) == (1, "include_violations=1\n")
    assert "src/base/upward.hpp:2: src/base/ may not include src/agent/agent.hpp" in result.stderr


def test_a_link_to_a_heading_that_exists_is_not_broken(tree):
    write(tree, "README.md", "See [the table](docs/table.md#what-is-in-it) and `[code](gone.md)`.\n")
    write(tree, "docs/table.md", "# What is in `it`?\n\nBack [to the top](#what-is-in-it).\n")
    result = check(tree, "check_links.py")
    assert (result.returncode, result.stdout, result.stderr) == (0, "broken_links=0\n", "")


@pytest.mark.parametrize(
    ("target", "why"),
    [("gone.md", "there is no such file"), ("docs/architecture.md#gone", "that file has no such heading")],
)
def test_a_link_to_nothing_is_named_with_its_line(tree, target, why):
    write(tree, "README.md", f"A line.\nSee [this]({target}).\n")
    result = check(tree, "check_links.py")
    assert (result.returncode, result.stdout) == (1, "broken_links=1\n")
    assert f"README.md:2: {target}: {why}" in result.stderr


def test_a_folder_without_a_row_is_a_violation(tree):
    write(tree, "src/new/thing.hpp", "")
    result = check(tree, "check_includes.py")
    assert result.returncode == 1
    assert "src/new/thing.hpp: its folder has no row" in result.stderr


def test_a_function_that_only_its_definition_mentions_is_uncalled(tree):
    write(
        tree,
        "src/base/error.cpp",
        '#include "base/error.hpp"\nint error_number() { return 1; }\nint unused() { return 2; }\n',
    )
    result = check(tree, "check_callers.py")
    assert (result.returncode, result.stdout) == (1, "uncalled=1\n")
    assert "src/base/error.cpp:3: nothing in the product calls unused()" in result.stderr


def test_an_exception_that_is_called_after_all_is_refused(tree):
    write(tree, "scripts/uncalled_allowed.txt", "error_number  for a reason\n")
    result = check(tree, "check_callers.py")
    assert result.returncode == 1
    assert "error_number() is called now, or no longer exists" in result.stderr
