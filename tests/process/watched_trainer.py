"""A rank whose agent watches it. For test_watchdog.py.

It computes, and meets the other ranks three times in each iteration. A file FOLDER/COMMAND-RANK changes what it does:
`spin` computes without end and holds the interpreter lock, `slow` computes ten times as long, `pause` waits in a pause
while the file is there. It ends with the iteration that FOLDER/end names, and when its parent has ended."""

from __future__ import annotations

import mmap
import os
import re
import time
from pathlib import Path

from ckptengine import Engine

COMPUTING_S = 0.03
MEETINGS = 3


class Meeting:
    """Ranks that wait for each other, by counters in a file that all of them map."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.parent = os.getppid()
        with path.open("r+b") as file:
            self.counts = memoryview(mmap.mmap(file.fileno(), 8 * ranks)).cast("Q")
        self.rank = rank

    def meet(self) -> None:
        self.counts[self.rank] += 1
        while any(count < self.counts[self.rank] for count in self.counts):
            self.wait()

    def wait(self) -> None:
        time.sleep(0.001)
        if os.getppid() != self.parent:
            os._exit(1)


def main(folder: Path, rank: int, ranks: int, options: dict) -> None:
    meeting = Meeting(folder / "meeting", rank, ranks)
    has = lambda command: (folder / f"{command}-{rank}").exists()  # noqa: E731
    engine = Engine(**options)
    engine.register("state", bytearray(10_000))
    iteration = engine.restore().next_iteration
    end = folder / "end"
    while not end.exists() or iteration < int(end.read_text()):
        for _ in range(MEETINGS):
            if has("spin"):
                re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread in
            if has("pause"):
                with engine.pause("eval"):
                    while has("pause"):
                        meeting.wait()
            time.sleep(COMPUTING_S * (10 if has("slow") else 1))
            with engine.communication():
                meeting.meet()
        engine.before_update()
        engine.snapshot(iteration)
        iteration += 1
    engine.close()
