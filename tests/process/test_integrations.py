"""Jobs of Accelerate, transformers and Lightning: each loses a rank or a node at some update, starts again, and has the
losses of a run that nothing disturbed, bit for bit."""

from __future__ import annotations

import json
import random
import socket

import pytest
from conftest import ROOT, build_file_of, nightly_but
from fork_server import TORCH
from rank_processes import lose_node, ranks_of, run_ranks

RANKS = 2
UPDATES = 9
KINDS = ["accelerate", "transformers", "lightning"]
PRELOADED = [
    *(f"ckptengine.integrations.{kind}" for kind in KINDS), "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
]


def train_rank(settings: dict) -> None:
    import integration_trainer

    integration_trainer.run(settings)


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH, *PRELOADED)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    def __init__(self, ranks, folder, kind: str, cluster=None, world_size: int = RANKS, **more) -> None:
        self.ranks, self.folder, self.kind, self.cluster = ranks, folder, kind, cluster
        self.world_size, self.more = world_size, more
        self.starts = 0

    def start(self, die_at: int = -1, victim: int = -1) -> list[list[dict]]:
        """Lets all ranks run to their end. If one dies, the others are killed. What each rank told."""
        self.starts += 1
        port = free_port()
        settings = [self._settings(rank, port) | {"die_at": die_at, "victims": [victim]}
                    for rank in range(self.world_size)]
        run_ranks(self.ranks, train_rank, settings, victims=[] if victim < 0 else [victim])
        return [[json.loads(line) for line in open(one["log"])] for one in settings]

    def _settings(self, rank: int, port: int) -> dict:
        engine = None
        if self.cluster is not None:
            engine = self.cluster.options(library=build_file_of("libckptengine.so"), schedule="immediate",
                                          node=f"n{rank}", restore_timeout_ms=60_000, claim_timeout_ms=20_000)
            engine = {key: value if isinstance(value, int) else str(value) for key, value in engine.items()
                      if key not in ("rank", "world_size")}  # which the frameworks know
        folder = self.folder / f"{self.kind}-{self.starts}"
        folder.mkdir(exist_ok=True)
        return self.more | {
            "rank": rank, "world_size": self.world_size, "kind": self.kind, "port": port, "engine": engine,
            "folder": str(folder), "log": str(folder / f"rank{rank}.log")}

    def lose_node(self, node: str) -> None:
        lose_node(self.cluster, node)


def computed(events: list[dict]) -> list[tuple]:
    """Losses of batches and results of evaluations, with the number of updates before."""
    return [(event["updates"], event.get("loss"), event.get("evaluated")) for event in events if "updates" in event]


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    """What a run without an engine computes, by kind."""
    known = {}

    def get(kind: str):
        if kind not in known:
            told = Job(ranks, tmp_path_factory.mktemp("undisturbed"), kind).start()
            known[kind] = [computed(events) for events in told]
        return known[kind]

    return get


def position(updates: int) -> str:
    """The begin of the line that an adapter logs when training begins."""
    return f"{'resumed' if updates else 'started'}: {updates} updates done; in epoch "


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", nightly_but(KINDS, [*KINDS, "lightning_fsdp2"]))
def test_job_continues_bit_for_bit_after_losing_a_rank_and_then_a_node(
        cluster, ranks, undisturbed, tmp_path, kind):
    chance = random.Random(kind)
    first, second = sorted(chance.sample(range(1, UPDATES), 2))
    victims = [chance.randrange(RANKS) for _ in range(2)]
    job = Job(ranks, tmp_path, kind, cluster)
    lives = [job.start(first, victims[0]), job.start(second, victims[1])]
    job.lose_node(f"n{victims[1]}")
    lives.append(job.start())
    for rank in range(RANKS):
        result = []
        for told, begin, end in zip(lives, (0, first, second), (first, second, UPDATES + 1), strict=True):
            assert not [event for event in told[rank] if event.get("committed") is False]
            assert [event["first"] for event in told[rank] if "found" in event] == [begin]
            assert sum(position(begin) in event.get("said", "") for event in told[rank]) == 1
            result += [event for event in computed(told[rank]) if event[0] < end]  # a survivor may have computed more
        assert result == undisturbed(kind)[rank], (rank, first, second)


@pytest.mark.parametrize(("kind", "updates"), [("accelerate", 24), ("transformers", 12), ("lightning", 48)])
def test_the_example_runs_and_a_finished_run_says_so(cluster, ranks, tmp_path, kind, updates):
    script = ROOT / "examples" / "integrations" / f"train_{kind}.py"
    job = Job(ranks, tmp_path, "example", cluster, world_size=1, example=str(script))
    for done in (0, updates):
        [told] = job.start()
        assert sum(position(done) in event.get("said", "") for event in told) == 1, told


REFUSED = {
    "accelerate": {
        "nothing prepared": "was not called with a model",
        "no optimizer": "was not called with an optimizer",
        "no scheduler": "a scheduler that was not given to this adapter",
        "DEEPSPEED": "deepspeed.initialize() with ckptengine.integrations.deepspeed",
        "MEGATRON_LM": "Megatron-Core with ckptengine.integrations.megatron",
        "FSDP": "set fsdp_version to 2",
        "XLA": "train on CPU or CUDA devices",
        "no epochs": "for epoch in checkpointer.epochs(n)",
        "late prepare": "Create the Checkpointer after that call",
    },
    "transformers": {
        "{'optim': 'lomo'}": "use another optimizer",
        "{'auto_find_batch_size': True}": "Set per_device_train_batch_size",
        "not added": "call trainer.add_callback(callback)",
        "a second train()": "protects one trainer.train()",
        "other version": "Install transformers 5.24",
    },
    "lightning": {
        "no scheduler": "return it from configure_optimizers()",
        "no optimizer": "configure_optimizers() returned no optimizer",
        "FSDP1": "use DDPStrategy, or ModelParallelStrategy",
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_unsupported_state_is_refused_and_an_alternative_named(cluster, ranks, tmp_path, kind):
    [told] = Job(ranks, tmp_path, f"{kind}_refusals", cluster, world_size=1).start()
    refused = {event["what"]: event["refused"] for event in told if "what" in event}
    assert refused.keys() == REFUSED[kind].keys()
    for what, sentence in refused.items():
        assert sentence is not None and "\n" not in sentence, (what, sentence)
        assert REFUSED[kind][what] in sentence, what
