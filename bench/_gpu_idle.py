"""A loop like a pipeline's, whose stream waits for a neighbour in each microbatch: how much of this idle time the
engine's marks see, and what captures in these bubbles cost. gpu.py calls it.

    _gpu_idle.py OPTIONS-AS-JSON layered|immediate|ahead cuda|cpu SIZE-BYTES

On the neighbour's stream, a kernel does nothing for as long as a microbatch takes. CUDA events around each wait show
how long the stream was idle. layered and immediate wait for the GPU in each iteration, as training does that reads its
loss; ahead captures in layers, and lets the host run ahead. Blocks of iterations with and without snapshots take turns.
On the CPU, a sleep is the wait, to see that the program runs.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "python" / "tests")]

import torch
from ckptengine import DType, Engine, Memory, Stage
from comm_words import BUBBLE_BEGIN, BUBBLE_END, CommWords

BLOCKS = 6
SETTLE, MEASURED = 3, 20  # iterations of a block: left out at its beginning, and measured
PROFILED = 5
MICROBATCHES = 4
COMPUTE_MS = GAP_MS = 5.0  # of a microbatch
ITERATION_GOAL, SEEN_GOAL = 1.02, 0.05


class Gpu:
    """A stage that computes on the current stream, and its neighbour on another one."""

    def __init__(self) -> None:
        self.stream = torch.cuda.current_stream()
        self.neighbour = torch.cuda.Stream()
        self.matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self.product = torch.empty_like(self.matrix)
        self.cycles = self._calibrate_sleep()
        self.matmuls = 1
        self.matmuls = max(1, round(COMPUTE_MS / self._ms(self.compute)))
        self.waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def state(self, size_bytes: int) -> list[torch.Tensor]:
        return [torch.zeros(size_bytes // 16, dtype=torch.uint8, device="cuda") for _ in range(16)]

    def compute(self) -> None:
        for _ in range(self.matmuls):
            torch.matmul(self.matrix, self.matrix, out=self.product)

    def wait(self, engine: Engine) -> None:
        """Sends what was computed, and waits for the answer."""
        self.neighbour.wait_stream(self.stream)
        with torch.cuda.stream(self.neighbour):
            torch.cuda._sleep(self.cycles)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with engine.bubble(self.handle):
            self.stream.wait_stream(self.neighbour)
        end.record()
        self.waits.append((begin, end))

    @property
    def handle(self) -> int:
        return self.stream.cuda_stream

    def take_waits_ms(self) -> list[float]:
        torch.cuda.synchronize()
        waits, self.waits = self.waits, []
        return [begin.elapsed_time(end) for begin, end in waits]

    def synchronize(self) -> None:
        self.stream.synchronize()

    def _ms(self, work) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(3):
            work()
        begin.record()
        for _ in range(10):
            work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 10

    def _calibrate_sleep(self) -> int:
        cycles = 1_000_000
        return round(cycles * GAP_MS / self._ms(lambda: torch.cuda._sleep(cycles)))


class Cpu:
    handle = None

    def __init__(self) -> None:
        self.waits: list[float] = []

    def state(self, size_bytes: int) -> list[torch.Tensor]:
        return [torch.zeros(size_bytes // 64, dtype=torch.uint8)]

    def compute(self) -> None:
        time.sleep(1e-3)

    def wait(self, engine: Engine) -> None:
        begin = time.perf_counter()
        with engine.bubble():
            time.sleep(2e-3)
        self.waits.append(1e3 * (time.perf_counter() - begin))

    def take_waits_ms(self) -> list[float]:
        waits, self.waits = self.waits, []
        return waits

    def synchronize(self) -> None:
        pass


class Bubbles:
    """Those that the engine has recorded since the last call."""

    def __init__(self, words: CommWords) -> None:
        self.words = words
        self.seen = words.written()

    def take_ms(self, count: int) -> list[float]:
        """Waits until there are as many: a thread of the engine reads the marks later."""
        deadline = time.monotonic() + 10
        while (spans := self._spans()) and len(spans) < count and time.monotonic() < deadline:
            time.sleep(0.01)
        self.seen = self.words.written()
        return spans

    def _spans(self) -> list[float]:
        events = [event for event in self.words.events(self.seen) if event.kind in (BUBBLE_BEGIN, BUBBLE_END)]
        begins = [event.at_us for event in events if event.kind == BUBBLE_BEGIN]
        ends = [event.at_us for event in events if event.kind == BUBBLE_END]
        return [(end - begin) / 1e3 for begin, end in zip(begins, ends, strict=False)]


class Loop:
    def __init__(
        self, device: Gpu | Cpu, engine: Engine, state: list[torch.Tensor], words: CommWords, how: str
    ) -> None:
        self.device, self.engine, self.state, self.how = device, engine, state, how
        self.bubbles = Bubbles(words)
        self.block_s: dict[bool, list[float]] = {False: [], True: []}  # by with_snapshots
        self.known_ms: list[float] = []
        self.seen_ms: list[float] = []
        self.k = 0
        self.ticket = None

    def block(self, with_snapshots: bool) -> None:
        for _ in range(SETTLE):
            self._iteration(with_snapshots)
        self._compare()
        begin = time.perf_counter()
        for _ in range(MEASURED):
            self._iteration(with_snapshots)
        self.device.synchronize()
        self.block_s[with_snapshots].append(time.perf_counter() - begin)
        known, seen = self._compare()
        self.known_ms += known
        self.seen_ms += seen

    def _compare(self) -> tuple[list[float], list[float]]:
        known = self.device.take_waits_ms()
        seen = self.bubbles.take_ms(len(known))
        if len(known) != len(seen):
            sys.exit(f"{len(known)} waits were made, and the engine saw {len(seen)} bubbles")
        return known, seen

    def _iteration(self, with_snapshots: bool) -> None:
        where = {} if self.device.handle is None else {"stream": self.device.handle}
        if with_snapshots or self.k == 0:
            ticket = self.engine.snapshot(self.k, **where)
            self.ticket = ticket if ticket.taken else self.ticket
        for _ in range(MICROBATCHES):
            self.device.compute()
            self.device.wait(self.engine)
        self.engine.before_update([] if self.device.handle is None else [self.device.handle])
        for tensor in self.state:
            tensor.add_(1)
        self.k += 1
        if self.how != "ahead":
            self.device.synchronize()

    def mean_ms(self, with_snapshots: bool) -> float:
        return 1e3 * statistics.fmean(self.block_s[with_snapshots]) / MEASURED


@contextlib.contextmanager
def registered(options: dict, state: list[torch.Tensor], handle: int | None, how: str) -> Iterator[Engine]:
    engine = Engine(**options, layered_capture=how != "immediate", profile_iterations=PROFILED)
    memory = Memory.HOST if handle is None else Memory.DEVICE
    for i, tensor in enumerate(state):
        engine.register_pointer(f"state{i}", tensor.data_ptr(), DType.U8, tuple(tensor.shape), memory=memory)
    engine.restore(handle)
    try:
        yield engine
    finally:
        engine.close()


def report(loop: Loop, before) -> None:
    stats, how = loop.engine.stats(), loop.how
    known, seen = sum(loop.known_ms), sum(loop.seen_ms)
    worst = max(abs(a - b) for a, b in zip(loop.known_ms, loop.seen_ms, strict=True))
    print(
        f"ratio: gpu_idle_seen_{how} = {seen / known:.3f} (ours {seen:.1f}, theirs {known:.1f}, ms); goal 1 +- "
        f"{SEEN_GOAL}; {len(loop.seen_ms)} bubbles, at most {worst:.3f} ms off"
    )
    ours, theirs = loop.mean_ms(True), loop.mean_ms(False)
    goal = f"goal {ITERATION_GOAL}" if how != "immediate" else "no goal"
    parts = [getattr(stats, name) - getattr(before, name) for name in ("bubble_bytes", "compute_bytes", "update_bytes")]
    shares = [f"{100 * part / max(1, sum(parts)):.0f} %" for part in parts]
    print(
        f"ratio: gpu_bubbles_{how} = {ours / theirs:.4f} (ours {ours:.3f}, theirs {theirs:.3f}, ms); {goal}; copied "
        f"{shares[0]} in bubbles, {shares[1]} beside computation, {shares[2]} while the update waited; "
        f"{stats.layered} captures in layers, {stats.layered_late} of them late; {stats.skipped} skipped"
    )


def main() -> None:
    torch.set_num_threads(1)
    options, how, kind, size_bytes = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    device = Gpu() if kind == "cuda" else Cpu()
    state = device.state(size_bytes)
    with registered(options, state, device.handle, how) as engine:
        loop = Loop(device, engine, state, CommWords(options), how)
        for _ in range(2):  # a profile is learned
            loop.block(True)
        for recorded in (loop.block_s[True], loop.known_ms, loop.seen_ms):
            recorded.clear()
        before = engine.stats()
        for block in range(BLOCKS):
            loop.block(block % 2 == 1)
        if loop.ticket is None or not loop.ticket.wait(Stage.COMMITTED, 60_000):
            sys.exit("no snapshot was committed")
        report(loop, before)


if __name__ == "__main__":
    main()
