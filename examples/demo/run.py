"""One training run of the demo over one or more incarnations, and what its ranks told."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import Cluster, DemoFailure
from report import Progress

POLL_S = 0.02
SILENCE_S = 120  # nothing heard of any rank for so long is a failure


def find_programs(library: Path) -> dict[str, Path]:
    """The library, and ckptd and ckptctl beside it in the build tree or an installation."""
    library = library.resolve()
    folders = [parent / "bin" for parent in library.parents[:4]]
    for folder in folders:
        if (folder / "ckptd").exists():
            return {"library": library, "ckptd": folder / "ckptd", "ckptctl": folder / "ckptctl"}
    raise DemoFailure(f"ckptd was found in none of {', '.join(map(str, folders))}; './dev build' makes it")


@dataclass
class Incarnation:
    """What every rank told between one start of the trainers and their end."""

    protocols: list[Path]
    started_at_s: float
    restored: dict[int, dict] = field(default_factory=dict)
    iterations: dict[int, list[dict]] = field(default_factory=dict)  # by rank
    _offsets: dict[int, int] = field(default_factory=dict)

    def read(self) -> bool:
        """Takes in new lines; False when there were none."""
        news = False
        for rank, path in enumerate(self.protocols):
            for event in self._new_events(rank, path):
                news = True
                if event["event"] == "restored":
                    self.restored[rank] = event
                else:
                    self.iterations.setdefault(rank, []).append(event)
        return news

    def _new_events(self, rank: int, path: Path) -> Iterator[dict]:
        try:
            with open(path) as file:
                file.seek(self._offsets.get(rank, 0))
                text = file.read()
        except FileNotFoundError:
            return
        whole = text.rfind("\n") + 1
        self._offsets[rank] = self._offsets.get(rank, 0) + len(text[:whole].encode())
        for line in text[:whole].splitlines():
            yield json.loads(line)

    def reached(self, ranks: int) -> int:
        """Iterations that all ranks have finished, counted from 0; -1 for none."""
        if len(self.iterations) < ranks:
            return -1
        return min(events[-1]["k"] for events in self.iterations.values())


class Run:
    def __init__(self, cluster: Cluster, settings: dict[str, Any], progress: Progress) -> None:
        self.cluster = cluster
        self.settings = settings
        self.progress = progress
        self.incarnations: list[Incarnation] = []
        self.killed_at_s = 0.0
        self.milestones: list[tuple[str, float]] = []  # after the kill: what agents did, and when

    def reach(self, milestone: str, at_s: float) -> None:
        self.milestones.append((milestone, at_s))

    def live(self, placement: dict[int, str | None], kill: tuple[int, list[str], float] | None = None) -> None:
        """Trains until the end, or until the nodes `kill[1]` were killed when the part `kill[2]` of iteration `kill[0]`
        was done and the other trainers were stopped."""
        started_at_s = time.monotonic()
        incarnation = Incarnation(self.cluster.start_trainers(placement, self.settings), started_at_s)
        self.incarnations.append(incarnation)
        heard = time.monotonic()
        while not self.cluster.trainers_done():
            if incarnation.read():
                heard = time.monotonic()
                self._show(incarnation, len(placement))
                if kill is not None and incarnation.reached(len(placement)) >= kill[0] - 1:
                    time.sleep(kill[2] * self._iteration_s(incarnation))
                    self.killed_at_s = time.monotonic()
                    self.cluster.kill_nodes(kill[1])
                    self.cluster.stop_trainers()
                    incarnation.read()
                    return
            rank = self.cluster.failed_trainer()
            if rank is not None:
                raise DemoFailure(f"rank {rank} failed\n{self.cluster.trainer_log(rank, self.settings['name'])}")
            if time.monotonic() > heard + SILENCE_S:
                raise DemoFailure(
                    f"no rank said anything for {SILENCE_S} s\n{self.cluster.trainer_log(0, self.settings['name'])}"
                )
            time.sleep(POLL_S)
        incarnation.read()
        self.cluster.stop_trainers()
        self.progress.clear()

    def _iteration_s(self, incarnation: Incarnation) -> float:
        return statistics.median(event["ms"] for event in incarnation.iterations[0][-9:]) / 1e3

    def _show(self, incarnation: Incarnation, ranks: int) -> None:
        k = incarnation.reached(ranks)
        if k >= 0:
            loss = float.fromhex(incarnation.iterations[0][-1]["loss"])
            note = f"loss {loss:.3f}  {incarnation.iterations[0][-1]['ms']:.0f} ms"
            self.progress.bar(self.settings["name"], k + 1, self.settings["iterations"], note)

    # ---- what was found ----

    def events(self) -> Iterator[dict]:
        for incarnation in self.incarnations:
            for events in incarnation.iterations.values():
                yield from events

    def values(self, key: str) -> list[float]:
        """A figure over all ranks and iterations. Each incarnation's first two iterations warm up, and are left out."""
        found = []
        for incarnation in self.incarnations:
            for events in incarnation.iterations.values():
                found += [event[key] for event in events[2:] if event.get(key) is not None]
        return found

    def count_snapshots(self) -> tuple[int, int]:
        """Taken and skipped, over all ranks."""
        said = [event.get("snapshot") for event in self.events()]
        return said.count("OK"), said.count("SKIPPED")

    def failed_snapshots(self) -> list[str]:
        said = {event["snapshot"] for event in self.events() if event.get("snapshot") not in (None, "OK", "SKIPPED")}
        return sorted(said)

    def bytes_captured(self) -> int:
        """By all ranks in all incarnations."""
        last = [events[-1] for incarnation in self.incarnations for events in incarnation.iterations.values()]
        return sum(event.get("bytes_captured", 0) for event in last)

    def restored(self) -> dict[int, dict]:
        """What restore() did in the last incarnation, by rank."""
        return self.incarnations[-1].restored

    def recovery(self) -> list[tuple[str, float, float]]:
        """Seconds from the kill until all ranks have trained again, by part: how long it took, and when it was over. Of
        the ranks the last one counts. Agents detect and repair while trainers start: a part begins when the one before
        it in this list was over."""
        incarnation = self.incarnations[-1]
        last = max(incarnation.restored.values(), key=lambda event: event["at_s"])
        load_s = last["load_ms"] / 1e3
        called_at_s = max(event["at_s"] - event["ms"] / 1e3 for event in incarnation.restored.values())
        trained_at_s = max(events[0]["at_s"] for events in incarnation.iterations.values())
        times = [
            ("trainers stopped and started again", called_at_s),
            ("fetched", last["at_s"] - load_s),
            ("loaded", last["at_s"]),
            ("first iteration", trained_at_s),
        ]
        times += [(what, at_s) for what, at_s in self.milestones if at_s < trained_at_s]
        times.sort(key=lambda part: part[1])
        began = [self.killed_at_s, *(at_s for _, at_s in times)]
        return [
            (name, at_s - before, at_s - self.killed_at_s) for (name, at_s), before in zip(times, began, strict=False)
        ]

    def _losses(self, incarnation: Incarnation) -> dict[int, float]:
        return {event["k"]: float.fromhex(event["loss"]) for event in incarnation.iterations.get(0, [])}

    def mean_losses(self) -> dict[int, float]:
        return self._losses(self.incarnations[0])

    def mean_losses_by_incarnation(self) -> list[dict[int, float]]:
        return [self._losses(incarnation) for incarnation in self.incarnations]

    def first_loss(self) -> float:
        return next(iter(self._losses(self.incarnations[0]).values()))

    def last_loss(self) -> float:
        return list(self._losses(self.incarnations[-1]).values())[-1]

    def differences(self, reference: Run) -> list[str]:
        """Where a loss is not, bit for bit, that of the reference run; or was not there at all."""
        expected = {event["k"]: event["loss"] for event in reference.incarnations[0].iterations[0]}
        found = []
        for number, incarnation in enumerate(self.incarnations, 1):
            for rank, events in sorted(incarnation.iterations.items()):
                for event in events:
                    if event["loss"] != expected[event["k"]]:
                        found.append(
                            f"incarnation {number}, rank {rank}, iteration {event['k']}: loss {event['loss']} "
                            f"instead of {expected[event['k']]}"
                        )
        seen = {event["k"] for event in self.events()}
        found += [f"iteration {k} was never trained" for k in sorted(expected.keys() - seen)]
        return found
