"""The binding: buffers in, the same bytes out, and every failure as one clear sentence."""

from __future__ import annotations

import array
import gc
import json
import logging
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from ckptengine import Capture, Engine, Error, Stage, Status, Tier, load_library
from comm_words import BEGIN, BUBBLE_BEGIN, BUBBLE_END, END, ITERATION, UPDATE, CommWords


def status_of(call, *arguments, **options) -> tuple[Status, str]:
    with pytest.raises(Error) as caught:
        call(*arguments, **options)
    return caught.value.status, str(caught.value)


def test_library_reports_its_version(library):
    assert load_library(library).version() == "0.1.0"


def test_missing_library_is_named():
    with pytest.raises(OSError, match=r"/nowhere/libckptengine.so"):
        load_library("/nowhere/libckptengine.so")
    with pytest.raises(OSError, match=r"libc.so.6 is not the library that this Python package is for .*; rebuild it"):
        load_library("libc.so.6")


def test_buffers_of_all_kinds_are_restored(job):
    def buffers() -> dict:
        return {
            "f32": np.zeros((3, 5), np.float32),
            "u64": np.zeros(7, np.uint64),
            "scalar": np.zeros((), np.float64),
            "empty": np.zeros((0, 4), np.int16),
            "bytes": bytearray(11),
            "array": array.array("q", [0] * 9),
        }

    source = buffers()
    random = np.random.default_rng(3)
    for buffer in source.values():
        flat = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else b""
        if flat:
            flat[:] = random.bytes(len(flat))
    with Engine(**job) as engine:
        for name, buffer in source.items():
            engine.register(name, buffer, capture=Capture.SYNCHRONOUS if name == "bytes" else Capture.OVERLAPPED)
        start = engine.restore()
        assert (start.found, start.iteration, start.next_iteration) == (False, -1, 0)
        ticket = engine.snapshot(0)
        assert ticket.taken and engine.before_update()
        assert ticket.wait(Stage.COMMITTED, 20_000) and ticket.stage >= Stage.COMMITTED
        assert engine.stats().committed_iteration == 0

    target = buffers()
    with Engine(**job) as engine:
        layout = engine.stored_layout()
        assert layout["found"] and layout["iteration"] == 0
        assert layout["main"]["f32"]["dtype"] == "F32" and layout["main"]["f32"]["shape"] == [3, 5]
        assert set(layout["private"]) == {"bytes"} and "empty" in layout["main"]
        for name, buffer in target.items():
            engine.register(name, buffer, capture=Capture.SYNCHRONOUS if name == "bytes" else Capture.OVERLAPPED)
        result = engine.restore()
        assert (result.found, result.next_iteration, result.main_tier) == (True, 1, Tier.LOCAL)
        assert result.bytes == sum(memoryview(buffer).nbytes for buffer in source.values())
    for name in source:
        assert memoryview(source[name]).tobytes() == memoryview(target[name]).tobytes(), name


def test_wrong_calls_are_refused_with_a_reason(job):
    with Engine(**job) as engine:
        status, message = status_of(engine.snapshot, 0)
        assert status is Status.INVALID and "restore" in message
        engine.restore()
        status, message = status_of(engine.snapshot, 0)
        assert status is Status.INVALID and "register" in message
        buffer = bytearray(8)
        engine.register("twice", buffer)
        status, message = status_of(engine.register, "twice", bytearray(8))
        assert status is Status.INVALID and "twice" in message
        status, message = status_of(engine.register_pointer, "null", 0, 1, [8])
        assert status is Status.INVALID and "null" in message
        status, message = status_of(engine.unregister, "unknown")
        assert status is Status.INVALID and "unknown" in message
        assert engine.snapshot(5).taken and engine.before_update()
        status, message = status_of(engine.snapshot, 5)
        assert status is Status.INVALID and "5" in message
        status, message = status_of(engine.snapshot, 4)
        assert status is Status.INVALID and "4" in message


