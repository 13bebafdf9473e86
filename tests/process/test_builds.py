"""What can be built without the rest, and what says which build it is."""

import json
import re
import subprocess

from abi import ROOT
from conftest import build_file_of


def test_ckptctl_prints_the_versions_that_programs_of_a_job_must_share():
    printed = subprocess.run([build_file_of("ckptctl"), "--version"], capture_output=True, text=True, check=True)
    lines = dict(line.split(" ") for line in printed.stdout.splitlines())
    assert list(lines) == ["library", "wire", "agent_requests", "arena_format", "storage_format"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", lines.pop("library"))
    assert all(int(version) >= 1 for version in lines.values())


def test_library_alone_is_configured_without_the_agents_dependencies(tmp_path):
    """Where pkg-config knows of xxhash alone."""
    found = subprocess.run(
        ["pkg-config", "--variable=pcfiledir", "libxxhash"], capture_output=True, text=True, check=True
    ).stdout.strip()
    known = tmp_path / "pkgconfig"
    known.mkdir()
    (known / "libxxhash.pc").symlink_to(f"{found}/libxxhash.pc")

    def configure(folder, *options):
        return subprocess.run(
            ["cmake", "-S", ROOT, "-B", tmp_path / folder, "-G", "Ninja", "-DCKPT_CUDA=OFF", *options],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "PKG_CONFIG_LIBDIR": str(known)},
            capture_output=True,
            text=True,
            check=False,
        )

    with_agent = configure("whole")
    assert with_agent.returncode != 0
    assert "ucx" in (with_agent.stdout + with_agent.stderr).lower()
    alone = configure("alone", "-DCKPT_AGENT=OFF")
    assert alone.returncode == 0, alone.stderr
    sources = {entry["file"] for entry in json.loads((tmp_path / "alone/compile_commands.json").read_text())}
    folders = {source.removeprefix(f"{ROOT}/src/").split("/")[0] for source in sources if "/src/" in source}
    assert {"client", "arena", "base"} <= folders
    assert not folders & {"net", "coord", "persist", "agent", "cli", "sim"}

    tests_too = configure("tests", "-DCKPT_AGENT=OFF", "-DCKPT_BUILD_TESTS=ON")
    assert tests_too.returncode != 0
    assert "need the agent" in tests_too.stderr
