"""What a trainer has written to its rank's control file, read as docs/formats.md describes it."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

BEGIN, END, ITERATION, BUBBLE_BEGIN, BUBBLE_END, UPDATE, COPY = 1, 2, 3, 4, 5, 6, 7
_CAPTURING, _COMM, _CHANNELS, _EVENTS, _EVENTS_MAX = 144, 4096, 4096 + 64, 4096 + 128, 4096
_ON_GPU, _ON_GPU_MAX = _EVENTS + 8 * _EVENTS_MAX, 1024
_PAUSES = _ON_GPU + 8 * _ON_GPU_MAX


class Event(NamedTuple):
    kind: int
    channel: int
    at_us: int


class CommWords:
    def __init__(self, job: dict, rank: int = 0) -> None:
        path = Path(job["arena_dir"]) / job["job"] / job["node"] / f"rank-{rank}.control"
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert len(self._map) == 49152

    def written(self) -> int:
        return self._word(_COMM)

    def channels(self) -> list[tuple[int, int]]:
        """Begun and ended, of each channel."""
        return [struct.unpack_from("<II", self._map, _CHANNELS + 8 * channel) for channel in range(8)]

    def is_busy(self) -> bool:
        return any(begun != ended for begun, ended in self.channels() + self.on_gpu())

    def is_capturing(self) -> bool:
        return self._word(_CAPTURING) != 0

    def on_gpu(self) -> list[tuple[int, int]]:
        """Begun and ended, of each place for a communication on the GPU's timeline."""
        return [struct.unpack_from("<II", self._map, _ON_GPU + 8 * place) for place in range(_ON_GPU_MAX)]

    def pauses(self) -> tuple[int, int, str]:
        """Begun and ended, and the name of the newest."""
        begun, ended, name = struct.unpack_from("<II32s", self._map, _PAUSES)
        return begun, ended, name.rstrip(b"\0").decode()

    def events(self, since: int = 0) -> list[Event]:
        """Those from number `since` on, which must still be there."""
        written = self.written()
        assert written - since <= _EVENTS_MAX
        return [self._event(index) for index in range(since, written)]

    def kinds(self, since: int = 0) -> list[tuple[int, int]]:
        """Of communications and iterations."""
        return [(event.kind, event.channel) for event in self.events(since) if event.kind <= ITERATION]

    def device_kinds(self, since: int = 0) -> list[int]:
        """Of bubbles, updates and iterations."""
        return [event.kind for event in self.events(since) if ITERATION <= event.kind < COPY]

    def _event(self, index: int) -> Event:
        word = self._word(_EVENTS + 8 * (index % _EVENTS_MAX))
        assert word >> 56 == (index // _EVENTS_MAX + 1) % 256, "not stored"
        return Event(word >> 50 & 7, word >> 53 & 7, word & (1 << 50) - 1)

    def _word(self, offset: int) -> int:
        return struct.unpack_from("<Q", self._map, offset)[0]