def test_buffers_that_cannot_be_registered_are_named(job):
    with Engine(**job) as engine:
        assert "read-only" in status_of(engine.register, "constant", b"abc")[1]
        assert "not contiguous" in status_of(engine.register, "strided", np.zeros((4, 4))[:, ::2])[1]
        assert "format" in status_of(engine.register, "dates", np.zeros(3, "V3"))[1]


def test_names_that_c_cannot_hold_are_refused(job):
    with Engine(**job) as engine:
        engine.register("weight", bytearray(8))
        for name in ("weight\0", "bias\0b", "\0", "\udcff"):
            status, message = status_of(engine.register, name, bytearray(8))
            assert status is Status.INVALID and ("null character" in message or "UTF-8" in message)
        assert list(engine.registered) == ["weight"]
    status, message = status_of(Engine, **(job | {"node": "n0\0n1"}))
    assert status is Status.INVALID and "null character" in message


def test_discarded_snapshot_is_never_stored(job):
    with Engine(**job) as engine:
        state = bytearray(b"good")
        engine.register("state", state)
        engine.restore()
        kept = engine.snapshot(0)
        assert engine.before_update() and kept.wait(Stage.COMMITTED, 20_000)
        assert engine.snapshot(1).taken
        state[:] = b"torn"
        engine.discard()
        engine.discard()
        assert engine.before_update() and engine.stats().discarded == 1
    with Engine(**job) as engine:
        state = bytearray(4)
        engine.register("state", state)
        assert engine.restore().iteration == 0 and state == b"good"


def test_dropped_engine_releases_its_rank_and_stores_nothing_incomplete(job):
    state = np.zeros(8 << 20, np.uint8)
    engine = Engine(**job)
    engine.register("state", state)
    engine.restore()
    kept = engine.snapshot(0)
    assert engine.before_update() and kept.wait(Stage.COMMITTED, 20_000)
    assert engine.snapshot(1).taken
    state[:] = 1  # too early
    del engine, kept
    gc.collect()
    with Engine(**job) as engine:
        engine.register("state", state)
        assert engine.restore().iteration == 0 and not state.any()


ENDS_WITHOUT_CLOSING = """
import json, sys
from ckptengine import Engine, Stage
engine = Engine(**json.loads(sys.argv[1]))
engine.register("state", bytearray(b"good" * (4 << 20)))
engine.restore()
ticket = engine.snapshot(0)
engine.before_update()
assert ticket.wait(Stage.COMMITTED, 20_000)
assert engine.snapshot(1).taken
"""


