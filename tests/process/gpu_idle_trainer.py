"""A rank of test_gpu_idle.py, whose state and time are those of a test double of a GPU: its stream computes, waits for
a neighbour, and computes again. The host runs ahead of it. Says what it has restored, and after each commit what was
copied when.

    gpu_idle_trainer.py OPTIONS-AS-JSON [strike]

strike: ends itself in a capture that is made in layers.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from ctypes import c_void_p

from ckptengine import DType, Engine, Memory, Stage
from cuda_trainer import Gpu, say

SIZE_BYTES = 24 << 20
LEARNED = 6  # more than profile_iterations
DEADLINE_S = 60


def value_of(iteration: int) -> int:
    return iteration % 250 + 1


@ctypes.CFUNCTYPE(None, c_void_p)
def spend_ms(ms: int) -> None:
    time.sleep(ms / 1000)


def strike_in_layers(engine: Engine, before) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (now := engine.stats()).layered == before.layered or now.bubble_bytes == before.bubble_bytes:
        assert time.monotonic() < deadline
        time.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    options, strikes = json.loads(sys.argv[1]), "strike" in sys.argv
    gpu = Gpu()
    stream = gpu.stream.value
    state = gpu.allocate(SIZE_BYTES)
    engine = Engine(**options)
    engine.register_pointer("state", state, DType.U8, (SIZE_BYTES,), memory=Memory.DEVICE)
    start = engine.restore(stream)
    say(iteration=start.iteration, values=sorted(set(gpu.read(state, SIZE_BYTES))) if start.found else [])
    for k in range(start.next_iteration, 1000):
        gpu.fill(state, value_of(k), SIZE_BYTES)
        before = engine.stats()
        ticket = engine.snapshot(k, stream)
        assert ticket.taken, ticket.message
        gpu.call("cuLaunchHostFunc", gpu.stream, spend_ms, c_void_p(10))
        with engine.communication(0, stream), engine.bubble(stream):
            gpu.call("cuLaunchHostFunc", gpu.stream, spend_ms, c_void_p(40))
        gpu.call("cuLaunchHostFunc", gpu.stream, spend_ms, c_void_p(20))
        if strikes and k >= LEARNED:
            strike_in_layers(engine, before)
        assert engine.before_update([stream])
        gpu.fill(state, 255, SIZE_BYTES)  # the next update: right behind
        assert ticket.wait(Stage.COMMITTED, 1000 * DEADLINE_S), ticket.message
        now = engine.stats()
        say(committed=k, layered=now.layered, late=now.layered_late, bubble_bytes=now.bubble_bytes)


if __name__ == "__main__":
    main()
