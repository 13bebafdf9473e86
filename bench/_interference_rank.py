"""One rank of the interference bench: _interference_rank.py SETTINGS.json, which interference.py writes.

Trains a small GPT whose parameters are sharded over the ranks, as FSDP (ZeRO-3) does it. Before a layer's forward and
backward pass, its parameters are gathered. After its backward pass, its gradients are reduced and scattered. Writes one
JSON line for each block of iterations to the file that the settings name.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import numpy as np
import torch
import torch.distributed as dist
from ckptengine import Engine, Stage, Status, Ticket
from torch import nn
from torch.nn import functional

COMMIT_S = 60
ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
OPTIMIZERS = {
    "sgd": lambda parts: torch.optim.SGD(parts, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda parts: torch.optim.AdamW(parts, **ADAMW, fused=True),
}


class Collectives:
    """The ranks' collectives. Tells the engine when each begins and ends, and measures how long it takes."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.spent_s = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        begin = time.perf_counter()
        if self.engine is not None:
            self.engine.comm_begin()
        try:
            yield
        finally:
            if self.engine is not None:
                self.engine.comm_end()
            self.spent_s += time.perf_counter() - begin

    def gather(self, whole: torch.Tensor, part: torch.Tensor) -> None:
        with self.running():
            dist.all_gather_into_tensor(whole, part)

    def reduce(self, part: torch.Tensor, whole: torch.Tensor) -> None:
        with self.running():
            dist.reduce_scatter_tensor(part, whole)


class Embedding(nn.Module):
    def __init__(self, characters: int, length: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(length, width))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.token(text) + self.position


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(heard.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))


class Head(nn.Module):
    def __init__(self, characters: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, characters, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.linear(self.norm(x)).flatten(0, 1), targets.flatten())


