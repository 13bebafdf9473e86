"""Programs of the build folder, and processes by their numbers."""

import contextlib
import os
import signal
import time
from pathlib import Path

DEADLINE_S = 30
LISTENING = "0A"  # as the kernel's tables of sockets say it


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


def listening_ports(pid):
    """TCP ports of a process, on whatever interface."""
    sockets, ports = set(), set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                sockets.add(os.readlink(descriptor))
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and f"socket:[{words[9]}]" in sockets:
                    ports.add(int(words[1].rpartition(":")[2], 16))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended
    return sorted(ports)


def cpu_seconds(pid):
    """Processor time that a process has spent so far, or None when there is none."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


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
