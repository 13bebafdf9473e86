"""One rank of the demo's training job: trainer.py SETTINGS.json. The launcher writes the settings.

Writes one JSON line per event to the file that the settings name: what restore() did, then every iteration.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer
from model import GPT, PartitionedAdam
from torch.nn import functional


class Data:
    """Random windows of the text; which ones come next is part of the training state."""

    def __init__(self, path: str, batch: int, length: int, seed: int) -> None:
        self.text = np.load(path, mmap_mode="r")
        self.batch, self.length = batch, length
        self.generator = torch.Generator().manual_seed(seed)
        self.windows = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.windows += self.batch
        starts = torch.randint(len(self.text) - self.length - 1, (self.batch,), generator=self.generator)
        rows = np.stack([self.text[start : start + self.length + 1] for start in starts.tolist()])
        rows = torch.from_numpy(rows.astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def state_dict(self) -> dict:
        return {"windows": self.windows, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict) -> None:
        self.windows = state["windows"]
        self.generator.set_state(state["generator"])


class Training:
    """The job without any checkpoints."""

    def __init__(self, settings: dict[str, Any]) -> None:
        rank, world_size = settings["rank"], settings["world_size"]
        torch.manual_seed(settings["seed"])  # the same initial model on all ranks
        self.model = GPT(settings["characters"], settings["length"], settings["layers"])
        self.optimizer = PartitionedAdam(self.model, rank, world_size)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer.adam, max_lr=1e-3, total_steps=settings["iterations"] + 1, pct_start=0.2
        )
        self.data = Data(settings["text"], settings["batch"], settings["length"], settings["seed"] * 1000 + rank)
        torch.manual_seed(settings["seed"] * 1000 + rank)  # dropout differs

    def forward_backward(self) -> float:
        inputs, targets = self.data.next()
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        return self.optimizer.reduce(loss)

    def update(self) -> None:
        self.optimizer.adam.step()
        self.scheduler.step()

    def checkpointer(self, options: dict[str, Any]) -> Checkpointer:
        """All that exists on this rank alone. The whole parameters are gathered again from the parts."""
        return Checkpointer(
            optimizer=self.optimizer.adam,
            schedulers=self.scheduler,
            extra={"data": self.data},
            communication="patch",  # which sees plain calls of torch.distributed
            **options,
        )


class Protocol:
    """The lines that the launcher reads, and the clock behind their figures (milliseconds)."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", buffering=1)
        self._captured_ms: dict[int, float] = {}
        self._committed = -1
        self._stall_ms = 0.0
        self._is_under_way = False  # the capture of the iteration before

    def write(self, event: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": event, "at_s": time.monotonic(), **fields}) + "\n")

    def before_update(self, checkpointer: Checkpointer, k: int) -> None:
        begin = time.perf_counter()
        checkpointer.before_update()
        self._stall_ms += 1e3 * (time.perf_counter() - begin)
        if self._is_under_way:
            self._captured_ms[k - 1] = checkpointer.stats().capture_ms
            self._is_under_way = False

    def snapshot(self, checkpointer: Checkpointer, k: int) -> str:
        begin = time.perf_counter()
        ticket = checkpointer.snapshot(k)
        self._stall_ms += 1e3 * (time.perf_counter() - begin)
        self._is_under_way = ticket.taken
        name = ticket.status.name
        return name if name in ("OK", "SKIPPED") else f"{name}: {ticket.message}"

    def figures(self, checkpointer: Checkpointer) -> dict[str, Any]:
        stats = checkpointer.stats()
        found = {"stall_ms": self._stall_ms, "capture_ms": stats.capture_ms, "bytes_captured": stats.bytes_captured}
        self._stall_ms = 0.0
        if stats.committed_iteration > self._committed:
            self._committed = stats.committed_iteration
            found["commit_ms"] = stats.commit_ms
            captured_ms = self._captured_ms.pop(self._committed, None)
            if captured_ms is not None:
                found["protection_ms"] = stats.commit_ms - captured_ms
        return found


def wants_snapshot(settings: dict[str, Any], k: int) -> bool:
    """Every iteration, or in every other block of so many iterations."""
    block = settings.get("alternate", 0)
    return not block or (k // block) % 2 == 0


def train(settings: dict[str, Any]) -> None:
    protocol = Protocol(settings["protocol"])
    training = Training(settings)
    checkpointer, first = None, 0
    if settings["engine"] is not None:
        checkpointer = training.checkpointer(settings["engine"])
        begin = time.perf_counter()
        result = checkpointer.restore()
        first = result.next_iteration
        protocol.write(
            "restored",
            found=result.found,
            iteration=result.iteration,
            incarnation=result.incarnation,
            main=result.main_tier.name.lower(),
            private=result.private_tier.name.lower(),
            bytes=result.bytes,
            ms=1e3 * (time.perf_counter() - begin),
            fetch_ms=result.fetch_ms,
            load_ms=result.load_ms,
            message=result.message,
        )
    training.optimizer.share()
    for k in range(first, settings["iterations"]):
        begin = time.perf_counter()
        loss = training.forward_backward()
        if checkpointer is not None:
            protocol.before_update(checkpointer, k)
        training.update()
        training.optimizer.share()
        figures: dict[str, Any] = {}
        if checkpointer is not None:
            if wants_snapshot(settings, k):
                figures["snapshot"] = protocol.snapshot(checkpointer, k)
            figures |= protocol.figures(checkpointer)
        ms = 1e3 * (time.perf_counter() - begin)
        protocol.write("iteration", k=k, loss=loss.hex(), ms=ms, **figures)
    if checkpointer is not None:
        checkpointer.close()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['rendezvous']}",
        rank=settings["rank"],
        world_size=settings["world_size"],
        timeout=timedelta(seconds=120),
    )
    train(settings)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
