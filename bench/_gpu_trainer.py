"""A training process for the kill -9 loop of gpu.py: checks what it was given back, then snapshots for ever.

    _gpu_trainer.py OPTIONS-AS-JSON SIZE-BYTES

Iteration k fills its tensor with the byte k % 251. Prints a line of JSON when it has restored, and after each capture.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]

from ckptengine import DType, Engine, Memory, Stage
from cuda_trainer import Gpu, say


def main() -> None:
    options, size_bytes = json.loads(sys.argv[1]), int(sys.argv[2])
    gpu = Gpu()
    stream = gpu.stream.value
    memory = gpu.allocate(size_bytes)
    engine = Engine(**options)
    engine.register_pointer("state", memory, DType.U8, (size_bytes,), memory=Memory.DEVICE)
    start = engine.restore(stream)
    intact = not start.found or gpu.read(memory, size_bytes) == bytes([start.iteration % 251]) * size_bytes
    say(found=start.found, iteration=start.iteration, intact=intact)
    for k in range(start.next_iteration, start.next_iteration + 1_000_000):
        gpu.fill(memory, k % 251, size_bytes)
        ticket = engine.snapshot(k, stream)
        engine.before_update([stream])
        if ticket.taken and ticket.wait(Stage.COMMITTED, 60_000):
            say(committed=k)


if __name__ == "__main__":
    main()
