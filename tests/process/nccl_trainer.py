"""A rank on a test double of a GPU that calls NCCL as a C program does, without marks: nccl_trainer.py FOLDER RANK
RANKS OPTIONS (JSON). test_interpose.py preloads libckptinterpose.so.

Each iteration exchanges bytes with the other rank and then fills the weights. A restore appends a line to
FOLDER/restored-RANK: pid, tier of the main shard, iteration, distinct bytes of the weights. Each snapshot appends its
iteration to FOLDER/losses-RANK. A file FOLDER/die-RANK or FOLDER/stop-RANK sends the process a signal before it
communicates, FOLDER/sleep-RANK lets it sleep there. It never aborts a communicator. It ends at the iteration that
FOLDER/end names."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_void_p
from pathlib import Path

from ckptengine import Capture, DType, Engine, Halted, Memory
from cuda_trainer import Gpu

WEIGHTS_BYTES = 3_000_017
SENT_BYTES = 1000
IN_PROGRESS, REMOTE_ERROR = 7, 6
UINT8 = 1
HALT_S = 60

parent = os.getppid()


def end_with_parent() -> None:
    if os.getppid() != parent:
        os._exit(1)


class Interrupted(Exception):
    """NCCL says that the communicator is of no use any more."""


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


class Config(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int), ("cga", c_int),
                ("min_ctas", c_int), ("max_ctas", c_int), ("net_name", c_void_p), ("split", c_int), ("unused", c_int)]


class Communicator:
    """Of one incarnation. Ranks meet by a file."""

    def __init__(self, folder: Path, incarnation: int, rank: int, gpu: Gpu) -> None:
        self.nccl = ctypes.CDLL(None)  # the global scope, as for a program that is linked with NCCL
        self.rank, self.gpu, self.comm = rank, gpu, c_void_p()
        self.sent, self.received = gpu.allocate(SENT_BYTES), gpu.allocate(SENT_BYTES)
        undefined = -(2**31)
        config = Config(48, 0xCAFEBEEF, 22000, 0, undefined, undefined, undefined, None, undefined, undefined)
        result = self.nccl.ncclCommInitRankConfig(byref(self.comm), 2, self.id(folder / f"id-{incarnation}"), rank,
                                                  byref(config))
        assert result in (0, IN_PROGRESS), result
        self.wait()

    def id(self, path: Path) -> UniqueId:
        unique = UniqueId()
        if self.rank == 0:
            assert ctypes.CDLL("libnccl.so.2").ncclGetUniqueId(byref(unique)) == 0
            whole = path.with_suffix(".new")
            whole.write_bytes(bytes(unique))
            whole.rename(path)
            return unique
        while not path.exists():
            time.sleep(0.005)
            end_with_parent()
        return UniqueId.from_buffer_copy(path.read_bytes())

    def wait(self) -> None:
        """Until NCCL has put the last call onto the stream."""
        error = c_int(IN_PROGRESS)
        while error.value == IN_PROGRESS:
            assert self.nccl.ncclCommGetAsyncError(self.comm, byref(error)) == 0
            end_with_parent()
            time.sleep(0.001)
        if error.value != 0:
            raise Interrupted

    def exchange(self) -> None:
        self.nccl.ncclGroupStart()
        results = [
            call(c_void_p(data), c_size_t(SENT_BYTES), UINT8, 1 - self.rank, self.comm, self.gpu.stream)
            for call, data in ((self.nccl.ncclSend, self.sent), (self.nccl.ncclRecv, self.received))]
        self.nccl.ncclGroupEnd()
        if REMOTE_ERROR in results:
            raise Interrupted
        self.wait()


class Rank:
    def __init__(self, folder: Path, rank: int, engine: Engine) -> None:
        self.folder, self.rank, self.engine, self.gpu = folder, rank, engine, Gpu()
        self.stream = self.gpu.stream.value
        self.weights, self.counter = self.gpu.allocate(WEIGHTS_BYTES), self.gpu.allocate(8)
        engine.register_pointer("weights", self.weights, DType.U8, (WEIGHTS_BYTES,), memory=Memory.DEVICE)
        engine.register_pointer("counter", self.counter, DType.U8, (8,), memory=Memory.DEVICE,
                                capture=Capture.SYNCHRONOUS)

    def has(self, command: str) -> bool:
        path = self.folder / f"{command}-{self.rank}"
        if found := path.exists():
            path.unlink()
        return found

    def run(self) -> None:
        while True:
            start = self.engine.restore(self.stream)
            values = sorted(set(self.gpu.read(self.weights, WEIGHTS_BYTES))) if start.found else []
            with (self.folder / f"restored-{self.rank}").open("a") as file:
                file.write(json.dumps([os.getpid(), start.main_tier.name, start.iteration, values]) + "\n")
            try:
                return self.train(start.incarnation, start.next_iteration)
            except (Halted, Interrupted):
                assert self.engine.wait_halt(HALT_S), "interrupted, but not halted"
            self.engine.rejoin()

    def train(self, incarnation: int, iteration: int) -> None:
        communicator, end = Communicator(self.folder, incarnation, self.rank, self.gpu), self.folder / "end"
        while not end.exists() or iteration < int(end.read_text()):
            time.sleep(0.03)
            for command, number in (("die", signal.SIGKILL), ("stop", signal.SIGSTOP)):
                if self.has(command):
                    os.kill(os.getpid(), number)
            if self.has("sleep"):
                time.sleep(1000)
            communicator.exchange()
            self.engine.before_update([self.stream])
            self.gpu.fill(self.counter, 100 + self.rank, 8)
            self.gpu.fill(self.weights, iteration % 251, WEIGHTS_BYTES)
            self.engine.snapshot(iteration, self.stream)
            with (self.folder / f"losses-{self.rank}").open("a") as file:
                file.write(f"{iteration} {iteration % 251}\n")
            iteration += 1


def main() -> None:
    folder, rank, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[4])
    ctypes.CDLL("libnccl.so.2")  # not into the global scope, as an import of Python does
    with Engine(shard="model", **options) as engine:
        Rank(folder, rank, engine).run()


if __name__ == "__main__":
    main()
