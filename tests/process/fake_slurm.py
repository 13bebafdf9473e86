#!/usr/bin/env python3
"""Stands for srun and scontrol where there is no Slurm: nodes are names, and commands run on this machine.

A node that has a file of its name in FAKE_SLURM is dead: nothing runs there.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def srun(words: list[str]) -> int:
    options = list(itertools.takewhile(lambda word: word.startswith("--"), words))  # none has its value behind it
    command = words[len(options):]
    nodes = next(option for option in options if option.startswith("--nodelist=")).partition("=")[2].split(",")
    if any(is_dead(node) for node in nodes):
        print("srun: error: a node of the list is down", file=sys.stderr)
        return 1
    tasks = {}
    for rank, node in enumerate(nodes):
        environment = os.environ | {"SLURMD_NODENAME": node, "SLURM_PROCID": str(rank)}
        tasks[node] = subprocess.Popen(command, env=environment, start_new_session=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return await_all(tasks)
    finally:
        for task in tasks.values():
            kill(task)


def await_all(tasks: dict[str, subprocess.Popen]) -> int:
    """Until all have ended well, or one has not: then the others are killed."""
    while any(task.poll() is None for task in tasks.values()):
        for node, task in tasks.items():
            if is_dead(node):
                kill(task)
            if task.poll() not in (None, 0):
                return 1
        time.sleep(0.02)
    return 1 if any(task.returncode for task in tasks.values()) else 0


def kill(task: subprocess.Popen) -> None:
    try:
        os.killpg(task.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    task.wait()


def is_dead(node: str) -> bool:
    return (Path(os.environ["FAKE_SLURM"]) / node).exists()


def main() -> int:
    if Path(sys.argv[0]).name == "srun":
        return srun(sys.argv[1:])
    if sys.argv[1:3] != ["show", "hostnames"]:
        print(f"scontrol {' '.join(sys.argv[1:])}", file=sys.stderr)
        return 1
    print(sys.argv[3].replace(",", "\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
