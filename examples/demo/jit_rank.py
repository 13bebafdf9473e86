"""A rank of ./dev demo --jit, started by ckptrun: jit_rank.py SETTINGS.json.

It appends a JSON line for each event to FOLDER/told-RANK: started, restoring, restored, begins, iteration, interrupted,
halted, fault. FOLDER/do-RANK holds "FAULT PLACE SECONDS", e.g. "kill backward 0": the rank removes the file once it
gets to the place, and does it. The rank ends with the iteration that FOLDER/end names.

`way` in the settings says how it comes back: "rejoin"; "restart", in a new process, like all ranks; or "plain": it does
not, because it trains with torch alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch
import torch.distributed as dist
from ckptengine.torch import Checkpointer, run
from ckptengine.torch.groups import Interrupted
from model import GPT
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

WATCH_S = 0.05


class Protocol:
    def __init__(self, folder: Path, rank: int) -> None:
        self._file = open(folder / f"told-{rank}", "a", buffering=1)

    def tell(self, event: str, **fields: Any) -> None:
        told = {"event": event, "at_s": time.monotonic(), "pid": os.getpid(), **fields}
        self._file.write(json.dumps(told) + "\n")


class TellingCheckpointer(Checkpointer):
    protocol: Protocol

    def restore(self) -> Any:
        self.protocol.tell("restoring")
        restored = super().restore()
        self.protocol.tell(
            "restored",
            iteration=restored.iteration,
            incarnation=restored.incarnation,
            tier=restored.main_tier.name.lower(),
            bytes=restored.bytes,
        )
        return restored


class HaltWatch:
    """A thread that tells when this rank has been captured late."""

    def __init__(self, checkpointer: Checkpointer, protocol: Protocol) -> None:
        self._engine, self._protocol = checkpointer.engine, protocol
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        told = -1
        while not self._end.is_set():
            halt = self._engine.wait_halt(WATCH_S)
            if halt is not None and halt.incarnation != told:
                told = halt.incarnation
                self._protocol.tell("halted", captured=halt.captured)
            elif halt is not None:
                self._end.wait(WATCH_S)  # the same halt, until this rank has rejoined

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


class Faults:
    """Does what FOLDER/do-RANK asks for."""

    def __init__(self, folder: Path, rank: int, protocol: Protocol) -> None:
        self._path = folder / f"do-{rank}"
        self._protocol = protocol

    def watch(self, module: torch.nn.Module) -> None:
        """Faults may happen where this module is passed."""
        module.register_forward_hook(lambda _, __, output: self._in_forward(output))

    def _in_forward(self, output: torch.Tensor) -> None:
        self.at("forward")
        if output.requires_grad:
            output.register_hook(lambda gradient: self.at("backward"))

    def at(self, place: str) -> None:
        if not self._path.exists():
            return
        fault, wanted, seconds = self._path.read_text().split()
        if wanted != place:
            return
        self._path.unlink()
        self._protocol.tell("fault", fault=fault, place=place)
        if fault == "late":  # healthy, but suspected
            time.sleep(float(seconds))
        elif fault == "spin":
            re.match(r"(a+)+b", "a" * 100)  # takes for ever, and lets no other thread have the interpreter lock
        else:
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault])


def with_ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model, bucket_cap_mb=2)


class Training:
    """A small GPT, the same on all ranks. `wrap` makes it data parallel."""

    def __init__(
        self,
        settings: dict[str, Any],
        rank: int,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] = with_ddp,
    ) -> None:
        self.text = np.load(settings["text"], mmap_mode="r")
        self.length, self.batch = settings["length"], settings["batch"]
        torch.manual_seed(1)
        gpt = GPT(settings["characters"], self.length, settings["layers"])
        self.middle = gpt.norm
        self.model = wrap(gpt)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = torch.Generator().manual_seed(1000 + rank)
        torch.manual_seed(1000 + rank)  # dropout differs

    def loss(self) -> torch.Tensor:
        starts = torch.randint(len(self.text) - self.length - 1, (self.batch,), generator=self.data)
        rows = np.stack([self.text[start : start + self.length + 1] for start in starts.tolist()])
        rows = torch.from_numpy(rows.astype(np.int64))
        self.optimizer.zero_grad()
        return functional.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


class Rank:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.rank = settings, dist.get_rank()
        self.folder = Path(settings["folder"])
        self.protocol = Protocol(self.folder, self.rank)
        self.protocol.tell("started")
        self.faults = Faults(self.folder, self.rank, self.protocol)
        self.training = Training(settings, self.rank)
        self.faults.watch(self.training.middle)

    def ends_with(self, k: int) -> bool:
        end = self.folder / "end"
        return end.exists() and k >= int(end.read_text())

    def one_pass(self) -> float:
        loss = self.training.loss()
        loss.backward()
        return loss.item()

    def train(self, checkpointer: Checkpointer | None) -> None:
        k = checkpointer.next_iteration if checkpointer is not None else 0
        if checkpointer is None or checkpointer.restored is not None:
            self.protocol.tell("begins", k=k)
        try:
            while not self.ends_with(k):
                loss = self.one_pass()
                with checkpointer.update(k) if checkpointer is not None else contextlib.nullcontext():
                    self.training.optimizer.step()
                    self.faults.at("update")
                self.protocol.tell("iteration", k=k, loss=loss.hex())
                k += 1
        except Interrupted:
            self.protocol.tell("interrupted")
            raise

    def run(self) -> None:
        if self.settings["way"] == "plain":
            self.train(None)
            return
        training = self.training
        TellingCheckpointer.protocol = self.protocol
        with TellingCheckpointer(
            training.model, training.optimizer, extra={"data": training.data}, library=self.settings["library"]
        ) as checkpointer:
            if self.settings["way"] == "restart":
                checkpointer.restore()
                self.train(checkpointer)
                return
            watch = HaltWatch(checkpointer, self.protocol)
            try:
                run(self.train, checkpointer)
            finally:
                watch.stop()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("ckpt:gloo" if settings["way"] == "rejoin" else "gloo")
    rank = Rank(settings)
    rank.run()
    rank.protocol.tell("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
