"""torch.distributed.checkpoint loads what ckptengine stored."""

from __future__ import annotations

import json
import signal
import time

import pytest
import torch
from ckptengine.dcp import Reader
from conftest import build_file_of, nightly_but
from fork_server import TORCH
from rank_processes import DEADLINE_S, lose_node, ranks_of
from test_frameworks import ITERATIONS, assert_committed
from test_frameworks import Job as Training


def run_rank(settings: dict) -> None:
    import dcp_trainer

    dcp_trainer.run(settings)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


class Ranks:
    """Processes that use torch.distributed.checkpoint together."""

    def __init__(self, context, folder) -> None:
        self.context, self.folder, self.starts = context, folder, 0

    def run(self, does: str, world_size: int, **settings) -> list[dict]:
        self.starts += 1
        place = self.folder / f"{does}-{self.starts}"
        place.mkdir()
        shared = {"does": does, "world_size": world_size, "rendezvous": str(place / "rendezvous")}
        own = [shared | settings | {"rank": r, "log": str(place / f"rank{r}")} for r in range(world_size)]
        processes = [self.context.Process(target=run_rank, args=(one,), daemon=True) for one in own]
        for process in processes:
            process.start()
        deadline = time.monotonic() + DEADLINE_S
        try:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            codes = {rank: process.exitcode for rank, process in enumerate(processes)}
            assert codes == dict.fromkeys(codes, 0) | dict.fromkeys(settings.get("victims", ()), -signal.SIGKILL)
        finally:
            for process in processes:
                process.kill()
                process.join()
        self.place = place
        if settings.get("victims"):
            return []
        told = [json.loads(open(one["log"]).read()) for one in own]
        assert not [one["error"] for one in told if "error" in one], next(o["error"] for o in told if "error" in o)
        return told


@pytest.fixture
def processes(ranks, tmp_path):
    return Ranks(ranks, tmp_path)


class Stored:
    """A checkpoint of a training on storage, and its whole tensors as torch puts them together."""

    def __init__(self, cluster, ranks, folder, kind: str, world_size: int) -> None:
        self.cluster, self.storage = cluster, folder / "storage"
        self.storage.mkdir()
        job = Training(ranks, folder, kind, world_size, cluster, storage=self.storage, storage_every=1,
                       storage_keep_every=1)
        assert_committed(job.start(whole=True))
        self.step = self.storage / cluster.job / f"step-{ITERATIONS - 1:08}"
        deadline = time.monotonic() + DEADLINE_S
        while not (self.step / "manifest.json").exists():
            assert time.monotonic() < deadline, list(self.storage.rglob("*"))
            time.sleep(0.05)
        self.whole = torch.load(folder / f"{job.kind}-1" / "rank0.pt")

    def settings(self) -> dict:
        library = str(build_file_of("libckptengine.so"))
        return {"storage": str(self.storage), "job": self.cluster.job, "library": library}

    def reader(self, **more) -> Reader:
        where = {"job": self.cluster.job, "library": build_file_of("libckptengine.so")}
        return Reader(self.storage, **(where | more))


def differing(found: dict, expected: dict) -> list[str]:
    return [name for name in expected if not torch.equal(found[name], expected[name])]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("stored_as", "loaded_as"), nightly_but([(("fsdp2 on 4", 4), ("fsdp2", 3))], [
    (("fsdp2 on 4", 4), ("fsdp2", 3)), (("fsdp2 on 4", 4), ("fsdp2_tensor", 4)), (("fsdp2", 2), ("hsdp", 4))]))
def test_a_checkpoint_on_storage_is_loaded_at_another_world_size_and_mesh(
        cluster, ranks, processes, tmp_path, stored_as, loaded_as):
    stored = Stored(cluster, ranks, tmp_path, *stored_as)
    kind, world_size = loaded_as
    told = processes.run("load_into_training", world_size, kind=kind, **stored.settings())
    assert [one["iteration"] for one in told] == [ITERATIONS - 1] * world_size
    assert [one["scheduler"] for one in told] == [ITERATIONS] * world_size
    found = torch.load(processes.place / "rank0.pt")
    assert stored.whole.keys() == found.keys() and len(found) >= 16
    assert differing(found, stored.whole) == []


# ---- memory ----


def engines(cluster, world_size: int, **options) -> list[dict]:
    """Options of the engine of each rank, each on a node of its own."""
    options = {"restore_timeout_ms": 60_000, "claim_timeout_ms": 20_000, "schedule": "immediate",
               "library": build_file_of("libckptengine.so")} | options
    own = [cluster.options(rank, world_size, **options) for rank in range(world_size)]
    return [{key: value if isinstance(value, int) else str(value) for key, value in one.items()} for one in own]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("world_size", "asynchronous"), nightly_but([(1, False), (3, True)], [
    (1, False), (1, True), (3, False), (3, True)]))
def test_restarted_ranks_load_their_last_save_from_memory(
        cluster, processes, world_size, asynchronous):
    # A save is whole, also in iterations that capture_every leaves out.
    shared = {"engine": engines(cluster, world_size, capture_every=2), "seeds": [3, 4, 5]}
    told = processes.run("save", world_size, asynchronous=asynchronous, **shared)
    assert told == [{"saved": [[k, True] for k in range(3)]}] * world_size
    told = processes.run("load", world_size, **shared)
    assert told == [{"iteration": 2, "differs": []}] * world_size


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loss", ["rank", "node"])
def test_load_succeeds_after_a_loss(cluster, processes, loss):
    """With rows where columns were saved: each rank needs what the others have."""
    shared = {"engine": engines(cluster, 3), "seeds": [3, 4]}
    processes.run("save", 3, victims=[1], **shared)
    if loss == "node":
        lose_node(cluster, "n1")
    told = processes.run("load", 3, dim=1, **shared)
    assert told == [{"iteration": 1, "differs": []}] * 3


@pytest.mark.timeout(300)
def test_ranks_load_a_checkpointers_capture_from_memory(cluster, ranks, processes, tmp_path):
    job = Training(ranks, tmp_path, "fsdp2 on 4", 4, cluster)
    assert_committed(job.start(whole=True))
    expected = torch.load(tmp_path / "fsdp2 on 4-1" / "rank0.pt")
    own = engines(cluster, 4)
    for rank, one in enumerate(own):
        one["node"] = job.node(rank)
    processes.run("load_into_training", 4, kind="fsdp2_tensor", engine=own)
    assert differing(torch.load(processes.place / "rank0.pt"), expected) == []
