"""Measures how long training stands still for a checkpoint: ckptengine, torch.save to tmpfs and DCP's async_save.

One process trains a transformer whose model and AdamW state are 1 GiB. In every round it takes one checkpoint in each
way, each after a real iteration, so that all three meet the same load. Ours is how long snapshot() and before_update()
block: once with a forward and backward pass between the two calls, as in training, and once without. Theirs is how long
their call blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "examples" / "demo"))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Stage, Ticket, load_library
from ckptengine.torch import Checkpointer
from cluster import Cluster
from run import find_programs
from torch import nn

WIDTH = 768
LAYERS = 12
WORDS = 5760
COMMIT_MS = 60_000


class Training:
    def __init__(self, batch: int) -> None:
        layers = (
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.net = nn.Sequential(nn.Embedding(WORDS, WIDTH), *layers)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.words = torch.randint(WORDS, (batch, 64))

    def forward_backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.net(self.words).square().mean().backward()

    def state(self) -> dict[str, Any]:
        return {"model": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def bytes(self) -> int:
        tensors = list(self.net.state_dict().values())
        for state in self.optimizer.state.values():
            tensors += state.values()
        return sum(tensor.nbytes for tensor in tensors)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Returns how many milliseconds the call took, and what it returned."""
    begin = time.perf_counter()
    result = call()
    return 1e3 * (time.perf_counter() - begin), result


class Ours:
    """Snapshots of one engine, each followed to its commit, so that the next one is not skipped."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer
        self.iteration = 0

    def stall_ms(self, between: Callable[[], Any]) -> float:
        stall_ms, ticket = self.offer(between)
        if not ticket.taken or not ticket.wait(Stage.COMMITTED, COMMIT_MS):
            raise RuntimeError(f"snapshot {self.iteration} failed: {ticket.message}")
        return stall_ms

    def first_stall_ms(self, between: Callable[[], Any]) -> float:
        """The longest stall of any iteration until the first snapshot is taken: memory is reserved meanwhile."""
        longest_ms = 0.0
        while True:
            stall_ms, ticket = self.offer(between)
            longest_ms = max(longest_ms, stall_ms)
            if ticket.taken and ticket.wait(Stage.COMMITTED, COMMIT_MS):
                return longest_ms
            if not ticket.skipped:
                raise RuntimeError(f"snapshot {self.iteration} failed: {ticket.message}")

    def offer(self, between: Callable[[], Any]) -> tuple[float, Ticket]:
        self.iteration += 1
        snapshot_ms, ticket = timed(lambda: self.checkpointer.snapshot(self.iteration))
        between()
        update_ms, _ = timed(self.checkpointer.before_update)
        return snapshot_ms + update_ms, ticket


def measure(training: Training, ours: Ours, folder: Path, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"ours": [], "ours at once": [], "torch.save": [], "async_save": []}
    file, writer = folder / "state.pt", dcp.FileSystemWriter(folder / "dcp", overwrite=True)
    for _ in range(rounds):
        found["ours"].append(ours.stall_ms(training.forward_backward))
        training.optimizer.step()
        found["ours at once"].append(ours.stall_ms(lambda: None))
        training.forward_backward()
        training.optimizer.step()
        found["torch.save"].append(timed(lambda: torch.save(training.state(), file))[0])
        training.forward_backward()
        training.optimizer.step()
        blocked_ms, future = timed(lambda: dcp.async_save(training.state(), storage_writer=writer))
        found["async_save"].append(blocked_ms)
        training.forward_backward()
        future.result()
        training.optimizer.step()
    return found


def report(found: dict[str, list[float]], first_ms: float) -> None:
    print("stall in ms: median, least, most")
    for name, values in found.items():
        print(f"  {name:<14}{statistics.median(values):>10.2f}{min(values):>10.2f}{max(values):>10.2f}")
    later_ms = statistics.median(found["ours"])
    print(f"ratio: first_snapshot = {first_ms / later_ms:.2f} (first {first_ms:.3f}, later {later_ms:.3f}, ms)")
    for suffix, mine in (("", found["ours"]), ("_synchronous", found["ours at once"])):
        for name, theirs in (("torch_save", found["torch.save"]), ("dcp_async", found["async_save"])):
            a, b = statistics.median(mine), statistics.median(theirs)
            print(f"ratio: stall_{name}{suffix} = {b / a:.2f} (ours {a:.3f}, theirs {b:.3f}, ms)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=4, help="texts of 64 words per iteration")
    parser.add_argument("--library", type=Path)
    arguments = parser.parse_args()
    programs = find_programs(Path(load_library(arguments.library).path))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.manual_seed(1)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ckptengine-stall-", dir="/dev/shm")))
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        job = f"stall-{uuid.uuid4().hex[:8]}"
        cluster = stack.enter_context(Cluster(job, programs, folder, Path("/dev/shm"), {"copies": 1}))
        node = cluster.add_node("node0")
        training = Training(arguments.batch)
        training.forward_backward()
        training.optimizer.step()
        options = {"job": job, "node": node.name, "arena_dir": node.arena_dir, "agent": "attach", "copies": 1}
        checkpointer = Checkpointer(training.net, training.optimizer, library=programs["library"], **options)
        stack.enter_context(checkpointer)
        checkpointer.restore()
        print(f"state: {training.bytes() / (1 << 30):.3f} GiB, {torch.get_num_threads()} threads")
        ours = Ours(checkpointer)
        first_ms = ours.first_stall_ms(training.forward_backward)
        training.optimizer.step()
        measure(training, ours, folder, 1)  # one round to warm up
        report(measure(training, ours, folder, arguments.rounds), first_ms)
    return 0


if __name__ == "__main__":
    sys.exit(main())
