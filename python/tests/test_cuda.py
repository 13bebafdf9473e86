"""State in device memory through real agents, on a test double of the GPU (tests/cuda/double), or on a real one where
CKPTENGINE_TEST_GPU is "real" (./dev test --gpu)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import communicating
import pytest
import torch
from ckptengine import Stage
from ckptengine.torch import Checkpointer
from comm_words import BEGIN, END, ITERATION, CommWords
from conftest import BUILD

GPU = BUILD / "tests" / "cuda_double"
TRAINER = Path(__file__).with_name("cuda_trainer.py")
TORCH_TRAINER = Path(__file__).with_name("torch_trainer.py")

IS_REAL = os.environ.get("CKPTENGINE_TEST_GPU") == "real"

pytestmark = pytest.mark.skipif(not GPU.exists() and not IS_REAL, reason="built without CUDA")


class Trainer:
    def __init__(self, job: dict, *arguments: object, script: Path = TRAINER) -> None:
        options = json.dumps({key: str(value) for key, value in job.items()})
        environment = dict(os.environ)
        if not IS_REAL:
            environment["LD_LIBRARY_PATH"] = f"{GPU}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.process = subprocess.Popen(
            [sys.executable, script, options, *map(str, arguments)],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def says(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def answer(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


def test_commit_survives_kill_9_during_a_capture(job):
    first = Trainer(job, 1, "hang")
    assert first.says() == {"iteration": -1, "values": []}
    assert first.says() == {"committed": 1}
    first.kill()
    second = Trainer(job, 3)
    start = second.says()
    # A real GPU may have ended the second capture before the kill.
    assert start == {"iteration": 1, "values": [1]} or (IS_REAL and start == {"iteration": 2, "values": [2]})
    assert second.says() == {"committed": 3}
    second.end()


@pytest.mark.skipif(not (IS_REAL and torch.cuda.is_available()), reason="needs PyTorch on a real GPU")
@pytest.mark.parametrize("how", [(), ("graph",)], ids=["eager", "graph"])
def test_killed_pytorch_trainer_restores_bit_for_bit(job, tmp_path, how):
    first = Trainer(job, tmp_path, "cuda", *how, script=TORCH_TRAINER)
    assert first.says()["iteration"] == -1
    committed = [first.says()["committed"] for _ in range(3)][-1]
    communicating.until(CommWords(job).is_capturing)
    first.kill()
    second = Trainer(job, tmp_path, "cuda", *how, script=TORCH_TRAINER)
    start = second.says()
    assert start["iteration"] >= committed
    assert start["tensors"] == 6 + 18  # parameters, and Adam's of each
    assert start["differ"] == []
    assert second.says()["committed"] > start["iteration"]
    second.kill()


@pytest.mark.skipif(IS_REAL, reason="needs a GPU that can be held up")
def test_communication_lasts_as_long_as_on_the_gpu(job):
    trainer = Trainer(job, 1, "communicate")
    assert trainer.says()["iteration"] == -1
    assert trainer.says() == {"communicating": True}
    words = CommWords(job)
    communicating.until(words.is_busy)
    trainer.answer()
    assert trainer.says() == {"communicating": False}
    assert not words.is_busy()
    assert trainer.says() == {"committed": 1}
    trainer.end()
    assert words.kinds() == [(BEGIN, 4), (END, 4), (ITERATION, 0)]


def registering_says(job: dict, driver_folder: str, before: str = "") -> str:
    """What a process hears that registers a tensor in device memory, with the driver of that folder."""
    code = (
        "import ctypes, json, sys\n"
        "from ckptengine import DType, Engine, Error, Memory\n"
        f"{before}\n"
        "with Engine(**json.loads(sys.argv[1])) as engine:\n"
        "    try:\n"
        "        engine.register_pointer('w', 4096, DType.U8, (1,), memory=Memory.DEVICE)\n"
        "    except Error as error:\n"
        "        print(error.status.name, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps({key: str(value) for key, value in job.items()})],
        env={**os.environ, "LD_LIBRARY_PATH": driver_folder}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout


def test_device_tensor_is_refused_without_a_driver(job):
    says = registering_says(job, "")
    # Drivers differ in what they say.
    if "CUDA is not initialized on this thread" in says or "was registered as device memory" in says:
        pytest.skip("this machine has a driver")
    assert says.startswith('INVALID tensor "w" is in device memory, but there is no CUDA driver (libcuda.so.1')


@pytest.mark.skipif(IS_REAL, reason="needs a driver of a chosen version")
def test_a_driver_that_is_too_old_is_refused_with_both_versions(job):
    older = "ctypes.CDLL('libcuda.so.1').ckpt_double_driver_version(9020)"
    says = registering_says(job, str(GPU), older)
    assert says.startswith(
        'INVALID tensor "w" is in device memory, but the CUDA driver is too old: it is for CUDA 9.2,'
    )
    assert says.rstrip().endswith("; update the driver")


def test_checkpointer_uses_the_current_stream_unless_given_others(job, monkeypatch):
    def stream(handle: int) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=handle)

    with Checkpointer(torch.nn.Linear(4, 4), **job) as checkpointer:
        checkpointer.restore()
        checkpointer.snapshot(0)
        checkpointer.before_update()
        named = []
        engine = checkpointer.engine
        snapshot, before_update = engine.snapshot, engine.before_update
        monkeypatch.setattr(engine, "snapshot", lambda k, of: (named.append(of), snapshot(k, of))[1])
        monkeypatch.setattr(engine, "before_update", lambda of: (named.append(of), before_update(of))[1])
        monkeypatch.setattr(checkpointer._registry, "gpu", torch.device("cuda", 0))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream(77))
        assert checkpointer.snapshot(1).wait(Stage.CAPTURING, 20_000)
        assert checkpointer.before_update()
        assert checkpointer.snapshot(2).wait(Stage.CAPTURING, 20_000)
        assert checkpointer.before_update(stream(5), stream(6))
        assert named == [77, [77], 77, [5, 6]]
