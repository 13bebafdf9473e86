"""Measures how much memory a driver, all processes that it has started, and its files in tmpfs take together."""

from __future__ import annotations

import os
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")
MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
SAMPLE_S = 0.03


def children_of(pid: int) -> list[int]:
    """All processes below a process."""
    children = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue  # it has ended
            children[parent].append(int(entry.name))
    found, left = [], [pid]
    while left:
        below = children[left.pop()]
        found += below
        left += below
    return found


def _process_bytes(pid: int) -> int:
    """A process's share of the memory that it maps. Leaves out named files in tmpfs, which are counted as files."""
    total_kib, counts = 0, True
    try:
        with open(PROC / str(pid) / "smaps") as smaps:
            for line in smaps:
                if MAPPING.match(line):
                    counts = "/dev/shm/" not in line or line.endswith("(deleted)\n")
                elif counts and line.startswith("Pss:"):
                    total_kib += int(line.split()[1])
    except OSError:
        pass  # it has ended
    return total_kib << 10


def bytes_now(files: Iterable[Path]) -> int:
    total = sum(_process_bytes(pid) for pid in [os.getpid(), *children_of(os.getpid())])
    for file in files:
        try:
            total += file.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # the file was removed meanwhile
    return total


class Peak:
    """Measures the most memory while a block runs. Sampling disturbs times, so nothing is timed in such a block."""

    def __init__(self, files: Callable[[], Iterable[Path]]) -> None:
        self._files = files
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.bytes = 0

    def _sample(self) -> None:
        while True:
            self.bytes = max(self.bytes, bytes_now(self._files()))
            if self._over.wait(SAMPLE_S):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
