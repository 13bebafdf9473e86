"""protection=recompute(2) in a real job of two nodes: copies come from repeated updates, restored bit for bit."""

from __future__ import annotations

import json
import subprocess

import pytest
from conftest import build_file_of
from rank_processes import lose_node, ranks_of, run_ranks
from recompute_trainer import train, undisturbed

ITERATIONS, KILLED_AT = 14, 8
FIRST_REPEATED = 3  # the first update makes the moments, so the layout changes, and the next piece needs a base


@pytest.fixture(scope="module")
def ranks():
    return ranks_of("torch", "ckptengine.torch")


def settings(cluster, tmp_path, rank: int, iterations: int, **changes) -> dict:
    options = cluster.options(rank, 2, protection="recompute(2)", library=str(build_file_of("libckptengine.so")))
    return {"options": {key: str(value) if key not in ("rank", "world_size") else value
                        for key, value in options.items() if key != "copies"},
            "iterations": iterations, "losses": str(tmp_path / f"losses{rank}")} | changes


def counters(cluster, node: int) -> dict:
    where = ["--job", cluster.job, "--arena-dir", cluster.arena, "--node", f"n{node}"]
    printed = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where], check=False, capture_output=True)
    [agent] = json.loads(printed.stdout)["agents"]
    assert agent["protection"] == "recompute(2)"
    return agent["counters"]


def lines(tmp_path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / f"losses{rank}").read_text().splitlines()]


def test_a_node_that_is_lost_is_restored_from_a_recomputed_copy_with_the_same_losses(cluster, ranks, tmp_path):
    run_ranks(ranks, train, [settings(cluster, tmp_path, rank, ITERATIONS, kill_at=KILLED_AT) for rank in (0, 1)],
              victims=[0, 1])
    for node in (0, 1):
        found = counters(cluster, node)
        assert found["recomputed"] >= KILLED_AT - FIRST_REPEATED, found
        assert found["recomputed"] + found["not_recomputed"] == KILLED_AT + 1, found
        assert found["recomputed_in_vain"] == 0, found
    lose_node(cluster, "n0")
    run_ranks(ranks, train, [settings(cluster, tmp_path, rank, ITERATIONS) for rank in (0, 1)])
    for rank in (0, 1):
        told = lines(tmp_path, rank)
        assert [line["iteration"] for line in told] == list(range(ITERATIONS))
        assert [line["loss"] for line in told] == undisturbed(rank, ITERATIONS)
    assert lines(tmp_path, 0)[-1]["from"] == 2, "the rank of the lost node was restored from the other node's memory"


def test_an_unknown_optimizer_is_named_once_and_its_job_is_protected_by_copies(cluster, ranks, tmp_path):
    run_ranks(ranks, train, [settings(cluster, tmp_path, rank, 5, optimizer="sgd") for rank in (0, 1)])
    log = (tmp_path / "losses0.log").read_text()
    assert log.count("only torch.optim.AdamW and Adam are repeated, not SGD") == 1
    assert counters(cluster, 0)["recomputed"] == 0
