"""A training step in PyTorch, with and without a snapshot in every iteration. The model is a transformer with 1 GB of
parameters and Adam on a GPU, or a tiny one on the CPU, to see that the program runs. gpu.py calls it.

    _gpu_training.py OPTIONS-AS-JSON STAGING-BYTES BATCH NAME cuda|cpu [ahead]

Blocks of iterations take turns: with snapshots, without, and with plain copies of as many bytes to pinned memory, which
training does not wait for. These show what any copy costs beside training. Mean iteration times are compared. Every
iteration waits for the GPU at its end, as training does that reads its loss. With "ahead" none does, so the host runs
ahead of the GPU.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
from ckptengine import Engine, Stage, Ticket
from ckptengine.torch import Checkpointer
from torch import nn

ROUNDS = 3  # blocks of each kind
SETTLE, MEASURED = 2, 14  # iterations of a block: left out at its beginning, and measured
HOST_GOAL_US = 200
ITERATION_GOAL = 1.01


class Model:
    """The training that is measured."""

    def __init__(self, device: str, batch: int) -> None:
        width, heads, layers, length, words = (1280, 20, 12, 512, 8192) if device == "cuda" else (64, 2, 2, 16, 128)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.net = nn.Sequential(nn.Embedding(words, width), encoder, nn.Linear(width, words)).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4, fused=True)
        self.words = torch.randint(words, (batch, length), device=device)
        self.device = device
        self.forward_backward()
        self.optimizer.step()  # makes Adam's moments
        self.wait()

    def forward_backward(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16):
            loss = nn.functional.cross_entropy(self.net(self.words).flatten(0, 1), self.words.flatten())
        loss.backward()

    def wait(self) -> None:
        """Waits for the stream alone, because a snapshot's copy in the background goes on into the next iteration."""
        if self.device == "cuda":
            torch.cuda.current_stream().synchronize()

    def state_bytes(self) -> int:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in [*self.net.parameters(), *moments])


class GpuTimer:
    """Time on the GPU between begin() and end(), over many of them."""

    def __init__(self, device: str) -> None:
        self.has_gpu = device == "cuda"
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> None:
        if self.has_gpu:
            self.events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            self.events[-1][0].record()

    def end(self) -> None:
        if self.has_gpu:
            self.events[-1][1].record()

    def mean_ms(self) -> float:
        torch.cuda.synchronize()
        return statistics.fmean(begin.elapsed_time(end) for begin, end in self.events)


class TimedCalls:
    """Time in the engine's own snapshot(), without the Python code of Checkpointer around it. Only snapshots that were
    taken count.
    """

    def __init__(self, engine: Engine) -> None:
        self.taken_us: list[float] = []
        self._snapshot = engine.snapshot
        engine.snapshot = self.snapshot

    def snapshot(self, iteration: int, stream: int) -> Ticket:
        begin = time.perf_counter()
        ticket = self._snapshot(iteration, stream)
        if ticket.taken:
            self.taken_us.append(1e6 * (time.perf_counter() - begin))
        return ticket


