"""A trainer of test_recompute_gpu.py on a test double of a GPU: its optimizer has its tensors there. The double does
not run torch's kernels, so the host computes what they would, with kernels/optimizer.hpp. After a restore and after
each commit it says a digest of its tensors.

    recompute_gpu_trainer.py OPTIONS-AS-JSON LIBRARY FORM ITERATIONS

FORM: "fused" or "foreach" AdamW, "sgd", "adam" (fused, with weight decay), or "other" (a fused AdamW, but other
arithmetic than a GPU's).
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import random
import struct
import sys
from array import array

from ckptengine import DType, Engine, Memory, Stage
from cuda_trainer import Gpu, say
from optimizer_kernels import CAPABILITIES, Call

ELEMENTS = 50_003
RATE, BETAS, EPSILON, DECAY, MOMENTUM = 1e-3, (0.9, 0.999), 1e-8, 0.01, 0.9


def numbers(seed: int, scale: float) -> array:
    generator = random.Random(seed)
    return array("f", (scale * (generator.random() - 0.5) for _ in range(ELEMENTS)))


class Training:
    def __init__(self, options: dict, library: str, form: str) -> None:
        self.form, self.rank = form, int(options["rank"])
        self.kernels = ctypes.CDLL(library)
        names = ["parameter", "first_moment"] + ([] if form == "sgd" else ["second_moment"])
        self.tensors = {name: array("f", bytes(4 * ELEMENTS)) for name in names}
        self.tensors["parameter"] = numbers(self.rank, 1)
        self.steps = 0
        self.gpu = Gpu()
        self.stream = self.gpu.stream.value
        self.places = {name: self.gpu.allocate(4 * ELEMENTS) for name in [*names, "gradient"]}
        self.count = self.gpu.allocate(4)
        self.engine = Engine(**options)
        for name in names:
            self.engine.register_pointer(name, self.places[name], DType.F32, (ELEMENTS,), memory=Memory.DEVICE)
        self.engine.register_pointer("step", self.count, DType.F32, (), memory=Memory.DEVICE)

    def write(self, place: int, data: bytes) -> None:
        buffer = ctypes.create_string_buffer(data, len(data))
        size = ctypes.c_size_t(len(data))
        self.gpu.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(place), buffer, size, self.gpu.stream)
        self.gpu.call("cuStreamSynchronize", self.gpu.stream)

    def put(self) -> None:
        """What the tensors hold, onto the GPU."""
        for name, values in self.tensors.items():
            self.write(self.places[name], values.tobytes())
        self.write(self.count, struct.pack("f", self.steps))

    def take(self) -> None:
        for name in self.tensors:
            self.tensors[name] = array("f", self.gpu.read(self.places[name], 4 * ELEMENTS))
        (steps,) = struct.unpack("f", self.gpu.read(self.count, 4))
        self.steps = int(steps)

    def digest(self) -> str:
        return hashlib.sha256(b"".join(values.tobytes() for values in self.tensors.values())).hexdigest()

    def give(self) -> None:
        if not self.engine.wants_gradients():
            return
        common = {
            "data": self.places["gradient"],
            "elements": ELEMENTS,
            "memory": Memory.DEVICE,
            "stream": self.stream,
            "learning_rate": RATE,
        } | {name: name for name in self.tensors}
        if self.form == "sgd":
            self.engine.add_gradient(optimizer=1, is_unfused=True, momentum=MOMENTUM, **common)
            return
        is_unfused = self.form == "foreach"
        number = {"step": self.steps + 1.0} if is_unfused else {"step_count": "step"}
        self.engine.add_gradient(
            is_unfused=is_unfused,
            beta1=BETAS[0],
            beta2=BETAS[1],
            epsilon=EPSILON,
            weight_decay=DECAY,
            decoupled_weight_decay=self.form != "adam",
            **number,
            **common,
        )

    def step(self, gradient: array) -> None:
        self.steps += 1
        call = Call()
        call.step, call.elements, call.fused = self.steps, ELEMENTS, self.form not in ("foreach", "sgd")
        call.capability = CAPABILITIES.index("DEFAULT" if self.form == "other" else "cuda")
        call.gradient = gradient.buffer_info()[0]
        for i, values in enumerate(self.tensors.values()):
            call.tensors[i] = values.buffer_info()[0]
        if self.form == "sgd":
            call.factors = (RATE, MOMENTUM, 0, 0, 0)
            self.kernels.sgd(ctypes.byref(call))
            return
        call.factors = (RATE, *BETAS, EPSILON, DECAY)
        call.flags = (self.form != "adam", 0, 0)
        self.kernels.adam(ctypes.byref(call))

    def update(self, iteration: int) -> None:
        gradient = numbers(1000 * self.rank + iteration + 7, 0.1)
        self.write(self.places["gradient"], gradient.tobytes())
        assert self.engine.before_update([self.stream])
        self.give()
        self.gpu.fill(self.places["gradient"], 255, 4 * ELEMENTS)  # the next backward pass
        self.step(gradient)
        self.put()


def main() -> None:
    logging.basicConfig(level=logging.WARNING)  # on stderr
    training = Training(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
    training.put()
    start = training.engine.restore(training.stream)
    if start.found:
        training.take()
    say(iteration=start.iteration, tier=int(start.main_tier), digest=training.digest())
    for k in range(start.iteration + 1, int(sys.argv[4])):
        training.update(k)
        ticket = training.engine.snapshot(k, training.stream)
        assert ticket.taken, ticket.message
        assert training.engine.before_update([training.stream])
        assert ticket.wait(Stage.COMMITTED, 60_000), ticket.message
        say(iteration=k, digest=training.digest())
    sys.stdin.read()
    training.engine.close()


if __name__ == "__main__":
    main()
