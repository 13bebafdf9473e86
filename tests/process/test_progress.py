"""What takes long says how far it is, also where nobody looks at a terminal."""

from __future__ import annotations

import os
import subprocess

from conftest import ROOT


def test_long_build_prints_progress_without_a_terminal(tmp_path):
    fifo = tmp_path / "end"
    os.mkfifo(fifo)
    script = f"""
command_name=build
source scripts/common.sh
patiently {tmp_path}/log "building release" sh -c 'echo "[12/345] Building x"; read line <{fifo}; exit "$line"'
"""
    running = subprocess.Popen(["bash", "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True,
                               env=os.environ | {"DEV_PROGRESS_S": "0.1"})
    while "building release" not in (line := running.stderr.readline()) or "step 12/345" not in line:
        assert line, "it ended, and said nothing"
    fifo.write_text("7\n")
    assert running.wait(60) == 1  # the command failed
    running.stderr.read()  # ends: nothing that is left holds it open
    running.stderr.close()