def test_program_that_ends_without_close_exits_cleanly(job):
    command = [sys.executable, "-c", ENDS_WITHOUT_CLOSING, json.dumps(job, default=str)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    with Engine(**job) as engine:
        assert engine.stored_layout()["iteration"] == 0


def test_a_registered_bytearray_cannot_be_resized(job):
    buffer = bytearray(16)
    with Engine(**job) as engine:
        engine.register("blob", buffer)
        with pytest.raises(BufferError):
            buffer.extend(b"more")
    buffer.extend(b"more")


def test_options_that_are_unknown_or_malformed_are_named(job):
    status, message = status_of(Engine, **job, bananas=3)
    assert status is Status.INVALID and "bananas" in message
    status, message = status_of(Engine, **(job | {"copies": "many"}))
    assert status is Status.INVALID and "copies" in message


def test_missing_agent_is_named_in_the_error(job):
    status, message = status_of(Engine, **job, agent="attach")
    assert status is Status.NO_AGENT and message


def test_closed_engine_refuses_calls_but_may_close_again(job):
    engine = Engine(**job)
    engine.close()
    engine.close()
    assert status_of(engine.snapshot, 0) == (Status.INVALID, "the engine is closed; create another one")


def test_a_snapshot_that_is_not_closed_by_before_update_is_discarded(job, caplog):
    with Engine(**job) as engine:
        engine.register("x", bytearray(64))
        engine.restore()
        torn = engine.snapshot(0)
        assert torn.taken
        with caplog.at_level(logging.WARNING, "ckptengine"):
            whole = engine.snapshot(1)
        assert whole and whole.message == "" and "before_update() was not called" in caplog.text
        assert engine.before_update() and whole.wait(Stage.COMMITTED, 20_000)
        assert engine.stats().discarded == 1


def test_communication_is_marked_with_its_channel_and_time(job):
    with Engine(**job) as engine:
        state = bytearray(8)
        engine.register("state", state)
        engine.restore()
        words = CommWords(job)
        before_us = time.monotonic_ns() // 1000
        engine.comm_begin()
        assert words.is_busy() and words.channels()[0] == (1, 0)
        engine.comm_end()
        assert not words.is_busy() and words.channels()[0] == (1, 1)
        with engine.communication(channel=7):
            assert words.channels()[7] == (1, 0)
        with pytest.raises(ZeroDivisionError), engine.communication(3):
            assert words.channels()[3] == (1, 0) and 1 / 0
        engine.snapshot(0)
        after_us = time.monotonic_ns() // 1000
    assert not words.is_busy()
    both = [BEGIN, END]
    expected = [(kind, stream) for stream in (0, 7, 3) for kind in both]
    assert words.kinds() == [*expected, (ITERATION, 0)]
    times = [event.at_us for event in words.events() if event.kind <= ITERATION]
    assert times == sorted(times) and before_us <= times[0] and times[-1] <= after_us


def test_bubbles_are_marked_and_nested_ones_once(job):
    with Engine(**job) as engine:
        engine.bubble_begin()
        engine.bubble_end()
        engine.restore()
        words = CommWords(job)
        engine.bubble_begin()
        engine.bubble_begin()
        assert words.device_kinds() == [BUBBLE_BEGIN] and not words.is_busy()
        engine.bubble_end()
        assert words.device_kinds() == [BUBBLE_BEGIN]
        engine.bubble_end()
        engine.before_update()
        assert words.device_kinds() == [BUBBLE_BEGIN, BUBBLE_END, UPDATE] and words.kinds() == []
        status, message = status_of(engine.bubble_end)
        assert status is Status.INVALID and "without a bubble_begin()" in message
        with engine.bubble():
            assert words.device_kinds()[-1] == BUBBLE_BEGIN
        assert words.device_kinds()[-1] == BUBBLE_END


def test_communication_before_restore_is_ignored(job):
    with Engine(**job) as engine:
        with engine.communication():
            pass
        engine.comm_end()
        engine.restore()
        assert CommWords(job).written() == 0


def test_wrong_communication_calls_raise_and_write_nothing(job):
    with Engine(**job) as engine:
        engine.restore()
        status, message = status_of(engine.comm_end)
        assert status is Status.INVALID and "without a comm_begin()" in message
        for channel in (8, 2**32 - 1, 2**32, -1):
            for call in (engine.comm_begin, engine.comm_end):
                status, message = status_of(call, channel)
                assert status is Status.INVALID and f"there is no channel {channel}" in message
        assert CommWords(job).written() == 0
    assert status_of(engine.comm_begin) == (Status.INVALID, "the engine is closed; create another one")


def test_pause_is_marked_with_its_name_and_ends_on_an_error(job):
    with Engine(**job) as engine:
        with engine.pause("before restore"):
            pass
        engine.restore()
        words = CommWords(job)
        with engine.pause("eval"):
            assert words.pauses() == (1, 0, "eval")
        with pytest.raises(ZeroDivisionError), engine.pause("save"):
            assert words.pauses() == (2, 1, "save") and 1 / 0
        assert words.pauses() == (2, 2, "save")
    with pytest.raises(Error), engine.pause("closed"):
        pass


def test_threads_may_communicate_concurrently(job):
    with Engine(**job) as engine:
        engine.restore()

        def communicate(stream: int) -> None:
            for _ in range(200):
                with engine.communication(stream), engine.communication():
                    pass

        threads = [threading.Thread(target=communicate, args=[stream]) for stream in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        words = CommWords(job)
        assert words.channels()[:4] == [(600, 600), (200, 200), (200, 200), (200, 200)]
        assert words.written() == 2400
        assert sorted(words.kinds())[:600] == [(BEGIN, 0)] * 600
