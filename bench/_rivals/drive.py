"""Drives one way to checkpoint through one run: saves, then faults. Prints one line of JSON with the figures by size.

bench/rivals.py starts it with the Python of the way's own environment: python -m _rivals.drive --help
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import mmap
import os
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import time
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .catalog import WAYS, Entry
from .memory import Peak, bytes_now, children_of
from .ranks import Failed, Ranks, content, end_processes
from .way import WORLD_SIZE, Nodes, Place, Way

PR_SET_CHILD_SUBREAPER = 36
MIB = 1 << 20
COMPUTING_S_PER_GIB = 1.0  # how long an iteration computes. A GPU would, so the host sleeps
COMPUTING_S = 0.1  # the least
LOG_CHARACTERS = 3000  # how much of each log to print after a failure
LOST = 0  # number of the rank and of the node that faults strike

# What a restore after a fault brought. Any other text says how a rank failed.
BACK = "back"
OLDER = "older"
NOTHING = "nothing"
WRONG = "wrong bytes"
SAVES_MAX = 20  # how many saves in a row may be skipped


def keep_orphans() -> None:
    """Makes this process the parent of processes whose parent was killed, so that it can find and end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Run:
    def __init__(self, way_type: type[Way], nodes: Nodes, mib: int, saves: int) -> None:
        self._nodes = nodes
        self._ranks = Ranks(way_type, nodes, mib * MIB)
        self._way_type = way_type
        self._state_bytes = WORLD_SIZE * mib * MIB
        self._computing_s = max(COMPUTING_S, COMPUTING_S_PER_GIB * mib / 1024)
        self._saves = saves
        self._iteration = 0
        self._is_saved = False  # whether this incarnation has saved
        self.found: dict[str, Any] = {"outcomes": {}}

    def close(self) -> None:
        self._ranks.close()

    def measure_saves(self) -> None:
        """The first incarnation: what saves cost."""
        self._ranks.start()
        before_bytes = bytes_now(self._nodes.files())
        self._nodes.start()
        self._ranks.begin()
        self._ranks.ask("restore")
        blocked = [self._save() for _ in range(1 + self._saves)]
        self.found |= {"first_ms": blocked[0], "blocking_ms": statistics.median(blocked[1:])}
        with Peak(self._nodes.files) as peak:
            self._save()
        self.found["memory"] = (peak.bytes - before_bytes) / self._state_bytes

    def kill_all_ranks(self) -> None:
        self._be_saved()
        self._ranks.kill(list(range(WORLD_SIZE)))
        self._restart("killed_all")

    def kill_a_rank(self) -> None:
        self._be_saved()
        self._ranks.kill([LOST])
        if not self._way_type.survivors_go_on:
            self.found["stop_ms"] = self._ranks.stop()
        self.found["restore_rank_ms"] = self._restart("killed_rank")

    def lose_a_node(self) -> None:
        self._be_saved()
        self._ranks.kill([LOST])
        if not self._way_type.survivors_go_on:
            self._ranks.stop()
        self._nodes.lose(LOST)
        self.found["restore_node_ms"] = self._restart("lost_node")

    def flip_a_bit(self) -> None:
        self._be_saved()
        if self._way_type.survivors_go_on:
            self._ranks.ask("flip_a_bit", of=[1 - LOST])
            self._ranks.kill([LOST])
        else:
            self._ranks.stop()
            flip_a_bit(self._nodes, LOST, self._iteration)
        self._restart("flipped_bit")

    def end(self) -> None:
        self._ranks.ask("close")

    def _be_saved(self) -> None:
        if not self._is_saved:
            self._save()

    def _save(self) -> float:
        """Iterations until one of them is saved. Returns the longest time that training stood still in one, in ms."""
        longest_ms = 0.0
        for _ in range(SAVES_MAX):
            stood_still_ms, is_saved = self._iterate()
            longest_ms = max(longest_ms, stood_still_ms)
            if is_saved:
                self._is_saved = True
                return longest_ms
        raise Failed(f"{SAVES_MAX} saves in a row were skipped")

    def _iterate(self) -> tuple[float, bool]:
        """One iteration. How long training stood still on the slower rank, in ms, and whether all ranks were saved."""
        self._iteration += 1
        self._ranks.ask("update", self._iteration)
        saving = self._ranks.ask("save", self._iteration)
        time.sleep(self._computing_s)
        updating = self._ranks.ask("before_update")
        is_saved = not any(self._ranks.ask("was_skipped"))
        if is_saved:
            self._ranks.ask("wait")
        return max(map(sum, zip(saving, updating, strict=True))), is_saved

    def _restart(self, fault: str) -> float | None:
        """The next incarnation. Notes what came back. Returns how long that took on the slower rank, in ms."""
        outcome, took_ms = NOTHING, None
        self._is_saved = False
        try:
            self._ranks.start()
            self._ranks.begin()
            answers = self._ranks.ask("restore")
            if any(iteration is not None for _, iteration in answers):
                outcome = self._outcome({iteration for _, iteration in answers})
                took_ms = max(ms for ms, _ in answers)
        except Failed as failure:
            outcome = str(failure)
            self._ranks.close()
            self._ranks.start()
            self._ranks.begin()
            self._ranks.ask("restore")
        self.found["outcomes"][fault] = outcome
        return took_ms

    def _outcome(self, iterations: set[int | None]) -> str:
        if len(iterations) != 1 or not all(self._ranks.ask("is_state_of", *iterations)):
            return WRONG
        return BACK if iterations == {self._iteration} else OLDER


