"""One rank of the bench of bubbles: _bubbles_rank.py SETTINGS.json, which bubbles.py writes.

Trains a stage of a pipeline, with a replica of each stage. Writes its report as JSON to the file that the settings
name.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
import torch.distributed as dist
from ckptengine import Engine, Status
from ckptengine.torch._communication import Communication
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Listener:
    """Stands for an engine before the hooks of torch: passes their calls on to the engine of the scheme that runs, if
    it has one, and measures bubbles."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.bubble_s = 0.0
        self._began = 0.0

    def comm_begin(self, *where: int) -> None:
        if self.engine is not None:
            self.engine.comm_begin(*where)

    def comm_end(self, *where: int) -> None:
        if self.engine is not None:
            self.engine.comm_end(*where)

    def bubble_begin(self) -> None:
        if self.engine is not None:
            self.engine.bubble_begin()
        self._began = time.perf_counter()

    def bubble_end(self) -> None:
        self.bubble_s += time.perf_counter() - self._began
        if self.engine is not None:
            self.engine.bubble_end()


class Training:
    def __init__(self, settings: dict[str, Any], stage: int, pipeline: Any, replicas: Any) -> None:
        torch.manual_seed(1 + stage)  # the replicas of a stage begin alike
        width, layers = settings["width"], settings["layers"]
        self.stage, self.stages = stage, settings["stages"]
        self.micro_batches = settings["micro_batches"]
        rows = settings["batch"] * self.micro_batches
        self.model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.Tanh())))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=True)
        of_stage = PipelineStage(self.model, stage, self.stages, torch.device("cpu"), group=pipeline)
        self.schedule = Schedule1F1B(of_stage, self.micro_batches, loss_fn=nn.functional.mse_loss)
        self.replicas = replicas
        self.input, self.target = torch.randn(rows, width), torch.randn(rows, width)
        self.gradients = torch.empty(sum(parameter.numel() for parameter in self.model.parameters()))

    def forward_backward(self) -> None:
        if self.stage == 0:
            self.schedule.step(self.input)
        elif self.stage == self.stages - 1:
            self.schedule.step(target=self.target)
        else:
            self.schedule.step()

    def reduce(self) -> None:
        torch.cat([parameter.grad.reshape(-1) for parameter in self.model.parameters()], out=self.gradients)
        dist.all_reduce(self.gradients, group=self.replicas)
        self.gradients /= dist.get_world_size(self.replicas)
        begin = 0
        for parameter in self.model.parameters():
            parameter.grad.copy_(self.gradients[begin : begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, torch.Tensor]:
        state = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        for number, own in enumerate(self.optimizer.state.values()):
            state |= {f"{key}{number}": value for key, value in own.items() if value.dim() != 0}
        return state


def processor_s(pid: int | str = "self") -> dict[str, float]:
    """Processor time of a process by the names of its threads, so far."""
    total_s: dict[str, float] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (thread / "comm").read_text().strip()
            spent_ns = int((thread / "schedstat").read_text().split()[0])
        except OSError:  # the thread has ended
            continue
        total_s[name] = total_s.get(name, 0.0) + 1e-9 * spent_ns
    return total_s


def make_groups(stages: int, world_size: int, rank: int) -> tuple[Any, Any]:
    """The group of this rank's pipeline, and that of its stage's replicas. Every rank makes all groups."""
    width = world_size // stages
    pipelines = [dist.new_group([stage * width + i for stage in range(stages)]) for i in range(width)]
    replicas = [dist.new_group(list(range(stage * width, (stage + 1) * width))) for stage in range(stages)]
    return pipelines[rank % width], replicas[rank // width]


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    rank, world_size, stages = settings["rank"], settings["world_size"], settings["stages"]
    os.sched_setaffinity(0, {settings["core"]})  # its copy threads share the core, too
    torch.set_num_threads(1)
    store = dist.FileStore(settings["rendezvous"], world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    stage = rank // (world_size // stages)
    training = Training(settings, stage, *make_groups(stages, world_size, rank))
    training.forward_backward()  # connects the ranks, and makes the optimizer's state
    training.reduce()
    training.update()
    listener = Listener()
    communication = Communication(listener, patch=True)
    state = training.state()
    engines: dict[str, Engine | None] = {"none": None}
    for name, options in settings["engines"].items():
        engine = engines[name] = Engine(**options)
        for tensor_name, tensor in state.items():
            engine.register(tensor_name, tensor.numpy())
        engine.restore()
    blocks = []
    k = 0
    agents = {name: settings["agents"][name] for name in settings["engines"]} if rank == 0 else {}
    for name, count in settings["blocks"]:
        listener.engine = engine = engines[name]
        block: dict[str, Any] = {"scheme": name, "ms": [], "pipeline": []}
        dist.barrier()
        before_s = {"rank": processor_s()} | {f"agent of {of}": processor_s(pid) for of, pid in agents.items()}
        for _ in range(count):
            k += 1
            began = time.perf_counter()
            if engine is not None:
                ticket = engine.snapshot(k)
                if not ticket.taken and ticket.status is not Status.SKIPPED:
                    raise RuntimeError(f"snapshot {k} failed: {ticket.message}")
            listener.bubble_s = 0.0
            step = time.perf_counter()
            training.forward_backward()
            step_s, bubble_s = time.perf_counter() - step, listener.bubble_s
            passes = 2 * training.micro_batches
            block["pipeline"].append({"bubble_ms": 1e3 * bubble_s, "pass_ms": 1e3 * (step_s - bubble_s) / passes})
            training.reduce()
            if engine is not None:
                engine.before_update()
            training.update()
            block["ms"].append(1e3 * (time.perf_counter() - began))
        after_s = {"rank": processor_s()} | {f"agent of {of}": processor_s(pid) for of, pid in agents.items()}
        block["processor_ms"] = {
            f"{of}, {thread}": 1e3 * (spent_s - before_s[of].get(thread, 0.0)) / count
            for of, threads in after_s.items()
            for thread, spent_s in threads.items()
        }
        blocks.append(block)
    copied = {}
    for name, engine in engines.items():
        if engine is not None:
            stats = engine.stats()
            keys = ("snapshots", "skipped", "bubble_bytes", "compute_bytes", "update_bytes", "layered", "layered_late")
            copied[name] = {key: getattr(stats, key) for key in keys}
    communication.close()
    report = {
        "rank": rank,
        "stage": stage,
        "state_bytes": sum(tensor.nbytes for tensor in state.values()),
        "blocks": blocks,
        "copied": copied,
    }
    Path(settings["report"]).write_text(json.dumps(report))
    dist.barrier()
    for engine in engines.values():
        if engine is not None:
            engine.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
