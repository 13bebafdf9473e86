"""A trainer whose state is on the GPU that test_cuda.py gives it: it restores, prints what it has, snapshots once, and,
where asked to, begins one more snapshot that never ends, or communicates before.

    cuda_trainer.py OPTIONS-AS-JSON ITERATION [hang | communicate]
"""

from __future__ import annotations

import ctypes
import json
import sys
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from ckptengine import Capture, DType, Engine, Memory, Stage

SIZE_BYTES = 3_000_017
TO_HOST, TO_DEVICE = 0, 1  # tests/cuda/double/control.h


class Gpu:
    """Device memory and a stream, through the driver."""

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        device, context, self.stream = c_int(), c_void_p(), c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreateWithPriority", byref(self.stream), 1, 0)

    def call(self, name: str, *arguments) -> None:
        result = getattr(self.driver, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def allocate(self, size_bytes: int) -> int:
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer.value

    def fill(self, pointer: int, value: int, size_bytes: int) -> None:
        self.call("cuMemsetD8Async", c_uint64(pointer), value, c_size_t(size_bytes), self.stream)

    def read(self, pointer: int, size_bytes: int) -> bytes:
        data = ctypes.create_string_buffer(size_bytes)
        self.call("cuMemcpyDtoHAsync_v2", data, c_uint64(pointer), c_size_t(size_bytes), self.stream)
        self.call("cuStreamSynchronize", self.stream)
        return data.raw


def say(**words) -> None:
    print(json.dumps(words), flush=True)


def communicate(engine: Engine, gpu: Gpu, memory: int) -> None:
    """One communication, which the GPU does not get through before somebody has answered."""
    gpu.driver.ckpt_double_hold(TO_DEVICE, 1)
    engine.comm_begin(4, gpu.stream.value)
    byte = ctypes.create_string_buffer(b"\0", 1)
    gpu.call("cuMemcpyHtoDAsync_v2", c_uint64(memory), byte, c_size_t(1), gpu.stream)
    engine.comm_end(4, gpu.stream.value)
    say(communicating=True)
    sys.stdin.readline()
    gpu.driver.ckpt_double_hold(TO_DEVICE, 0)
    gpu.call("cuStreamSynchronize", gpu.stream)
    say(communicating=False)


def main() -> None:
    options, iteration, hang = json.loads(sys.argv[1]), int(sys.argv[2]), "hang" in sys.argv
    gpu = Gpu()
    stream = gpu.stream.value
    weights, statistics = gpu.allocate(SIZE_BYTES), gpu.allocate(100)
    engine = Engine(**options)
    engine.register_pointer("weights", weights, DType.U8, (SIZE_BYTES,), memory=Memory.DEVICE)
    engine.register_pointer(
        "statistics", statistics, DType.U8, (100,), memory=Memory.DEVICE, capture=Capture.SYNCHRONOUS
    )
    start = engine.restore(stream)
    say(iteration=start.iteration, values=sorted(set(gpu.read(weights, SIZE_BYTES))) if start.found else [])

    for memory, size_bytes in ((weights, SIZE_BYTES), (statistics, 100)):
        gpu.fill(memory, iteration, size_bytes)
    if "communicate" in sys.argv:
        communicate(engine, gpu, weights)
    ticket = engine.snapshot(iteration, stream)
    assert ticket.taken, ticket.message
    assert engine.before_update([stream])
    gpu.fill(weights, 255, SIZE_BYTES)  # the next update: right behind
    assert ticket.wait(Stage.COMMITTED, 60_000), ticket.message
    if hang:
        if hasattr(gpu.driver, "ckpt_double_hold"):
            gpu.driver.ckpt_double_hold(TO_HOST, 1)
        gpu.fill(weights, iteration + 1, SIZE_BYTES)
        assert engine.snapshot(iteration + 1, stream).taken
        assert engine.before_update([stream])
    say(committed=iteration)
    sys.stdin.read()
    engine.close()


if __name__ == "__main__":
    main()
