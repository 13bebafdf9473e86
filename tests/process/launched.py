"""ckptrun for tests: its launchers, what they print, and the ranks that they have started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from conftest import ROOT
from processes import kill_process

DEADLINE_S = 60
RANK = Path(__file__).with_name("ckptrun_rank.py")


def until(is_so, told=lambda: ""):
    deadline = time.monotonic() + DEADLINE_S
    while not (found := is_so()):
        assert time.monotonic() < deadline, told()
        time.sleep(0.01)
    return found


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


class Launcher:
    """One ckptrun, and what it prints."""

    def __init__(self, words: list, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "ckptengine.run", *map(str, words)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.pid = self.process.pid
        self._lines: list[str] = []
        self._reader = threading.Thread(target=lambda: self._lines.extend(iter(self.process.stdout.readline, "")))
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(list(self._lines))

    def await_text(self, pattern: str) -> str:
        return until(lambda: re.search(pattern, self.text, re.MULTILINE), lambda: f"{pattern}\n{self.text}")[0]

    def end(self) -> int:
        status = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return status


class Job:
    """A folder, the launchers of a job, and the ranks that they have started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launchers: list[Launcher] = []
        (folder / "preloaded_for_tests.py").touch()
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTENGINE_", "OMP_"))}
        path = os.pathsep.join([str(ROOT / "python"), str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = kept | {"PYTHONPATH": path}

    def launch(self, *options, words=(), script=RANK) -> Launcher:
        given = ["--preload", "preloaded_for_tests", "--shutdown-timeout", 20, *options, script, self.folder, *words]
        self.launchers.append(Launcher(given, self.environment))
        return self.launchers[-1]

    def started(self, rank: int) -> list[dict]:
        path = self.folder / f"started-{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def await_started(self, rank: int, times: int = 1) -> dict:
        return self.until(lambda: len(self.started(rank)) >= times and self.started(rank)[times - 1])

    def pids(self, ranks: int) -> list[int]:
        return [self.await_started(rank)["pid"] for rank in range(ranks)]

    def told(self) -> str:
        return "\n".join(launcher.text for launcher in self.launchers)

    def until(self, is_so):
        """Waits, and fails once no launcher runs any more."""

        def is_so_or_ended():
            found = is_so()
            ended = [launcher.process.poll() is not None for launcher in self.launchers]
            assert found or not ended or not all(ended), self.told()
            return found

        return until(is_so_or_ended, self.told)

    def do(self, name: str) -> None:
        (self.folder / name).touch()

    def close(self) -> None:
        for launcher in self.launchers:
            for pid in (*children(launcher.pid), launcher.pid):
                kill_process(pid)
            launcher.end()
