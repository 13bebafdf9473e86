"""A training process for the kill -9 loop of gpu.py: checks the restored state, then takes snapshots for ever.

    _gpu_trainer.py OPTIONS-AS-JSON SIZE-BYTES

Iteration k fills the tensor with noise from a place that depends on k. So the bytes show the iteration and where in the
tensor they belong. Prints a line of JSON when it has restored, and after each commit.
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]

from ckptengine import DType, Engine, Memory, Stage
from cuda_trainer import Gpu, say

PERIOD_BYTES = 1_048_583  # a prime, so no two leaves of 64 KiB are equal within 2^16 periods


class State:
    """The tensor on the GPU, and what it holds in each iteration."""

    def __init__(self, gpu: Gpu, size_bytes: int) -> None:
        self.gpu = gpu
        self.size_bytes = size_bytes
        self.pointer = gpu.allocate(size_bytes)
        self.noise = random.Random(1).randbytes(PERIOD_BYTES) * (size_bytes // PERIOD_BYTES + 2)
        self.noise_address = ctypes.cast(self.noise, ctypes.c_void_p).value

    def update(self, k: int) -> None:
        source = ctypes.c_void_p(self.noise_address + self._start(k))
        size_bytes, stream = ctypes.c_size_t(self.size_bytes), self.gpu.stream
        self.gpu.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(self.pointer), source, size_bytes, stream)

    def holds(self, k: int) -> bool:
        start = self._start(k)
        return self.gpu.read(self.pointer, self.size_bytes) == self.noise[start : start + self.size_bytes]

    @staticmethod
    def _start(k: int) -> int:
        return k * 7919 % PERIOD_BYTES


def main() -> None:
    options, size_bytes = json.loads(sys.argv[1]), int(sys.argv[2])
    gpu = Gpu()
    stream = gpu.stream.value
    state = State(gpu, size_bytes)
    engine = Engine(**options)
    engine.register_pointer("state", state.pointer, DType.U8, (size_bytes,), memory=Memory.DEVICE)
    start = engine.restore(stream)
    say(found=start.found, iteration=start.iteration, intact=not start.found or state.holds(start.iteration))
    state.update(start.next_iteration)
    for k in range(start.next_iteration, start.next_iteration + 1_000_000):
        ticket = engine.snapshot(k, stream)
        engine.before_update([stream])
        state.update(k + 1)  # at once: a capture still under way must have read these bytes before
        gpu.call("cuStreamSynchronize", gpu.stream)
        if ticket.taken and ticket.wait(Stage.COMMITTED, 60_000):
            say(committed=k, capture_s=1e-3 * engine.stats().capture_ms)


if __name__ == "__main__":
    main()
