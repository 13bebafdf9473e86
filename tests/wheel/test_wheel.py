"""The wheel that `./dev wheel` makes, in a bare Debian: no compiler, no network, only CPython with its venv.

Needs root, debootstrap and a Debian mirror; the nightly run has them. WHEEL names the wheel.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WHEEL = Path(os.environ["WHEEL"]).resolve()
ROOT = HERE.parents[1] / "build" / "wheel" / "root"
CLEAN = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="module")
def bare_debian():
    """Made once, and kept for the next run."""
    if not (ROOT / "made").exists():
        shutil.rmtree(ROOT, ignore_errors=True)
        packages = "python3,python3-venv,iproute2"
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", ROOT],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stdout[-2000:] + made.stderr
        (ROOT / "made").touch()
    shutil.copy(WHEEL, ROOT / "root")
    shutil.copy(HERE / "job.py", ROOT / "root")
    return ROOT


# In name spaces of its own: nothing of it is left, and there is no network but the loopback interface.
INSIDE = r"""
set -e
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
ip link set lo up
for compiler in cc gcc g++ clang; do ! command -v $compiler; done
rm -rf /opt/venv
python3 -m venv /opt/venv
/opt/venv/bin/pip install --quiet --no-index /root/WHEEL
export PATH=/opt/venv/bin:$PATH
cd /srv
ckptctl --version
python /root/job.py
"""


def test_pip_installed_wheel_restores_a_job_in_a_bare_system(bare_debian):
    inside = ["bash", "-c", INSIDE.replace("WHEEL", WHEEL.name)]
    story = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "chroot", bare_debian, *inside],
        env=CLEAN,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert story.returncode == 0, story.stdout + story.stderr
    assert story.stdout.splitlines()[-1] == "restored iteration 5 on 2 of 2 ranks"


def test_the_wheel_is_small_and_for_every_cpython():
    assert re.fullmatch(r"ckptengine-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl", WHEEL.name)
    assert WHEEL.stat().st_size < 40 << 20
