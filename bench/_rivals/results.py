"""What the runs found, as medians, as a table and as ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from .catalog import Entry

TIMES = ("blocking_ms", "first_ms", "restore_rank_ms", "restore_node_ms", "stop_ms")
OURS = "ours"
FLIPPED = {"back": "noticed, healed", "older": "noticed, older state", "nothing": "noticed, nothing restored"}
FLIPPED |= {"wrong bytes": "unnoticed"}
GOALS = {"rivals_blocking": (">=", 10), "rivals_restore": (">=", 3), "rivals_memory": ("<=", 1)}
LOST = {"older": "older state", "nothing": "lost"}


@dataclass
class Found:
    """The results of one way: figures by size in MiB, and what came back after faults."""

    entry: Entry
    figures: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    version: str = ""

    def add(self, mib: int, run: dict[str, Any]) -> None:
        """Adds the results of one run."""
        figures = self.figures.setdefault(mib, {})
        for key in (*TIMES, "memory"):
            if run.get(key) is not None:
                figures.setdefault(key, []).append(run[key])
        self.outcomes |= run["outcomes"]

    def median(self, mib: int, key: str) -> float | None:
        values = self.figures.get(mib, {}).get(key)
        return statistics.median(values) if values else None


class Results:
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.found: dict[str, Found] = {}
        self.skipped: dict[str, str] = {}  # by name of the way: why it was left out

    def add(self, entry: Entry, run: dict[str, Any]) -> None:
        """Adds what a driver found in one run, in all sizes."""
        found = self.found.setdefault(entry.name, Found(entry, version=run["version"]))
        for mib, of_size in run["sizes"].items():
            found.add(int(mib), of_size)

    def skip(self, entry: Entry, reason: str) -> None:
        self.skipped[entry.name] = reason
        self.found.pop(entry.name, None)

    @property
    def large(self) -> int:
        return max(self.sizes)

    def in_order(self) -> list[Found]:
        """Ours first, then by the time that a save blocks."""
        found = [found for found in self.found.values() if found.median(self.large, "blocking_ms") is not None]
        return sorted(found, key=lambda one: (one.entry.name != OURS, one.median(self.large, "blocking_ms")))

    # ---- the table ----

    def table(self) -> str:
        sizes = sorted(self.sizes, reverse=True)
        columns = [""]
        for text in ("blocking ms, {} MiB (first)", "restore ms after a killed rank, {} MiB"):
            columns += [text.format(mib) for mib in sizes]
        columns += [f"restore ms after a lost node, {mib} MiB" for mib in sizes]
        columns += ["memory", "a flipped bit", "a lost node", "all ranks killed"]
        lines = [_row(columns), _row(["---"] * len(columns))]
        return "\n".join(lines + [_row(self._cells(found, sizes)) for found in self.in_order()])

    def _cells(self, found: Found, sizes: list[int]) -> list[str]:
        entry, cells = found.entry, [f"{found.entry.title}{' ' if found.version else ''}{found.version}"]
        for mib in sizes:
            cells.append(f"{_ms(found.median(mib, 'blocking_ms'))} ({_ms(found.median(mib, 'first_ms'))})")
        for mib in sizes:
            flush = f" + {_ms(found.median(mib, 'stop_ms'))} to flush" if entry.flushes else ""
            cells.append(_ms(found.median(mib, "restore_rank_ms")) + flush)
        for mib in sizes:
            cells.append("-" if entry.on_storage else _ms(found.median(mib, "restore_node_ms")))
        memory = found.median(self.large, "memory")
        cells.append("-" if memory is None else f"{memory:.1f}x")
        outcomes = found.outcomes
        cells.append(_outcome(outcomes.get("flipped_bit"), FLIPPED))
        cells.append("as the storage" if entry.on_storage else _outcome(outcomes.get("lost_node"), LOST))
        cells.append(_outcome(outcomes.get("killed_all"), LOST))
        return cells

    # ---- the ratios ----

    def ratios(self) -> list[Ratio]:
        """The last four and their names stay as they are: others read them."""
        any_back = self._best("restore_rank_ms", lambda found: found.outcomes.get("killed_rank") == "back")
        return [
            self._over_ours("rivals_restore_node", self._best("restore_node_ms", _survives_node), "restore_node_ms"),
            self._over_ours(
                "rivals_blocking", self._best("blocking_ms", lambda found: found.entry.copies), "blocking_ms"
            ),
            self._over_ours("rivals_restore", any_back, "restore_rank_ms"),
            self._memory(),
            self._first(),
        ]

    def _ours(self, key: str) -> float | None:
        return self.found[OURS].median(self.large, key) if OURS in self.found else None

    def _best(self, key: str, counts: Callable[[Found], bool]) -> tuple[float, str] | None:
        """Returns the smallest figure of the rivals that count, and the rival that has it."""
        rivals = [found for found in self.found.values() if found.entry.name != OURS and counts(found)]
        values = [(found.median(self.large, key), found.entry.name) for found in rivals]
        return min(((value, name) for value, name in values if value is not None), default=None)

    def _over_ours(self, name: str, best: tuple[float, str] | None, key: str) -> Ratio:
        ours = self._ours(key)
        if best is None or ours is None:
            return Ratio(name, None, "there is nothing to compare")
        return Ratio(name, best[0] / ours, f"ours {ours:.2f}, {best[1]} {best[0]:.2f}, ms")

    def _memory(self) -> Ratio:
        best, ours = self._best("memory", _survives_node), self._ours("memory")
        if best is None or ours is None:
            return Ratio("rivals_memory", None, "no rival survived the loss of a node from memory")
        return Ratio("rivals_memory", ours / best[0], f"ours {ours:.2f}, {best[1]} {best[0]:.2f}, x state")

    def _first(self) -> Ratio:
        first, later = self._ours("first_ms"), self._ours("blocking_ms")
        if first is None or later is None:
            return Ratio("first_snapshot", None, "there is nothing to compare")
        return Ratio("first_snapshot", first / later, f"first {first:.2f}, later {later:.2f}, ms")


@dataclass(frozen=True)
class Ratio:
    name: str
    value: float | None
    parts: str

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.2f}"
        return f"ratio: {self.name} = {value} ({self.parts})"

    def goal(self) -> str | None:
        """The goal and whether it was reached, None if there is no goal or no value."""
        if self.name not in GOALS or self.value is None:
            return None
        sign, limit = GOALS[self.name]
        reached = self.value >= limit if sign == ">=" else self.value <= limit
        return f"`{self.name}` {sign} {limit:g} {'reached' if reached else 'missed'}"


def _survives_node(found: Found) -> bool:
    """True if the state came back from memory. Storage was not lost, so it does not count."""
    return found.entry.copies and found.outcomes.get("lost_node") == "back"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _outcome(outcome: str | None, words: dict[str, str]) -> str:
    if outcome is None:
        return "-"
    return words.get(outcome, outcome if outcome in ("back", "wrong bytes") else "fails")


def settings(entries: Iterable[Entry]) -> str:
    return "\n".join(f"- {entry.title}: {entry.settings}." for entry in entries)
