"""pytest plugin of scripts/dcp_upstream.py: runs torch's tests of distributed checkpoints on CPUs, with our Writer and
Reader in place of FileSystemWriter and FileSystemReader. CKPTENGINE_TEST_DCP says which: torch's own ("torch"), ours
with loads from storage ("storage"), or with loads from memory, as after a restart of the job ("memory").

Ranks are forked from this process, which has imported torch and made the replacements.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "chaos")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from ckptengine import Engine, Stage  # noqa: E402
from ckptengine.dcp import Reader, Writer  # noqa: E402
from processes import build_file, kill_agents  # noqa: E402
from torch.distributed.checkpoint import _storage_utils, filesystem  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402
from torch.testing._internal.distributed._shard import sharded_tensor  # noqa: E402

MODE = os.environ["CKPTENGINE_TEST_DCP"]
SCRATCH = Path(os.environ["CKPTENGINE_TEST_SCRATCH"])  # has a folder for each job that was started
BUILD = Path(os.environ["CKPTENGINE_BUILD_DIR"])
LIBRARY = build_file(BUILD, "libckptengine.so")
WAIT_MS = 30_000
engines: dict[str, Engine] = {}  # of this process, by job
iterations: dict[str, int] = {}


def rank_and_world() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def job_of(path: object) -> str:
    return "ckptengine-upstream-" + hashlib.sha256(str(path).encode()).hexdigest()[:16]


def engine_of(job: str, restarted: bool = False) -> Engine:
    if restarted and job in engines:
        engines.pop(job).close()
    if job not in engines:
        (SCRATCH / job / "storage").mkdir(parents=True, exist_ok=True)
        rank, world_size = rank_and_world()
        engines[job] = Engine(
            library=LIBRARY, job=job, rank=rank, world_size=world_size, node=f"n{rank}", copies=min(2, world_size),
            arena_dir=Path("/dev/shm") / job, coordination=SCRATCH / job / "coordination", interface="lo",
            ckptd=build_file(BUILD, "ckptd"), storage=SCRATCH / job / "storage", storage_every=1, heartbeat_ms=50,
            restore_timeout_ms=60_000, claim_timeout_ms=20_000, schedule="immediate",
        )  # fmt: skip
    return engines[job]


class OurWriter(Writer):
    def __init__(self, path: object, *_: object, **__: object) -> None:
        self._job = job_of(path)
        iterations[self._job] = iterations.get(self._job, 0) + 1
        super().__init__(engine_of(self._job), iterations[self._job], timeout_ms=WAIT_MS)

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def finish(self, metadata, results) -> None:
        super().finish(metadata, results)
        assert self.ticket.wait(Stage.DURABLE, WAIT_MS), self.ticket.message

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return filesystem.FileSystem.validate_checkpoint_id(checkpoint_id)


class OurReader(Reader):
    def __init__(self, path: object, *_: object, **__: object) -> None:
        job = job_of(path)
        if MODE == "memory":
            super().__init__(engine_of(job, restarted=True))
        else:
            super().__init__(SCRATCH / job / "storage", job=job, library=LIBRARY)

    def reset(self, checkpoint_id: object = None) -> None:
        self._index = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return filesystem.FileSystem.validate_checkpoint_id(checkpoint_id)


def replace_storage() -> None:
    for module in (dcp, filesystem, _storage_utils):
        module.FileSystemWriter, module.FileSystemReader = OurWriter, OurReader


def run_on_cpus() -> None:
    """Nothing is left out for want of GPUs. What then needs one fails with torch's own, too."""
    common_distributed.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
    common_distributed.requires_nccl = lambda: lambda test: test
    with_comms = sharded_tensor.with_comms

    def with_gloo(test=None, init_rpc=False, backend="gloo"):
        if test is None:
            return functools.partial(with_gloo, init_rpc=init_rpc)
        return with_comms(test, init_rpc=False, backend="gloo")

    sharded_tensor.with_comms = with_gloo
    torch.nn.Module.cuda = torch.Tensor.cuda = lambda self, *_, **__: self
    base = common_distributed.MultiProcessTestCase

    def fork(self) -> None:
        if self.world_size < 1:
            self.skipTest("it has as many ranks as there are GPUs")
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    base._spawn_processes = fork


def pytest_runtest_teardown() -> None:
    """Ends what the test's ranks left behind: their agents and their memory."""
    while engines:
        engines.popitem()[1].close()
    iterations.clear()
    for folder in SCRATCH.iterdir():
        kill_agents(folder.name)
        shutil.rmtree(Path("/dev/shm") / folder.name, ignore_errors=True)
        shutil.rmtree(folder)


torch.set_num_threads(1)
run_on_cpus()
if MODE != "torch":
    replace_storage()
