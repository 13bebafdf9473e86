"""A checkpoint on storage: what each rank stored, and the bytes of the shards."""

from __future__ import annotations

from pathlib import Path

from .._abi import Library
from .._stored import Checkpoint, Shard, open_checkpoint
from ._boxes import Parts
from ._index import RankState, main_of

_PRIVATE = ".private"


class Storage:
    """Reads a checkpoint from storage. Each rank reads by itself what it needs."""

    def __init__(self, library: Library, storage: Path, job: str) -> None:
        self._library, self._storage, self._job = library, storage, job
        self._checkpoint: Checkpoint | None = None
        self.iteration, self.world_size, self.name = -1, 0, ""

    def open(self, iteration: int | None) -> list[RankState]:
        self.close()
        self._checkpoint = open_checkpoint(self._library, self._storage, self._job, iteration)
        self.iteration = self._checkpoint.iteration
        self.world_size = self._checkpoint.world_size
        self.name = f"{self._checkpoint.folder} of incarnation {self._checkpoint.incarnation}"
        names = self._checkpoint.names()
        ranks = [
            self._rank(int(name[len("rank") : -len(_PRIVATE)]), name, names)
            for name in names
            if name.endswith(_PRIVATE) and name[len("rank") : -len(_PRIVATE)].isdigit()
        ]
        ranks.sort(key=lambda rank: rank.rank)
        claimed = {shard for rank in ranks for shard in rank.layouts}
        # Shards that no rank's private shard names. A program named them and did not store the name.
        ranks += [RankState(-1, name, None, {name: self._layout(name)}, bytes) for name in names if name not in claimed]
        return ranks

    def _rank(self, rank: int, private: str, names: list[str]) -> RankState:
        shared = [name for name in names if not name.endswith(_PRIVATE)]
        layout = self._layout(private)

        def small(name: str) -> bytes:
            shard = private if name in layout or main is None else main
            begin, end = self._layout(shard)[name]["data_offsets"]
            return bytes(self.shard(shard).read(begin, end))

        main: str | None = None
        main = main_of(layout, small)
        if main is None and f"rank{rank}" in names:
            main = f"rank{rank}"
        if main is None and len(shared) == 1:
            main = shared[0]
        layouts = {private: layout} if main is None else {main: self._layout(main), private: layout}
        return RankState(rank, main, private, layouts, small)

    def shard(self, name: str) -> Shard:
        assert self._checkpoint is not None
        return self._checkpoint.shard(name)

    def _layout(self, name: str) -> dict[str, dict]:
        return self.shard(name).layout

    def load(self, parts: Parts) -> None:
        """Reads the parts one after another. Calls each part's function once the part is read."""
        for wanted, done in parts:
            for shard, tensor, box, target in sorted(wanted, key=lambda one: (one[0], one[1].begin)):
                tensor.read(self.shard(shard).read, box, target)
            done()

    def close(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()
            self._checkpoint = None
