"""What a matrix product takes beside a capture of 2 GiB, compared with one alone. gpu.py calls it.

    _gpu_beside.py OPTIONS-AS-JSON STAGING-BYTES NAME

Rounds with and without a snapshot take turns. With little staging the capture computes digests and lets the copy engine
read the tensor. With much it packs the tensor first.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
from ckptengine import DType, Engine, Memory, Stage

STATE_BYTES = 2 << 30
WIDTH = 8192
PRODUCTS = 20  # some 1.5 ms each; a capture takes some 40 ms
ROUNDS = 20


class Products:
    """Matrix products, and what each took on the GPU."""

    def __init__(self) -> None:
        self.factors = [torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        self.product = torch.empty_like(self.factors[0])

    def run(self) -> list[torch.cuda.Event]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(PRODUCTS + 1)]
        events[0].record()
        for event in events[1:]:
            torch.mm(*self.factors, out=self.product)
            event.record()
        return events


def times_ms(events: list[torch.cuda.Event]) -> list[float]:
    return [begin.elapsed_time(end) for begin, end in itertools.pairwise(events)]


def commit_one(engine: Engine, stream: int) -> int:
    """Takes snapshots until one is committed, and returns its iteration: at first, memory is still being reserved."""
    end = time.monotonic() + 60
    k = 0
    while time.monotonic() < end:
        ticket = engine.snapshot(k, stream)
        engine.before_update([stream])
        if ticket.taken and ticket.wait(Stage.COMMITTED, 60_000):
            return k
        time.sleep(0.1)
        k += 1
    sys.exit(f"beside: nothing was committed within a minute: {ticket.message}")


def main() -> None:
    options, staging_bytes, name = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    state = torch.randint(256, (STATE_BYTES,), dtype=torch.uint8, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    products = Products()
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    with Engine(gpu_staging_bytes=staging_bytes, **options) as engine:
        engine.register_pointer("state", state.data_ptr(), DType.U8, (STATE_BYTES,), memory=Memory.DEVICE)
        engine.restore(stream)
        first = commit_one(engine, stream) + 1
        for k in range(first, first + ROUNDS):
            for with_snapshot in (False, True):
                products.run()  # an idle GPU is slow at first
                torch.cuda.synchronize()
                ticket = engine.snapshot(k, stream) if with_snapshot else None
                events = products.run()
                engine.before_update([stream])
                torch.cuda.synchronize()
                if ticket is not None and not (ticket.taken and ticket.wait(Stage.COMMITTED, 60_000)):
                    print(f"beside: snapshot {k} was not committed: {ticket.message}")
                else:
                    found[with_snapshot].append(times_ms(events))
        stats = engine.stats()
    if not found[True]:
        sys.exit("beside: no snapshot was committed")
    ours, theirs = (statistics.fmean(map(statistics.fmean, found[with_snapshot])) for with_snapshot in (True, False))
    slowest_ms = statistics.median(max(row) for row in found[True])
    print(
        f"beside {name}: capture {stats.capture_ms:.1f} ms, {len(found[True])} rounds; slowest product of a round "
        f"{slowest_ms:.3f} ms (median)"
    )
    print(f"ratio: gpu_product_beside_{name} = {ours / theirs:.4f} (ours {ours:.4f}, theirs {theirs:.4f}, ms)")


if __name__ == "__main__":
    main()
