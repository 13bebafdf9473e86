"""A trainer of test_gpu_replication.py, whose state is on a GPU or its test double: it restores and says what it has.
Then each line that it reads is a command:

- an iteration and the value of all bytes: it takes a snapshot, and says when that is committed.
- "hang": what goes from its GPU gets no further. "corrupt": the first byte of each chunk that goes from its GPU is
  another one.
- "count": it says how many bytes went from host memory to its GPU since it restored.

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


def has_double() -> bool:
    return hasattr(ctypes.CDLL("libcuda.so.1"), "ckpt_double_reset")


def pageable_copies() -> int:
    """How many copies so far read or wrote memory that is not pinned; only the test double knows."""
    return ctypes.CDLL("libcuda.so.1").ckpt_double_pageable_copies() if has_double() else 0


class Traffic(ctypes.Structure):
    """ckpt_double_traffic in tests/cuda/double/control.h."""

    _fields_ = [("name", ctypes.c_char_p),
                *((name, ctypes.c_uint64) for name in ("count", "device_read_bytes", "device_written_bytes",
                                                       "to_host_bytes", "to_device_bytes"))]


def to_device_bytes() -> int:
    """How many bytes went from host memory to the GPU so far; only the test double knows."""
    sums, index, total = Traffic(), 0, 0
    while has_double() and ctypes.CDLL("libcuda.so.1").ckpt_double_traffic_at(
        ctypes.c_uint64(index), ctypes.byref(sums)
    ):
        total += sums.to_device_bytes
        index += 1
    return total


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
    counted_before = to_device_bytes()
    for line in sys.stdin:
        if line.strip() in ("hang", "corrupt"):
            getattr(ctypes.CDLL("libnccl.so.2"), f"ckpt_nccl_double_{line.strip()}")(-1, 1)
            continue
        if line.strip() == "count":
            say(to_device_bytes=to_device_bytes() - counted_before)
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
