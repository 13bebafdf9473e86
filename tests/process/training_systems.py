"""Small jobs of training systems (DeepSpeed, torchtitan, Megatron): the ranks' side, and the test's."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
from datetime import timedelta
from pathlib import Path

from ckptengine import load_library
from test_frameworks import ITERATIONS, Job, assert_committed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
COMMIT_MS = 60_000


def example(title: str) -> str:
    """The first Python example below a heading of the documentation."""
    section = PAGE.read_text().split(f"\n## {title}\n", 1)[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


class Rank:
    """One rank. Dies at the begin of iteration `die_at`, if it is one of `victims`."""

    def __init__(self, settings: dict) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": str(settings["rank"]), "LOCAL_RANK": "0",
                       "WORLD_SIZE": str(settings["world_size"])}
        dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=settings["rank"],
                                world_size=settings["world_size"], timeout=timedelta(seconds=120))
        self.settings, self.log = settings, open(settings["log"], "w", buffering=1)
        self.names: dict = {}
        self.begun = -1

    def tell(self, **event) -> None:
        self.log.write(json.dumps(event) + "\n")

    def begin(self, k: int) -> None:
        """An iteration begins. The one before is committed first."""
        if k == self.begun:
            return
        checkpointer = self.names.get("ckpt")
        if checkpointer is None:
            pass  # an undisturbed run
        elif self.begun < 0:
            self.tell(first=k)
        else:
            if hasattr(checkpointer, "before_update"):
                checkpointer.before_update()
            ticket = checkpointer.ticket
            self.tell(k=k, committed=ticket.wait(timeout_ms=COMMIT_MS), message=ticket.message)
        self.begun = k
        if k == self.settings["die_at"] and self.settings["rank"] in self.settings["victims"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def run(self, code: str, **names) -> None:
        """Runs an example of the documentation, which makes a checkpointer `ckpt`."""
        load_library(self.settings["engine"].pop("library"))
        os.environ |= {f"CKPTENGINE_{key.upper()}": str(value)
                       for key, value in self.settings["engine"].items() if key not in ("rank", "world_size")}
        self.names |= names | {"job": self.settings["engine"]["job"]}
        exec(compile(code, "example", "exec"), self.names)
        self.end()

    def end(self) -> None:
        import torch.distributed as dist

        dist.barrier()  # rank 0 serves the others until then
        self.tell(ended=True)
        os._exit(0)


def train_rank(settings: dict) -> None:
    importlib.import_module(settings["trainer"]).run(settings)


class SystemJob(Job):
    """A job of two ranks, each on a node of its own. `trainer` is the module with run()."""

    train = staticmethod(train_rank)

    def __init__(self, trainer: str, ranks, folder, kind: str, cluster=None, **options) -> None:
        super().__init__(ranks, folder, kind, 2, cluster, **options)
        self.trainer = trainer

    def _settings(self, place, rank: int) -> dict:
        return super()._settings(place, rank) | {"trainer": self.trainer}


def losses(told: list[list[dict]]) -> list[dict[tuple, list]]:
    """What each rank told of its losses, by iteration and forward pass."""
    return [{(event["k"], event.get("micro", 0)): event for event in events if "loss" in event} for events in told]


def assert_goes_on(job: Job, undisturbed: list, die_at: int, victims: tuple[int, ...], lost: str = "",
                   **more) -> None:
    """Ranks die at the begin of an iteration, one node is lost, and the next start has the losses of an undisturbed
    run."""
    first = job.start(die_at, victims, **more)
    assert_committed(first)
    if lost:
        job.lose_node(lost)
    second = job.start(**more)
    assert_committed(second)
    assert [events[0]["first"] for events in second] == [die_at] * job.world_size
    for rank, expected in enumerate(undisturbed):
        before, after = losses(first)[rank], losses(second)[rank]
        assert {k for k, _ in after} == set(range(die_at, ITERATIONS))
        kept = {key: event for key, event in before.items() if key[0] < die_at}
        assert kept | after == expected, (rank, die_at)
