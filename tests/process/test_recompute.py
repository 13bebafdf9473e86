"""protection=recompute(2) in a real job of two nodes: copies come from repeated updates, restored bit for bit."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import build_file_of, nightly_but
from fork_server import TORCH
from rank_processes import lose_node, ranks_of, run_ranks
from recompute_trainer import control, train, undisturbed

RANKS = (0, 1)
ITERATIONS = 18
# What happens to updates. An update of "freeze" and "groups" can be repeated, the others not.
EVENTS = {4: "freeze", 5: "groups", 7: "closure", 9: "skip", 11: "twice", 13: "clamp"}
KILLED_AT = 15
NOT_FIRST = 1  # the first checkpoint has no base


@pytest.fixture(scope="module")
def ranks():
    return ranks_of(*TORCH)


def settings(cluster, tmp_path, rank: int, iterations: int, **changes) -> dict:
    options = cluster.options(rank, 2, protection="recompute(2)", library=str(build_file_of("libckptengine.so")))
    del options["copies"]
    return {
        "options": options,
        "rank": rank,
        "world_size": 2,
        "iterations": iterations,
        "losses": str(tmp_path / f"losses{rank}"),
        "rendezvous": str(tmp_path / "rendezvous"),
    } | changes


def counters(cluster, node: int) -> dict:
    where = ["--job", cluster.job, "--arena-dir", cluster.arena, "--node", f"n{node}"]
    printed = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where], check=False, capture_output=True)
    [agent] = json.loads(printed.stdout)["agents"]
    assert agent["protection"] == "recompute(2)"
    return agent["counters"]


def lines(tmp_path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / f"losses{rank}").read_text().splitlines()]


# test_optimizer.py compares the steps of all optimizers.
@pytest.mark.parametrize("optimizer", nightly_but(["adamw"], ["adamw", "sgd", "fused_sgd"]))
def test_lost_node_is_restored_from_recomputed_copies_after_any_outcome_of_updates(
    cluster, ranks, tmp_path, optimizer
):
    how = {"events": EVENTS, "optimizer": optimizer}
    both = [settings(cluster, tmp_path, rank, ITERATIONS, kill_at=KILLED_AT, **how) for rank in RANKS]
    run_ranks(ranks, train, both, victims=RANKS)
    in_full = [k for k, event in EVENTS.items() if event in ("closure", "skip", "twice")]
    for node in RANKS:
        found = counters(cluster, node)
        assert found["recomputed_in_vain"] == 1, "the clamped parameter"
        assert found["not_recomputed"] == NOT_FIRST + len(in_full), found
        assert found["recomputed"] == KILLED_AT - len(in_full) - 1, found
    lose_node(cluster, "n0")
    run_ranks(ranks, train, [one | {"kill_at": None} for one in both])
    for rank in RANKS:
        told = lines(tmp_path, rank)
        assert [line["iteration"] for line in told] == list(range(ITERATIONS))
        assert [line["loss"] for line in told] == undisturbed(rank, ITERATIONS, **how)
    assert lines(tmp_path, 0)[-1]["from"] == 2, "the rank of the lost node was restored from the other node's memory"


def test_sharded_ranks_continue_after_agents_die_or_pause_during_an_update(cluster, ranks, tmp_path):
    iterations, killed_at = 30, 27
    strikes = {5: "kill holder", 12: "kill owner", 19: "pause holder"}
    both = [
        settings(cluster, tmp_path, rank, iterations, kill_at=killed_at, strikes=strikes, is_sharded=True)
        for rank in RANKS
    ]
    run_ranks(ranks, train, both, victims=RANKS)
    for node in RANKS:
        assert counters(cluster, node)["recomputed"] > 0
    lose_node(cluster, "n0")
    (tmp_path / "rendezvous").unlink()
    run_ranks(ranks, train, [one | {"kill_at": None, "strikes": {}} for one in both])
    (tmp_path / "rendezvous").unlink(missing_ok=True)
    run_ranks(ranks, control, [one | {"losses": str(tmp_path / f"control{one['rank']}")} for one in both])
    for rank in RANKS:
        expected = (tmp_path / f"control{rank}").read_text().splitlines()
        assert [line["loss"] for line in lines(tmp_path, rank)] == expected
    assert lines(tmp_path, 0)[-1]["from"] == 2, "the rank of the lost node was restored from the other node's memory"


def test_an_unknown_optimizer_is_named_once_and_its_job_is_protected_by_copies(cluster, ranks, tmp_path):
    run_ranks(ranks, train, [settings(cluster, tmp_path, rank, 5, optimizer="rmsprop") for rank in RANKS])
    log = (tmp_path / "losses0.log").read_text()
    assert log.count("only torch.optim.AdamW, Adam and SGD are repeated, not RMSprop") == 1
    assert counters(cluster, 0)["recomputed"] == 0
