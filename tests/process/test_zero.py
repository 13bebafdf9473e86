"""ZeroRedundancyOptimizer: each rank's part of the optimizer state is captured, or the job is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ckptengine import Error, Stage
from ckptengine.torch import Checkpointer
from conftest import build_file_of
from fork_server import TORCH
from rank_processes import lose_node, ranks_of, run_ranks
from torch.distributed.optim import ZeroRedundancyOptimizer

ITERATIONS, KILLED_AT = 8, 5


def job() -> tuple[torch.nn.Module, ZeroRedundancyOptimizer]:
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(4)))
    model = torch.nn.parallel.DistributedDataParallel(net)
    return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)


def update(model: torch.nn.Module, optimizer, schedule, k: int) -> float:
    torch.manual_seed(100 + k)
    loss = model(torch.rand(8, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.item()


def train(settings: dict) -> None:
    rank, written = settings["rank"], Path(settings["losses"])
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=rank, world_size=2)
    model, optimizer = job()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    if settings["options"] is None:  # the losses of a job that nothing happens to
        losses = [update(model, optimizer, schedule, k) for k in range(ITERATIONS)]
        written.write_text(json.dumps(losses))
        return
    optimizers = {"outer": optimizer, "inner": optimizer.optim}
    with Checkpointer(model, optimizers, schedulers=schedule, **settings["options"]) as checkpointer:
        begin = checkpointer.restore().next_iteration
        losses = {}
        for k in range(begin, settings["until"]):
            losses[k] = update(model, optimizer, schedule, k)
            ticket = checkpointer.snapshot(k)
            ticket.wait(Stage.CAPTURING, 20_000)  # before_update() skips a snapshot that has no slot
            checkpointer.before_update()
            assert ticket.wait(timeout_ms=20_000)
        written.write_text(json.dumps({"begin": begin, "losses": losses}))
        dist.barrier()


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


def test_job_continues_with_the_optimizer_state_of_a_lost_node(cluster, ranks, tmp_path):
    def start(name: str, until: int, **changes) -> list:
        options = [cluster.options(rank, 2, library=str(build_file_of("libckptengine.so"))) for rank in (0, 1)]
        settings = [
            {"rank": rank, "until": until, "options": options[rank], "losses": str(tmp_path / f"{name}{rank}"),
             "rendezvous": str(tmp_path / name)} | changes
            for rank in (0, 1)
        ]
        run_ranks(ranks, train, settings)
        return [json.loads(Path(one["losses"]).read_text()) for one in settings]

    undisturbed = start("undisturbed", ITERATIONS, options=None)
    start("first", KILLED_AT)
    lose_node(cluster, "n0")
    for rank, told in enumerate(start("second", ITERATIONS)):
        assert told["begin"] == KILLED_AT
        assert list(told["losses"].values()) == undisturbed[rank][KILLED_AT:]


def test_outer_optimizer_without_its_inner_one_is_refused(tmp_path):
    class Outer(torch.optim.SGD):
        def __init__(self, parameters) -> None:
            super().__init__(parameters, lr=0.1)
            self.base = torch.optim.AdamW(self.param_groups)

    net = torch.nn.Linear(2, 2)
    optimizer = Outer(net.parameters())
    with pytest.raises(Error, match="Outer keeps state in an optimizer of its own, its attribute 'base'"):
        Checkpointer(net, optimizer, job="refused", arena_dir=tmp_path, library=str(build_file_of("libckptengine.so")))
