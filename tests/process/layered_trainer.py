"""A rank whose captures are copied in layers, for test_layered_captures.py."""

from __future__ import annotations

import os
import signal
import time

from ckptengine import Engine, Stage

BYTES = 24 << 20
LEARNED = 6  # more than profile_iterations
DEADLINE_S = 60


def content(rank: int, iteration: int) -> bytearray:
    return bytearray([(17 * rank + iteration) % 251 + 1]) * BYTES


def until(condition) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0)


def wait_in_bubble(engine: Engine, seconds: float) -> None:
    engine.bubble_begin()
    time.sleep(seconds)
    engine.bubble_end()


def is_in_layers(engine: Engine, before) -> bool:
    """Whether the capture that was just begun follows a plan."""

    def has_begun() -> bool:
        now = engine.stats()
        return now.layered > before.layered or now.compute_bytes > before.compute_bytes

    until(has_begun)
    return engine.stats().layered > before.layered


def train(settings: dict) -> None:
    """Iterations in which a rank waits for most of the time. Rank 0 ends itself in a capture that is made in layers."""
    rank = settings["options"]["rank"]
    state = bytearray(BYTES)
    engine = Engine(**settings["options"])
    engine.register("state", state)
    engine.restore()
    for k in range(1000):
        state[:] = content(rank, k)
        before = engine.stats()
        ticket = engine.snapshot(k)
        assert ticket.taken, ticket.message
        if is_in_layers(engine, before) and k >= LEARNED and rank == 0:
            if settings["strikes_in_bubble"]:
                engine.bubble_begin()
                until(lambda before=before: engine.stats().bubble_bytes > before.bubble_bytes)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.01)
        wait_in_bubble(engine, 0.04)
        time.sleep(0.01)
        assert engine.before_update()
        assert ticket.wait(Stage.COMMITTED, 1000 * DEADLINE_S), ticket.message
