"""Environment variables: those of the engine give options, and those of others do no harm."""

import logging
import subprocess

from conftest import BUILD
from processes import build_file

DEADLINE_S = 60


def test_unknown_own_variable_gives_a_warning_and_others_are_ignored(cluster, monkeypatch, caplog):
    monkeypatch.setenv("CKPTENGINE_BANANAS", "3")
    monkeypatch.setenv("CKPT_DIR", "/ckpts")
    monkeypatch.setenv("CKPT_PATH", "/ckpts/last")
    with caplog.at_level(logging.WARNING, "ckptengine"), cluster.engine(copies=1) as engine:
        assert not engine.restore().found
    assert "CKPTENGINE_BANANAS" in caplog.text and "CKPT_" not in caplog.text
    agent_log = next(cluster.arena.glob("**/ckptd.log")).read_text()
    assert agent_log.count("CKPTENGINE_BANANAS") == 1 and "CKPT_" not in agent_log


def test_variable_of_an_earlier_release_is_ignored_with_a_warning(cluster, monkeypatch, caplog):
    monkeypatch.setenv("CKPT_COPIES", "many")
    with caplog.at_level(logging.WARNING, "ckptengine"), cluster.engine(copies=1) as engine:
        assert not engine.restore().found
    assert "CKPT_COPIES are not read any more; set CKPTENGINE_COPIES instead" in caplog.text


def test_a_member_hook_may_call_ckptctl(tmp_path):
    ckptctl, told = build_file(BUILD, "ckptctl"), tmp_path / "told"
    command = f"'{ckptctl}' hook released n1 --hook true --dry-run >'{told}' 2>&1"
    words = [ckptctl, "hook", "lost", "n0", "--reason", "silent", "--hook", command]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "true" in told.read_text() and "warning" not in told.read_text()