class PlainCopies:
    """Copies of as many bytes as the state has, from the GPU to pinned memory. A copy begins when the one before it has
    ended.
    """

    PART_BYTES = 1 << 28

    def __init__(self, device: str, state_bytes: int) -> None:
        self.parts = max(state_bytes // self.PART_BYTES, 1) if device == "cuda" else 0
        if self.parts:
            self.source = torch.empty(self.PART_BYTES, dtype=torch.uint8, device="cuda")
            self.target = torch.empty(self.PART_BYTES, dtype=torch.uint8, pin_memory=True)
            self.stream = torch.cuda.Stream()

    def begin(self) -> None:
        if not self.parts or not self.stream.query():
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(self.parts):
                self.target.copy_(self.source, non_blocking=True)

    def finish(self) -> None:
        if self.parts:
            self.stream.synchronize()


class Training:
    """Iterations of each kind, and what they took."""

    KINDS = ("none", "snapshots", "copies")

    def __init__(self, model: Model, checkpointer: Checkpointer, *, runs_ahead: bool) -> None:
        self.model = model
        self.checkpointer = checkpointer
        self.runs_ahead = runs_ahead
        self.next_iteration = checkpointer.restore().next_iteration
        self.block_s: dict[str, list[float]] = {kind: [] for kind in self.KINDS}  # measured iterations
        self.gpu = {kind: GpuTimer(model.device) for kind in self.KINDS}
        self.copies = PlainCopies(model.device, model.state_bytes())
        self.host_us: list[float] = []  # time in both calls, for each snapshot that was taken
        self.engine_calls = TimedCalls(checkpointer.engine)
        self.skipped = 0
        self.committed = 0  # blocks whose last snapshot was committed
        self.ticket: Ticket | None = None  # of the last snapshot that was taken
        self._snapshot_us: float | None = None  # time in snapshot(), until before_update() has returned

    def warm_up(self) -> None:
        """Registers the state and fills caches. Its times do not count."""
        for _ in range(SETTLE):
            self._iteration("snapshots")
        self._finish()
        self.committed = 0
        self.host_us.clear()
        self.engine_calls.taken_us.clear()
        for timer in self.gpu.values():
            timer.events.clear()
        self.skipped = 0

    def block(self, kind: str) -> None:
        for _ in range(SETTLE):
            self._iteration(kind)
        self.model.wait()
        begin = time.perf_counter()
        for _ in range(MEASURED):
            self._iteration(kind)
        self.model.wait()
        self.block_s[kind].append(time.perf_counter() - begin)
        self._finish()

    def mean_ms(self, kind: str) -> float:
        return 1e3 * statistics.fmean(self.block_s[kind]) / MEASURED

    def _iteration(self, kind: str) -> None:
        gpu = self.gpu[kind]
        gpu.begin()
        self.model.forward_backward()
        self._before_update()
        self.model.optimizer.step()
        if kind == "snapshots":
            self._snapshot()
        elif kind == "copies":
            self.copies.begin()
        gpu.end()
        self.next_iteration += 1
        if not self.runs_ahead:
            self.model.wait()

    def _finish(self) -> None:
        """Waits until nothing of the last snapshot is left to the next block."""
        self._before_update()
        self.copies.finish()
        if self.ticket is not None and self.ticket.wait(Stage.COMMITTED, 60_000):
            self.committed += 1
        elif self.ticket is not None:
            print(f"snapshot {self.ticket.iteration} was not committed: {self.ticket.message}")
        self.ticket = None

    def _snapshot(self) -> None:
        begin = time.perf_counter()
        ticket = self.checkpointer.snapshot(self.next_iteration)
        if ticket.taken:
            self.ticket = ticket
            self._snapshot_us = 1e6 * (time.perf_counter() - begin)
        else:
            self.skipped += 1

    def _before_update(self) -> None:
        begin = time.perf_counter()
        self.checkpointer.before_update()
        if self._snapshot_us is not None:
            self.host_us.append(self._snapshot_us + 1e6 * (time.perf_counter() - begin))
            self._snapshot_us = None


def link_bytes_per_s(size_bytes: int = 1 << 28) -> float:
    """Of a copy from the GPU to pinned host memory."""
    source = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    timer = GpuTimer("cuda")
    target.copy_(source, non_blocking=True)
    for _ in range(5):
        timer.begin()
        target.copy_(source, non_blocking=True)
        timer.end()
    return 1e3 * size_bytes / timer.mean_ms()


def say_what_is_possible(state_bytes: int, staging_bytes: int, iteration_ms: float) -> None:
    bytes_per_s = link_bytes_per_s()
    copy_ms = 1e3 * state_bytes / bytes_per_s
    print(f"  copying {state_bytes / 1e9:.2f} GB at {bytes_per_s / 1e9:.1f} GB/s takes {copy_ms:.1f} ms")
    if copy_ms > iteration_ms and staging_bytes < state_bytes:
        print(
            f"  that is longer than an iteration, and staging does not hold the state: the update has to wait for the "
            f"copy, so that {ITERATION_GOAL} cannot be met here; {copy_ms / iteration_ms:.2f} is the least"
        )


def report(name: str, training: Training) -> None:
    stats = training.checkpointer.stats()
    if not training.host_us or not training.committed:
        sys.exit("every snapshot was skipped, or none was committed")
    taken, skipped, state_bytes = len(training.host_us), training.skipped, training.model.state_bytes()
    ours, theirs, copies = (training.mean_ms(kind) for kind in ("snapshots", "none", "copies"))
    print(
        f"training {name}: state {state_bytes / 1e9:.2f} GB, staging {stats.gpu_staging_bytes / 1e9:.2f} GB, "
        f"capture {stats.capture_ms:.1f} ms, commit {stats.commit_ms:.1f} ms"
    )
    if training.model.device == "cuda":
        say_what_is_possible(state_bytes, stats.gpu_staging_bytes, theirs)
        print(
            f"  on the GPU {training.gpu['snapshots'].mean_ms():.3f} ms with, {training.gpu['none'].mean_ms():.3f} ms "
            "without"
        )
        print(f"  with plain copies instead of snapshots {copies:.3f} ms, {copies / theirs:.4f} of none")
    print(
        f"ratio: gpu_iteration_{name} = {ours / theirs:.4f} (ours {ours:.3f}, theirs {theirs:.3f}, ms); "
        f"goal {ITERATION_GOAL}; snapshots: {taken} taken, {skipped} skipped; committed at the end of "
        f"{training.committed} of {ROUNDS} blocks"
    )
    median_us = statistics.median(training.host_us)
    print(
        f"ratio: gpu_host_{name} = {median_us / HOST_GOAL_US:.3f} (ours {median_us:.0f}, goal {HOST_GOAL_US}, us); "
        f"at most {max(training.host_us):.0f} us; of that the engine's own snapshot() "
        f"{statistics.median(training.engine_calls.taken_us):.0f} us"
    )


def main() -> None:
    torch.set_num_threads(1)
    options, staging_bytes, batch = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    name, device = sys.argv[4:6]
    model = Model(device, batch)
    with Checkpointer(model.net, model.optimizer, gpu_staging_bytes=staging_bytes, **options) as checkpointer:
        training = Training(model, checkpointer, runs_ahead="ahead" in sys.argv[6:])
        training.warm_up()
        for _ in range(ROUNDS):
            for kind in Training.KINDS:
                training.block(kind)
        report(name, training)


if __name__ == "__main__":
    main()
