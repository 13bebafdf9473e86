"""A training step in PyTorch on a GPU, with and without a snapshot in every iteration: a transformer with 1 GB of
parameters and Adam. Called by gpu.py.

    _gpu_training.py OPTIONS-AS-JSON STAGING-BYTES BATCH NAME
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import torch
from ckptengine.torch import Checkpointer
from torch import nn

WIDTH, LAYERS, LENGTH, WORDS = 1280, 12, 512, 8192
BLOCK, BLOCKS, SETTLE = 12, 8, 2  # iterations of a block with or without snapshots; those left out at its begin


def model() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 20, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.TransformerEncoder(layer, LAYERS), nn.Linear(WIDTH, WORDS))


def main() -> None:
    options, staging_bytes, batch, name = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    net = model().cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
    words = torch.randint(WORDS, (batch, LENGTH), device="cuda")

    def forward_backward() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(net(words).flatten(0, 1), words.flatten())
        loss.backward()

    forward_backward()
    optimizer.step()  # Adam's moments are there from now on
    torch.cuda.synchronize()
    times_ms: dict[bool, list[float]] = {False: [], True: []}
    host_us = []
    with Checkpointer(net, optimizer, gpu_staging_bytes=staging_bytes, **options) as checkpointer:
        k = checkpointer.restore().next_iteration
        for block in range(BLOCKS):
            with_snapshots = block % 2 == 1
            for i in range(BLOCK):
                begin = time.perf_counter()
                forward_backward()
                before = time.perf_counter()
                checkpointer.before_update()
                spent = time.perf_counter() - before
                optimizer.step()
                if with_snapshots:
                    before = time.perf_counter()
                    checkpointer.snapshot(k)
                    spent += time.perf_counter() - before
                k += 1
                # The stream alone: what a snapshot copies in the background goes on into the next iteration.
                torch.cuda.current_stream().synchronize()
                if i >= SETTLE:
                    times_ms[with_snapshots].append(1e3 * (time.perf_counter() - begin))
                    if with_snapshots:
                        host_us.append(1e6 * spent)
            checkpointer.before_update()
        stats = checkpointer.engine.stats()
    ours, theirs = statistics.median(times_ms[True]), statistics.median(times_ms[False])
    parameters = sum(p.numel() * p.element_size() for p in net.parameters())
    print(
        f"training {name}: parameters {parameters / 1e9:.2f} GB, captured {stats.snapshots} of {BLOCK * BLOCKS // 2}, "
        f"skipped {stats.skipped}, staging {stats.gpu_staging_bytes / 1e6:.0f} MB, "
        f"capture {stats.capture_ms:.1f} ms, host in both calls {statistics.median(host_us):.0f} us"
    )
    print(f"ratio: gpu_iteration_{name} = {ours / theirs:.4f} (ours {ours:.3f}, theirs {theirs:.3f}, ms)")


if __name__ == "__main__":
    main()