def flip_a_bit(nodes: Nodes, rank: int, iteration: int) -> None:
    """Flips a bit in the middle of a rank's stored state, in the copy that a restore reads first."""
    pattern = struct.pack("<f", content(rank, iteration)) * 64
    for path in nodes.copies_of(rank):
        if path.stat().st_size < len(pattern):
            continue
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            at = memory.find(pattern)
            if at >= 0:
                memory[at + len(pattern) // 2] ^= 1
                return
    raise Failed(f"the stored state of rank {rank} was not found")


def drive(entry: Entry, way_type: type[Way], place: Place, mib: int, arguments: argparse.Namespace) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        nodes = way_type.nodes_type(place)
        stack.callback(nodes.close)
        run = Run(way_type, nodes, mib, arguments.saves)
        stack.callback(run.close)
        run.measure_saves()
        if arguments.all_faults:
            run.kill_all_ranks()  # the first fault, because lm-resiliency would restore what it flushed at earlier ones
        run.kill_a_rank()
        if not entry.on_storage:
            run.lose_a_node()
        if arguments.all_faults:
            run.flip_a_bit()
        run.end()
        return run.found


def drive_in_folder(entry: Entry, mib: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the way, and removes its processes and files however that ends."""
    way_type = getattr(importlib.import_module(f"{__package__}.{entry.module}"), entry.type)
    programs = {name: Path(path) for name, path in arguments.programs.items()}
    name = f"rivals-{uuid.uuid4().hex[:8]}"
    root = Path(tempfile.mkdtemp(prefix=f"ckptengine-{name}-", dir="/dev/shm"))
    try:
        return drive(entry, way_type, Place(root, name, programs), mib, arguments)
    except (Failed, OSError, RuntimeError, SystemExit) as error:
        for log in sorted(root.rglob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-LOG_CHARACTERS:]}", file=sys.stderr)
        if isinstance(error, SystemExit):
            raise
        return {"failure": f"{type(error).__name__}: {error}"}
    finally:
        end_processes(children_of(os.getpid()))
        shutil.rmtree(root, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("way", choices=[entry.name for entry in WAYS])
    parser.add_argument("--mib", type=int, action="append", required=True, help="state per rank; may be repeated")
    parser.add_argument("--saves", type=int, default=2, help="after the first")
    parser.add_argument(
        "--all-faults", action="store_true", help="with the first size, also flip a bit, kill all ranks"
    )
    parser.add_argument("--programs", type=json.loads, default={}, help="of ckptengine, as JSON")
    arguments = parser.parse_args()
    keep_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that the clean-up runs
    entry = next(entry for entry in WAYS if entry.name == arguments.way)
    found: dict[str, Any] = {"version": version(entry.package) if entry.package else "", "sizes": {}}
    for mib in arguments.mib:
        found["sizes"][mib] = drive_in_folder(entry, mib, arguments)
        arguments.all_faults = False
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.exit(main())
