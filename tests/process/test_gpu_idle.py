"""Idle spans of a GPU, between real agents and a trainer on a test double of the driver (tests/cuda/double): what
status and trace show of them, and a trainer that is killed while its state is copied in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BUILD, ROOT, build_file_of

sys.path.append(str(ROOT / "python" / "tests"))

from gpu_idle_trainer import LEARNED, SIZE_BYTES, value_of

GPU = BUILD / "tests" / "cuda_double"

pytestmark = pytest.mark.skipif(not GPU.exists(), reason="built without CUDA")


class Trainer:
    def __init__(self, cluster, *how: str) -> None:
        options = cluster.options(copies=1, layered_capture="true", profile_iterations=3, gpu_staging_bytes="8MiB",
                                  library=build_file_of("libckptengine.so"))
        folders = [ROOT / "python", ROOT / "python" / "tests", Path(__file__).parent]
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("gpu_idle_trainer.py"),
             json.dumps({key: str(value) for key, value in options.items()}), *how],
            env={**os.environ, "LD_LIBRARY_PATH": f"{GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                 "PYTHONPATH": os.pathsep.join(map(str, folders))},
            stdout=subprocess.PIPE, text=True)

    def says(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def ckptctl(cluster, *words: object) -> str:
    where = [f"{key}={cluster.options()[key]}" for key in ("job", "arena_dir", "coordination")]
    answer = subprocess.run([build_file_of("ckptctl"), *map(str, words), *where], capture_output=True, text=True,
                            timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_gpu_bubbles_are_shown_and_used_for_captures(cluster, tmp_path):
    with Trainer(cluster) as trainer:
        assert trainer.says() == {"iteration": -1, "values": []}
        told = trainer.says()
        while told["layered"] - told["late"] < 2:
            assert told["committed"] < 100, told
            told = trainer.says()
        assert told["bubble_bytes"] >= SIZE_BYTES
        (agent,) = json.loads(ckptctl(cluster, "status", "--json"))["agents"]
        (rank,) = agent["schedule"]["ranks"]
        assert rank["device"]["bubbles"] == 1
        assert 20 < rank["device"]["bubble_ms"] < rank["device"]["until_update_ms"]
        assert "device idle for" in ckptctl(cluster, "status")
        path = tmp_path / "trace.json"
        ckptctl(cluster, "trace", "--output", path)
        names = {event["args"]["name"] for event in json.loads(path.read_text())["traceEvents"]
                 if event["name"] == "thread_name"}
        assert {"rank 0: bubbles", "rank 0: copying", "rank 0: communication"} <= names


def test_rank_killed_during_a_copy_in_a_bubble_restores_the_previous_checkpoint(cluster):
    with Trainer(cluster, "strike") as trainer:
        committed = -1
        trainer.says()
        while line := trainer.process.stdout.readline():
            committed = json.loads(line)["committed"]
        assert committed >= LEARNED - 1
    with Trainer(cluster) as trainer:
        assert trainer.says() == {"iteration": committed, "values": [value_of(committed)]}
