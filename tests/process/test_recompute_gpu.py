"""protection=recompute(2) with tensors on a GPU, in jobs of two nodes with real agents: on a test double of the driver
(tests/cuda/double), and, if CKPTENGINE_TEST_GPU is "real", with torch on this machine's GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, build_file_of
from rank_processes import lose_node

GPU = BUILD / "tests" / "cuda_double"
KERNELS = BUILD / "tests" / "liboptimizer_for_tests.so"
IS_REAL = os.environ.get("CKPTENGINE_TEST_GPU") == "real"
RANKS = (0, 1)
ITERATIONS = 10
NOT_FIRST = 1  # the first checkpoint has no base
IN_VAIN_MAX = 3  # then the agent repeats no more

on_double = pytest.mark.skipif(IS_REAL or not GPU.exists(), reason="needs the test double of a driver")
on_gpu = pytest.mark.skipif(not IS_REAL, reason="needs a GPU")


def counters(cluster, node: int) -> dict:
    where = ["--job", cluster.job, "--arena-dir", cluster.arena, "--node", f"n{node}"]
    printed = subprocess.run([build_file_of("ckptctl"), "status", "--json", *where], check=False, capture_output=True)
    [agent] = json.loads(printed.stdout)["agents"]
    return agent["counters"]


def options_of(cluster, rank: int) -> dict:
    options = cluster.options(rank, 2, protection="recompute(2)", library=str(build_file_of("libckptengine.so")))
    del options["copies"]
    return options


class Trainers:
    """Both ranks of a job on the test double."""

    def __init__(self, cluster, form: str, iterations: int) -> None:
        folders = [ROOT / "python", ROOT / "python" / "tests", Path(__file__).parent]
        self.processes = [
            subprocess.Popen(
                [sys.executable, Path(__file__).with_name("recompute_gpu_trainer.py"),
                 json.dumps({key: str(value) for key, value in options_of(cluster, rank).items()}), KERNELS, form,
                 str(iterations)],
                env={**os.environ, "LD_LIBRARY_PATH": f"{GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                     "PYTHONPATH": os.pathsep.join(map(str, folders))},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in RANKS
        ]  # fmt: skip

    def says(self) -> list[dict]:
        return [json.loads(process.stdout.readline()) for process in self.processes]

    def kill(self) -> list[str]:
        for process in self.processes:
            process.kill()
        return [process.communicate(timeout=30)[1] for process in self.processes]

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def train(cluster, form: str) -> tuple[list[dict], list[str]]:
    """What both ranks said last, and what they logged. They were killed then."""
    with Trainers(cluster, form, ITERATIONS) as trainers:
        assert [said["iteration"] for said in trainers.says()] == [-1, -1]
        for _ in range(ITERATIONS):
            last = trainers.says()
        return last, trainers.kill()


def expect_restored(cluster, form: str, last: list[dict]) -> None:
    lose_node(cluster, "n0")
    with Trainers(cluster, form, ITERATIONS) as trainers:
        restored = trainers.says()
    assert [said["digest"] for said in restored] == [said["digest"] for said in last]
    assert [said["iteration"] for said in restored] == [ITERATIONS - 1] * 2
    assert restored[0]["tier"] == 2, "the rank of the lost node was restored from the other node's memory"


@on_double
@pytest.mark.parametrize("form", ["fused", "foreach", "sgd"])
def test_a_lost_node_is_restored_from_copies_that_repeat_a_gpus_updates(cluster, form):
    last, logs = train(cluster, form)
    for node in RANKS:
        found = counters(cluster, node)
        assert found["recomputed"] == ITERATIONS - NOT_FIRST, (found, logs)
        assert found["recomputed_in_vain"] == 0
    expect_restored(cluster, form, last)


@on_double
def test_gpu_with_other_arithmetic_is_protected_by_copies(cluster):
    last, _ = train(cluster, "other")
    for node in RANKS:
        found = counters(cluster, node)
        assert found["recomputed_in_vain"] == IN_VAIN_MAX
        assert found["recomputed"] == 0
    expect_restored(cluster, "other", last)


@on_double
def test_an_update_that_no_node_can_repeat_is_named_once_and_protected_by_copies(cluster):
    last, logs = train(cluster, "adam")
    assert logs[0].count("fused Adam does not round weight decay alike") == 1
    assert counters(cluster, 0)["recomputed"] == 0
    expect_restored(cluster, "adam", last)


EVENTS = {3: "freeze", 4: "groups", 6: "twice"}  # the last one cannot be repeated
REAL_ITERATIONS, KILLED_AT = 12, 10


@on_gpu
@pytest.mark.parametrize("optimizer", ["adamw", "foreach_adamw", "sgd"])
def test_torch_trains_on_a_gpu_and_a_lost_node_is_restored_from_recomputed_copies(cluster, tmp_path, optimizer):
    from fork_server import TORCH
    from rank_processes import ranks_of, run_ranks
    from recompute_trainer import control, train

    ranks = ranks_of(*TORCH)
    how = {"events": EVENTS, "optimizer": optimizer, "device": "cuda"}
    both = [
        {"options": options_of(cluster, rank), "rank": rank, "world_size": 2, "iterations": REAL_ITERATIONS,
         "losses": str(tmp_path / f"losses{rank}"), "kill_at": KILLED_AT} | how
        for rank in RANKS
    ]  # fmt: skip
    run_ranks(ranks, train, both, victims=RANKS)
    for node in RANKS:
        found = counters(cluster, node)
        assert found["recomputed_in_vain"] == 0, found
        assert found["recomputed"] == KILLED_AT - 1, found
    lose_node(cluster, "n0")
    run_ranks(ranks, train, [one | {"kill_at": None} for one in both])
    run_ranks(ranks, control, [one | {"losses": str(tmp_path / f"control{one['rank']}")} for one in both])
    for rank in RANKS:
        told = [json.loads(line) for line in (tmp_path / f"losses{rank}").read_text().splitlines()]
        assert [line["loss"] for line in told] == (tmp_path / f"control{rank}").read_text().splitlines()
    assert told and json.loads((tmp_path / "losses0").read_text().splitlines()[-1])["from"] == 2
