"""Jobs of split_trainer.py that restart with another number of ranks, and their controls, which load what
torch.distributed.checkpoint (DCP) saved."""

from __future__ import annotations

import json
import math

from conftest import build_file_of
from rank_processes import run_ranks

STEP = 2  # iterations between restarts
NODES = [f"n{i}" for i in range(6)]


def train_rank(settings: dict) -> None:
    import split_trainer

    split_trainer.run(settings)


class Job:
    """`options`: more options of the engine."""

    def __init__(self, ranks, folder, cluster, **options) -> None:
        self.ranks, self.folder, self.cluster, self.options = ranks, folder, cluster, options
        self.starts = self.trained = 0
        self.saved = None  # by DCP, at the end of the last run

    def run(self, nodes: list[str], **changes) -> list[list[dict]]:
        """Runs the next iterations with a rank on each of the nodes. What each rank told."""
        place = self._place("job")
        told = self._run(place, len(nodes), {"save": str(place / "dcp")} | changes,
                         lambda rank: self._engine(rank, nodes))
        if all(events and "refused" not in events[0] for events in told):
            self.saved, self.trained = str(place / "dcp"), self.trained + STEP
        return told

    def control(self, world_size: int, **changes) -> list[list[dict]]:
        """The same iterations as the next run(), from what DCP saved."""
        return self._run(self._place("control"), world_size, {"save": None} | changes, lambda rank: None)

    def _place(self, name: str):
        self.starts += 1
        place = self.folder / f"{name}{self.starts}"
        place.mkdir()
        return place

    def _run(self, place, world_size: int, changes: dict, engine_of) -> list[list[dict]]:
        settings = [
            {"rank": rank, "world_size": world_size, "rendezvous": str(place / "rendezvous"), "width": 7,
             "is_larger": False, "parallel": None, "dies": None, "log": str(place / f"rank{rank}.log"),
             "engine": engine_of(rank), "first": self.trained, "until": self.trained + STEP,
             "load": self.saved} | changes
            for rank in range(world_size)
        ]  # fmt: skip
        run_ranks(self.ranks, train_rank, settings, victims=range(world_size))
        told = [[json.loads(line) for line in open(one["log"])] for one in settings]
        assert all(events[-1] == {"ended": True} for rank, events in enumerate(told) if rank != changes.get("dies"))
        return told

    def _engine(self, rank: int, nodes: list[str]) -> dict:
        engine = self.cluster.options(rank, len(nodes), node=nodes[rank], schedule="immediate",
                                      library=build_file_of("libckptengine.so"), restore_timeout_ms=60_000,
                                      claim_timeout_ms=20_000, **self.options)
        del engine["rank"], engine["world_size"]  # torch.distributed tells them
        return {key: value if isinstance(value, int) else str(value) for key, value in engine.items()}


def losses(told: list[list[dict]]) -> list[dict[int, tuple]]:
    return [{event["k"]: (event["loss"], event["rate"]) for event in events if "loss" in event} for events in told]


def assert_goes_on(told, first: int, stored: int, lossy: bool = False) -> None:
    failed = [event for events in told for event in events if event.get("committed") is False]
    assert not failed, failed[0]
    for rank, events in enumerate(told):
        begin = events[0]
        assert (begin["found"], begin["first"], begin["stored"]) == (True, first, stored), begin
        assert begin["adopted"] == (rank >= stored) and begin["lossy"] == lossy, begin
        changed = f"the world size changed from {stored} to {len(told)}"
        if stored == len(told):
            changed = "the ranks split the state in another way than before"
        assert changed in begin["message"], begin


def assert_resizes(job, *splits: dict[str, int], **changes) -> None:
    """The job trains with each split in turn, and goes on as after a load with DCP."""
    assert_goes_on_as_each(job, *({"split": split} | changes for split in splits))


def assert_goes_on_as_each(job, *trainings: dict) -> None:
    """The same, for trainings that differ in more than their splits."""
    sizes = [math.prod(training["split"].values()) for training in trainings]
    job.run(NODES[: sizes[0]], parallel=trainings[0])
    for before, after, training in zip(sizes, sizes[1:], trainings[1:], strict=False):
        expected, first = losses(job.control(after, parallel=training)), job.trained
        resized = job.run(NODES[:after], parallel=training)
        assert_goes_on(resized, first, before)
        assert losses(resized) == expected


def sentence_of(told: list[list[dict]], status: str = "MISMATCH") -> str:
    """With which all ranks were refused, except one that died."""
    begins = [events[0] for events in told if events]
    assert {begin["refused"] for begin in begins} == {status}
    assert len({begin["message"] for begin in begins}) == 1, begins
    return begins[0]["message"]
