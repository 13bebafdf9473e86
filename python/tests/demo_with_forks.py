"""The demo, with trainers that are forks of it. It imports torch once, instead of each trainer:
demo_with_forks.py FOLDER ARGUMENTS..., where FOLDER has demo.py."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 (optimizers import it when they take a step)

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(FOLDER))
import cluster  # noqa: E402

start_program = cluster._start


class Fork(multiprocessing.get_context("fork").Process):
    """What the demo uses of subprocess.Popen."""

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        self.join(timeout_s)
        if self.exitcode is None:
            raise subprocess.TimeoutExpired(self.name, timeout_s)
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run(words: list[str], log: Path) -> None:
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")


def start(command: list, log: Path):
    if command[0] != sys.executable:
        return start_program(command, log)
    process = Fork(target=run, args=(list(map(str, command[1:])), log))
    process.start()
    return process


cluster._start = start
sys.argv = [str(FOLDER / "demo.py"), *sys.argv[2:]]
runpy.run_path(sys.argv[0], run_name="__main__")
