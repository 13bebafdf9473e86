"""A trainer of test_gpu_replication.py, whose state is on a GPU or its test double: it restores and says what it has.
Then each line that it reads is an iteration and the value of all bytes, which it snapshots and says to be committed, or
"hang": what goes from its GPU gets no further.

    gpu_replication_trainer.py OPTIONS-AS-JSON
"""

from __future__ import annotations

import ctypes
import json
import logging
import sys

from ckptengine import DType, Engine, Memory, Stage
from cuda_trainer import Gpu, say

SIZE_BYTES = 3_000_017


def pageable_copies() -> int:
    """How many copies so far read or wrote memory that is not pinned; only a test double knows."""
    driver = ctypes.CDLL("libcuda.so.1")
    return driver.ckpt_double_pageable_copies() if hasattr(driver, "ckpt_double_pageable_copies") else 0


def main() -> None:
    options = json.loads(sys.argv[1])
    gpu = Gpu()
    stream = gpu.stream.value
    weights = gpu.allocate(SIZE_BYTES)
    engine = Engine(**options)
    engine.register_pointer("weights", weights, DType.U8, (SIZE_BYTES,), memory=Memory.DEVICE)
    before = pageable_copies()
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("ckptengine").addHandler(handler)
    start = engine.restore(stream)
    # Health is told there, too, and it is no news that a job begins.
    message = start.message + "".join(text for text in warnings if "host to host" in text)
    slow_copies = pageable_copies() - before
    values = sorted(set(gpu.read(weights, SIZE_BYTES))) if start.found else []
    say(iteration=start.iteration, values=values, message=message, slow_copies=slow_copies)
    for line in sys.stdin:
        if line.strip() == "hang":
            ctypes.CDLL("libnccl.so.2").ckpt_nccl_double_hang(-1, 1)
            continue
        iteration, value = map(int, line.split())
        gpu.fill(weights, value, SIZE_BYTES)
        ticket = engine.snapshot(iteration, stream)
        assert ticket.taken, ticket.message
        assert engine.before_update([stream])
        gpu.fill(weights, 255, SIZE_BYTES)  # the next update: right behind
        assert ticket.wait(Stage.COMMITTED, 100_000), ticket.message
        say(committed=iteration)
    engine.close()


if __name__ == "__main__":
    main()
