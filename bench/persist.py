"""Measures how fast a state goes to storage and comes back: ckptengine against fio, torch.save, torch.load and DCP.

First, bench_persist runs against fio. Then each side writes and reads the same state once in every round, in the same
directory. The state is float32 tensors of GPT-2's shapes. A write ends when all bytes are on the medium: ours with the
sync of the checkpoint's directory, theirs with the fsync of their files and directory. No side reads from the page
cache. Ours goes past it (O_DIRECT). The files of the others are removed from it (POSIX_FADV_DONTNEED) before they are
read. Ours verifies all digests when it writes and when it reads. Ours and DCP read into memory that exists already, as
a restore into tensors does. torch.load makes new tensors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build" / "release" / "bench" / "bench_persist"
WIDTH = 768


def gpt2(total_bytes: int) -> list[tuple[str, list[int]]]:
    """GPT-2's tensors, layer by layer, until there are about so many bytes."""
    block = {
        "ln_1.weight": [WIDTH],
        "ln_1.bias": [WIDTH],
        "attn.c_attn.weight": [WIDTH, 3 * WIDTH],
        "attn.c_attn.bias": [3 * WIDTH],
        "attn.c_proj.weight": [WIDTH, WIDTH],
        "attn.c_proj.bias": [WIDTH],
        "ln_2.weight": [WIDTH],
        "ln_2.bias": [WIDTH],
        "mlp.c_fc.weight": [WIDTH, 4 * WIDTH],
        "mlp.c_fc.bias": [4 * WIDTH],
        "mlp.c_proj.weight": [4 * WIDTH, WIDTH],
        "mlp.c_proj.bias": [WIDTH],
    }
    tensors = [("wte.weight", [8192, WIDTH])]
    while 4 * sum(torch.Size(shape).numel() for _, shape in tensors) < total_bytes:
        layer = len(tensors) // len(block)
        tensors += [(f"h.{layer}.{name}", shape) for name, shape in block.items()]
    return tensors


class Ours:
    """bench_persist in a process of its own, which takes commands (--serve)."""

    def __init__(self, folder: Path, tensors: list, arguments: argparse.Namespace) -> None:
        spec = folder / "tensors.json"
        spec.write_text(json.dumps(tensors))
        command = [arguments.program, "--serve", "--directory", folder, "--tensors", spec, *shape_of_io(arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _tell(self, order: str) -> float:
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"bench_persist ended with status {self._process.wait()}")
        return float(answer)

    def write(self) -> float:
        return self._tell("write")

    def read(self) -> float:
        return self._tell("read")

    def __enter__(self) -> Ours:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()


class Theirs:
    """A way to write a state to a path and to load it; `path` is a file or a directory."""

    def __init__(self, path: Path, save: Callable[[Path], None], load: Callable[[Path], None]) -> None:
        self.path = path
        self._save = save
        self._load = load

    def write(self) -> float:
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        os.sync()
        begin = time.perf_counter()
        self._save(self.path)
        for path in [*self._files(), self.path, self.path.parent]:
            sync(path)
        return time.perf_counter() - begin

    def read(self) -> float:
        for file in self._files():
            forget(file)
        begin = time.perf_counter()
        self._load(self.path)
        return time.perf_counter() - begin

    def _files(self) -> list[Path]:
        return list(self.path.iterdir()) if self.path.is_dir() else [self.path]


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def forget(file: Path) -> None:
    """Removes a file from the page cache. All of its bytes must be on the medium."""
    handle = os.open(file, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def torch_file(folder: Path, state: dict[str, torch.Tensor]) -> Theirs:
    def load(path: Path) -> None:
        found = torch.load(path)
        assert found.keys() == state.keys()

    return Theirs(folder / "state.pt", lambda path: torch.save(state, path), load)


def dcp_folder(folder: Path, state: dict[str, torch.Tensor], threads: int) -> Theirs:
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}

    def save(path: Path) -> None:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, thread_count=threads), no_dist=True)

    def load(path: Path) -> None:
        dcp.load(into, storage_reader=dcp.FileSystemReader(path), no_dist=True)

    return Theirs(folder / "dcp", save, load)


def shape_of_io(arguments: argparse.Namespace) -> list[str]:
    return ["--block-kib", str(arguments.block_kib), "--depth", str(arguments.depth)]


def against_fio(arguments: argparse.Namespace) -> None:
    command = [arguments.program, "--directory", arguments.directory, "--mib", str(arguments.mib)]
    subprocess.run([*command, "--rounds", str(arguments.rounds), *shape_of_io(arguments)], check=True)


def against_torch(arguments: argparse.Namespace) -> None:
    tensors = gpt2(arguments.mib << 20)
    state = {name: torch.randn(shape) for name, shape in tensors}
    gigabytes = sum(tensor.nbytes for tensor in state.values()) / 1e9
    print(f"state: {len(state)} tensors, {gigabytes:.2f} GB")
    with tempfile.TemporaryDirectory(prefix="ckpt-bench-", dir=arguments.directory) as name:
        folder = Path(name)
        with Ours(folder, tensors, arguments) as ours:
            sides = {"ours": ours, "torch": torch_file(folder, state)}
            sides["dcp"] = dcp_folder(folder, state, arguments.dcp_threads)
            rates = measure(sides, gigabytes, arguments.rounds)
    for way, theirs, ratio in (
        ("write", "torch", "persist_write_vs_torch_save"),
        ("write", "dcp", "persist_write_vs_dcp"),
        ("read", "torch", "persist_read_vs_torch_load"),
        ("read", "dcp", "persist_read_vs_dcp_load"),
    ):
        a, b = (statistics.median(rates[side, way]) for side in ("ours", theirs))
        print(f"ratio: {ratio} = {a / b:.2f} (ours {a:.2f}, theirs {b:.2f}, GB/s)")


def measure(sides: dict, gigabytes: float, rounds: int) -> dict[tuple[str, str], list[float]]:
    """GB/s by side and way; a first round of all warms up and is not counted."""
    rates: dict[tuple[str, str], list[float]] = {}
    for round_ in range(rounds + 1):
        for way in ("write", "read"):
            for name, side in sides.items():
                rate = gigabytes / (side.write() if way == "write" else side.read())
                if round_ > 0:
                    rates.setdefault((name, way), []).append(rate)
        shown = [f"{name} {way} {values[-1]:.2f}" for (name, way), values in rates.items()]
        if shown:
            print(f"round {round_}: {', '.join(shown)} GB/s", flush=True)
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the file system to try")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block-kib", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--dcp-threads", type=int, default=1, help="of its writer")
    parser.add_argument("--program", type=Path, default=PROGRAM)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "torch.distributed is")  # it is used without a process group on purpose
    against_fio(arguments)
    against_torch(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
