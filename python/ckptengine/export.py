"""Exports a checkpoint on storage to a form that torch reads by itself: a file for torch.load, or a directory for
torch.distributed.checkpoint. `ckptctl export` verifies a checkpoint and then calls this with the checkpoint's folder:

    python -m ckptengine.export STEP_FOLDER (--to FILE | --dcp DIRECTORY) [--shard SHARD]

The result is {shard: {tensor: ...}}, or {tensor: ...} if --shard names one shard. Tensors have the names under which
they were registered, and the strides that they had in training. They are mapped from the checkpoint's files
(docs/formats.md), not copied. The Python state of a Checkpointer becomes plain values and tensors, so torch.load can
read the file with weights_only.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ._stored import Checkpoint, StorageError


class ExportError(Exception):
    """The export failed. The text is one sentence that says why."""


def read_step(folder: Path, only: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns the tensors of a checkpoint by shard and name. If `only` names a shard, returns that shard alone."""
    try:
        checkpoint = Checkpoint(None, folder)
        shards = {shard.name: shard for shard in map(checkpoint.shard, checkpoint.names())}
        if only is not None and only not in shards:
            few = ", ".join(sorted(shards)[:8]) + (", ..." if len(shards) > 8 else "")
            raise ExportError(f"{folder} has no shard '{only}'; it has {few}")
        return {name: tensors_in(shards[name].layout, shards[name].mapped()) for name in ([only] if only else shards)}
    except StorageError as error:
        raise ExportError(str(error)) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ExportError(f"{folder} is damaged ({error}); `ckptctl verify` says which files") from None


def tensors_in(header: dict[str, dict], data: memoryview) -> dict[str, Any]:
    from .torch._memory import split_name
    from .torch._python_state import COMMON_STATE, COMMON_STATE_ON_GPU, PYTHON_STATE, PYTHON_STATE_ON_GPU

    on_gpu = {PYTHON_STATE: PYTHON_STATE_ON_GPU, COMMON_STATE: COMMON_STATE_ON_GPU}

    def bytes_of(stored_name: str) -> memoryview:
        begin, end = header[stored_name]["data_offsets"] if stored_name in header else (0, 0)
        return data[begin:end]

    tensors = {}
    for stored_name, entry in header.items():
        begin, end = entry["data_offsets"]
        if stored_name in on_gpu:
            tensors[stored_name] = python_state(data[begin:end], bytes_of(on_gpu[stored_name]))
        elif any(stored_name == part and of in header for of, part in on_gpu.items()):
            continue  # a part of the other
        else:
            name, order = split_name(stored_name)
            tensors[name] = tensor(entry, data[begin:end], order)
    return tensors


def tensor(entry: dict, data: memoryview, order: list[int] | None) -> Any:
    """Returns a tensor that shares the memory of `data`. `order` is the order of its dimensions in memory."""
    import torch

    from .torch._memory import _TORCH_DTYPES

    dtype, shape = _TORCH_DTYPES[entry["dtype"]], entry["shape"]
    flat = torch.frombuffer(data, dtype=dtype) if math.prod(shape) else torch.empty(0, dtype=dtype)
    memory = flat.reshape(shape)
    return memory if order is None else memory.permute([order.index(dim) for dim in range(len(order))])


def python_state(data: memoryview, gpu_bytes: memoryview) -> Any:
    """Decodes what a Checkpointer stored besides tensors. Returns the raw bytes if another program stored them."""
    import torch

    from .torch import decode

    try:
        return _plain(decode(data, gpu_bytes))
    except (ValueError, KeyError, TypeError):
        return torch.frombuffer(data, dtype=torch.uint8)


def _plain(value: Any) -> Any:
    """Replaces types that torch.load(weights_only=True) refuses: numpy's types, deques, frozen sets."""
    import torch

    kind = type(value)
    if kind.__module__ == "numpy":
        return _plain(value.tolist()) if value.dtype.kind not in "biuf" or not value.shape else torch.from_numpy(value)
    if kind.__name__ == "deque":
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return {_plain(item) for item in value}
    if isinstance(value, dict):
        pairs = ((_plain(key), _plain(item)) for key, item in value.items())
        return kind(dict(pairs))
    if kind in (list, tuple):
        return kind(_plain(item) for item in value)
    return value


def bytes_of(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    return getattr(value, "nbytes", 0)


def write_file(state: dict, path: Path) -> None:
    """Writes a temporary file, and renames it to `path` once all of it is on the medium. So no half-written file has
    this name."""
    import torch

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with progress(part, bytes_of(state)), open(part, "xb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
        sync_directory(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_dcp(state: dict, folder: Path) -> None:
    import torch.distributed.checkpoint as dcp

    with progress(folder, bytes_of(state)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is")  # it is not initialized, on purpose
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=True), no_dist=True)
    sync_directory(folder)


def sync_directory(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def progress(target: Path, total_bytes: int) -> Iterator[None]:
    """Shows a progress bar on a terminal. It follows the size of `target`, a file or a directory."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def written() -> int:
        with suppress(OSError):  # a file may disappear meanwhile
            return sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target]))
        return 0

    def watch() -> None:
        while not done.wait(0.2):
            share = min(1.0, written() / max(total_bytes, 1))
            bar = "#" * int(20 * share)
            print(f"\r\033[Kwriting {target.name}  [{bar:-<20}]  {100 * share:3.0f} %", end="", file=sys.stderr)
        print("\r\033[K", end="", file=sys.stderr, flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ckptengine.export", description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="folder of the checkpoint, e.g. JOB/step-00000123")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--to", type=Path, metavar="FILE", help="file to write, for torch.load")
    target.add_argument(
        "--dcp", type=Path, metavar="DIRECTORY", help="directory to write, for torch.distributed.checkpoint"
    )
    parser.add_argument("--shard", help="export only this shard")
    arguments = parser.parse_args()
    try:
        shards = read_step(arguments.folder, arguments.shard)
        state = shards[arguments.shard] if arguments.shard is not None else shards
        if arguments.to:
            write_file(state, arguments.to)
        else:
            write_dcp(state, arguments.dcp)
    except ImportError as error:
        return refuse(f"{sys.executable} cannot import {error.name}; install it for this Python (pip install torch)")
    except (ExportError, OSError) as error:
        return refuse(str(error))
    return 0


def refuse(sentence: str) -> int:
    print(f"ckptengine.export: {sentence}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
