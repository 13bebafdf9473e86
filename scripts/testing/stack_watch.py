"""Writes down the stacks of tests that are about to run out of time, before their runner kills them."""

import subprocess
import threading
import time
from pathlib import Path

GRACE_S = 5  # how long before its timeout a test's stacks are taken
POLL_S = 1


def children_of(pid):
    pids = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids += [int(child) for child in listing.read_text().split()]
        except OSError:
            pass  # the thread has ended
    return pids


def with_descendants(pid):
    family = [pid]
    for member in family:
        family += children_of(member)
    return family


def command_line(pid):
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1])
    except OSError:
        return ()


def stacks(pid):
    command = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set pagination off", "-ex", "thread apply all bt"]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"no stacks: {problem}"
    return done.stdout or f"no stacks: {done.stderr.strip()[-500:]}"


class StackWatch:
    """While entered, watches `runner` and its children. `timeouts` maps a command line to its timeout in seconds."""

    def __init__(self, runner, timeouts, file):
        self._runner = runner
        self._timeouts = timeouts
        self._file = file
        self._first_seen = {}
        self._taken = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        while not self._stop.wait(POLL_S):
            for pid in [self._runner, *children_of(self._runner)]:
                key = (pid, command_line(pid))
                timeout_s = self._timeouts.get(key[1])
                if timeout_s is None or key in self._taken:
                    continue
                since = self._first_seen.setdefault(key, time.monotonic())
                if time.monotonic() - since >= timeout_s - min(GRACE_S, timeout_s / 2):
                    self._taken.add(key)
                    self._write(*key)

    def _write(self, pid, command):
        with open(self._file, "a") as file:
            for member in with_descendants(pid):
                file.write(f"--- out of time: {' '.join(command)}\n--- process {member}: ")
                file.write(f"{' '.join(command_line(member))}\n{stacks(member)}\n")
