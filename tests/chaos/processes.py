"""Programs of the build folder, and processes by their numbers."""

import os
import signal
import time
from pathlib import Path

DEADLINE_S = 30


def build_file(build, name):
    """A program or library of the build folder."""
    for folder in ("bin", "lib", "."):
        for path in sorted((build / folder).glob(name)):
            return path
    found = [path for path in sorted(build.glob(f"**/{name}")) if path.is_file()]
    if not found:
        raise FileNotFoundError(f"{name} is not under {build}; build it first")
    return found[0]


def process_state(pid):
    """The letter that the kernel gives a process ("R", "S", "T", "Z"...), or None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def has_ended(pid):
    return process_state(pid) in (None, "Z")


def agent_pids(job, node=None):
    """The agents of a job (of one of its nodes): the ckptd processes that say so in their arguments."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        of_job = words[0].endswith(b"ckptd") and f"job={job}".encode() in words
        if of_job and (node is None or f"node={node}".encode() in words):
            pids.append(int(entry.name))
    return pids


def kill_process(pid, sig=signal.SIGKILL):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def kill_agents(job):
    """All of them, also those that are started meanwhile."""
    end = time.monotonic() + DEADLINE_S
    while (pids := agent_pids(job)) and time.monotonic() < end:
        for pid in pids:
            kill_process(pid)
        time.sleep(0.01)