class Unit:
    """A layer of which this rank keeps a part: parameters and gradients are views of two flat buffers."""

    def __init__(self, layer: nn.Module, rank: int, world_size: int, averages: int) -> None:
        self.layer = layer
        parameters = list(layer.parameters())
        count = -(-sum(parameter.numel() for parameter in parameters) // world_size)
        self.whole = torch.zeros(count * world_size)
        self.gradients = torch.zeros(count * world_size)
        begin = 0
        for parameter in parameters:
            end = begin + parameter.numel()
            self.whole[begin:end] = parameter.detach().reshape(-1)
            parameter.data = self.whole[begin:end].view_as(parameter)
            parameter.grad = self.gradients[begin:end].view_as(parameter)
            begin = end
        self.part = nn.Parameter(self.whole[rank * count : (rank + 1) * count].clone())
        self.part.grad = torch.zeros(count)
        self.averages = [self.part.detach().clone() for _ in range(averages)]
        self.world_size = world_size

    def forward(self, collectives: Collectives, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        collectives.gather(self.whole, self.part.detach())
        self.input = x.detach().requires_grad_(x.is_floating_point())
        self.output = self.layer(self.input, *more)
        return self.output

    def backward(self, collectives: Collectives, gradient: torch.Tensor | None) -> torch.Tensor | None:
        collectives.gather(self.whole, self.part.detach())
        self.gradients.zero_()
        self.output.backward(gradient)
        collectives.reduce(self.part.grad, self.gradients)
        self.part.grad /= self.world_size
        gradient, self.input, self.output = self.input.grad, None, None
        return gradient


class Training:
    def __init__(self, settings: dict[str, Any]) -> None:
        rank, world_size = settings["rank"], settings["world_size"]
        characters, length, width = settings["characters"], settings["length"], settings["width"]
        torch.manual_seed(1)  # the same initial model on all ranks
        blocks = [Block(width, settings["heads"]) for _ in range(settings["layers"])]
        layers = [Embedding(characters, length, width), *blocks, Head(characters, width)]
        self.units = [Unit(layer, rank, world_size, settings["averages"]) for layer in layers]
        parts = [unit.part for unit in self.units]
        self.optimizer = OPTIMIZERS[settings["optimizer"]](parts)
        self.collectives = Collectives()
        self.text = np.load(settings["text"], mmap_mode="r")
        self.batch, self.length = settings["batch"], length
        self.generator = torch.Generator().manual_seed(1000 + rank)

    def _data(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.text) - self.length - 1, (self.batch,), generator=self.generator)
        rows = np.stack([self.text[start : start + self.length + 1] for start in starts.tolist()])
        rows = torch.from_numpy(rows.astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def forward(self) -> torch.Tensor:
        x, targets = self._data()
        *units, head = self.units
        for unit in units:
            x = unit.forward(self.collectives, x)
        return head.forward(self.collectives, x, targets)

    def backward(self) -> None:
        gradient = None
        for unit in reversed(self.units):
            gradient = unit.backward(self.collectives, gradient)

    def give_gradients(self, engine: Engine) -> None:
        """Gives AdamW's gradients to an engine whose nodes repeat the update. Nothing if they do not."""
        if not engine.wants_gradients():
            return
        has_fma = torch.backends.cpu.get_cpu_capability() != "DEFAULT"
        beta1, beta2 = ADAMW["betas"]
        for i, unit in enumerate(self.units):
            engine.add_gradient(
                data=unit.part.grad.data_ptr(),
                elements=unit.part.numel(),
                parameter=f"part{i}",
                first_moment=f"exp_avg{i}",
                second_moment=f"exp_avg_sq{i}",
                step=float(self.optimizer.state[unit.part]["step"]) + 1,
                learning_rate=ADAMW["lr"],
                beta1=beta1,
                beta2=beta2,
                epsilon=ADAMW["eps"],
                weight_decay=ADAMW["weight_decay"],
                decoupled_weight_decay=True,
                cpu_has_fma=has_fma,
            )

    def update(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            for unit in self.units:
                for number, average in enumerate(unit.averages, 1):
                    average.lerp_(unit.part, 0.1**number)

    def state(self) -> dict[str, torch.Tensor]:
        """The state that this rank alone has. It is complete only after the first update."""
        state = {}
        for i, unit in enumerate(self.units):
            state[f"part{i}"] = unit.part.detach()
            state |= {f"{key}{i}": value for key, value in self.optimizer.state[unit.part].items()}
            state |= {f"average{i}.{n}": average for n, average in enumerate(unit.averages)}
        return state


class Scheme:
    """One way to take snapshots, or none. Only blocking snapshots stop training, at the beginning of an iteration."""

    def __init__(self, settings: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
        self.name = settings["name"]
        self.is_blocking = settings["is_blocking"]
        self.engine: Engine | None = None
        self.ticket: Ticket | None = None
        if settings["engine"] is not None:
            self.engine = Engine(**settings["engine"], rank=dist.get_rank(), world_size=dist.get_world_size())
            for name, tensor in state.items():
                self.engine.register(name, tensor.view(-1).numpy())

    def begin_iteration(self, k: int) -> None:
        if self.is_blocking:
            self._snapshot(k)
            self.engine.before_update()
            self._wait()

    def before_update(self) -> None:
        if self.engine is not None and not self.is_blocking:
            self.engine.before_update()

    def end_iteration(self, k: int) -> None:
        if self.engine is not None and not self.is_blocking:
            self._snapshot(k)

    def progress(self) -> tuple[int, Stage]:
        """The last snapshot that was taken, -1 if none was or it was waited for, and its stage: NONE if discarded."""
        if self.ticket is None:
            return -1, Stage.COMMITTED
        return self.ticket.iteration, self.ticket.stage

    def _snapshot(self, k: int) -> None:
        ticket = self.engine.snapshot(k)
        if ticket.taken:
            self.ticket = ticket
        elif ticket.status is not Status.SKIPPED:
            raise RuntimeError(f"snapshot {k} of {self.name} failed: {ticket.message}")

    def _wait(self) -> None:
        ticket, self.ticket = self.ticket, None
        if ticket is not None and not ticket.wait(Stage.COMMITTED, 1000 * COMMIT_S):
            raise RuntimeError(f"snapshot {ticket.iteration} of {self.name} was not committed: {ticket.message}")

    def counts(self) -> dict[str, int]:
        if self.engine is None:
            return {}
        stats = self.engine.stats()
        return {name: getattr(stats, name) for name in ("snapshots", "skipped", "committed", "discarded")}


def of_all_ranks(values: Sequence[int]) -> list[list[int]]:
    gathered = torch.empty(dist.get_world_size() * len(values), dtype=torch.int64)
    dist.all_gather_into_tensor(gathered, torch.tensor(values, dtype=torch.int64))
    return gathered.view(-1, len(values)).tolist()


class Meter:
    """What was used so far: CPU time, and bytes that this node has sent over the link."""

    def __init__(self, agents: dict[str, list[int]], interface: str) -> None:
        self.agents = agents
        self.ranks = [pid for pids in of_all_ranks([os.getpid()]) for pid in pids]
        self.sent = Path(f"/sys/class/net/{interface}/statistics/tx_bytes")

    def read(self) -> dict[str, float]:
        """CPU time in seconds: of each scheme's agents, and of all that does not belong to the bench."""
        agents = {f"agents.{name}": sum(map(_cpu_s, pids)) for name, pids in self.agents.items()}
        others = _machine_s() - sum(agents.values()) - sum(map(_cpu_s, self.ranks))
        return agents | {"others": others, "seconds": time.perf_counter(), "sent_bytes": int(self.sent.read_text())}


def _machine_s() -> float:
    """CPU time of everything that runs on this machine, or takes from it."""
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _cpu_s(pid: int) -> float:
    """User and system time of a process, by its clock as Linux numbers them."""
    return time.clock_gettime(~pid << 3 | 2)


def difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {key: value - before.get(key, 0) for key, value in after.items()}


class Bench:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.training = Training(settings)
        self.k = 0
        self._iterate(None)  # connects the ranks, and makes the optimizer's state
        self.state = self.training.state()
        self.schemes = {own["name"]: Scheme(own, self.state) for own in settings["schemes"]}
        for scheme in self.schemes.values():
            if scheme.engine is not None:
                scheme.engine.restore()
        self.meter = Meter(settings["agents"], settings["interface"])

    def _iterate(self, scheme: Scheme | None, takes_snapshot: bool = True) -> dict[str, Any]:
        collectives = self.training.collectives
        collectives.engine = scheme.engine if scheme is not None else None
        collectives.spent_s = 0.0
        begin = time.perf_counter()
        if scheme is not None and takes_snapshot:
            scheme.begin_iteration(self.k)
        loss = self.training.forward()
        # This could wait until just before the update. But the little state is captured by now, and the update is
        # short. The agent needs some milliseconds between before_update() and the next snapshot() to grant a slot.
        if scheme is not None:
            scheme.before_update()
        self.training.backward()
        if scheme is not None and takes_snapshot and scheme.engine is not None:
            self.training.give_gradients(scheme.engine)
        self.training.update()
        if scheme is not None and takes_snapshot:
            scheme.end_iteration(self.k)
        self.k += 1
        return {"ms": 1e3 * (time.perf_counter() - begin), "comm_ms": 1e3 * collectives.spent_s, "loss": loss.item()}

    def block(self, name: str, iterations: int) -> dict[str, Any]:
        scheme = self.schemes[name]
        dist.barrier()
        before, counts = self.meter.read(), scheme.counts()
        done = [self._iterate(scheme) for _ in range(iterations)]
        further = self._finish(scheme)
        dist.barrier()
        return {
            "scheme": name,
            "iterations": done,
            "further": further,
            "used": difference(self.meter.read(), before),
            "counts": difference(scheme.counts(), counts),
        }

    def _finish(self, scheme: Scheme) -> int:
        """Goes on training without snapshots until the last one is committed; how many iterations it took. A checkpoint
        that a rank skipped or discarded never is: then there is one more. At least one iteration: to the agent it is
        one with what comes until the next snapshot of this scheme, which is not taken for the usual then.
        """
        if scheme.engine is None:
            return 0
        deadline = time.monotonic() + COMMIT_S
        takes_snapshot, further = False, 0
        while time.monotonic() < deadline:
            self._iterate(scheme, takes_snapshot)
            further += 1
            seen = of_all_ranks(scheme.progress())
            takes_snapshot = any(iteration != seen[0][0] or stage == Stage.NONE for iteration, stage in seen)
            if not takes_snapshot and all(stage == Stage.COMMITTED for _, stage in seen):
                return further
        raise RuntimeError(f"the last snapshot of {scheme.name} was not committed in {COMMIT_S} s")

    def close(self) -> None:
        for scheme in self.schemes.values():
            if scheme.engine is not None:
                scheme.engine.close()


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{settings['rendezvous']}",
        rank=settings["rank"],
        world_size=settings["world_size"],
        timeout=timedelta(seconds=120),
    )
    with open(settings["protocol"], "w", buffering=1) as protocol:
        bench = Bench(settings)
        state_bytes = sum(tensor.nbytes for tensor in bench.state.values())
        protocol.write(json.dumps({"state_bytes": state_bytes}) + "\n")
        for name, iterations in settings["blocks"]:
            protocol.write(json.dumps(bench.block(name, iterations)) + "\n")
        bench.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
