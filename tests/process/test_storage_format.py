"""What is on storage, read by the safetensors package and by nothing of ours."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CKPTENGINE_BUILD_DIR", ROOT / "build" / "release"))

NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
}
SHAPES = [(), (1,), (0,), (3, 0, 2), (17, 5), (2, 3, 4, 5)]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], random: np.random.Generator) -> torch.Tensor:
    elements = int(np.prod(shape))
    if dtype == torch.bool:
        return torch.from_numpy(random.integers(0, 2, elements).astype(bool)).reshape(shape)
    data = random.bytes(elements * dtype.itemsize)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if elements else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def pack(tensors: dict[str, torch.Tensor]) -> tuple[str, bytes]:
    """Layout text and bytes as the arena holds them: by falling element size, then by name, without holes."""
    layout, data = {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0].encode())):
        begin = len(data)
        data += raw(tensor)
        layout[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, len(data)],
        }
    return json.dumps(layout, separators=(",", ":"), ensure_ascii=False), data


def write_checkpoint(folder: Path, shards: dict[str, tuple[str, bytes]], parts: dict[str, int]) -> Path:
    """Layout text and bytes by shard; how many parts a shard is cut into, where it is."""
    lines = []
    for shard, (layout, data) in shards.items():
        (folder / shard).write_bytes(data)
        lines += [f"{shard}/{parts.get(shard, 1)} {layout}", str(folder / shard)]
    spec = folder / "spec"
    spec.write_text("\n".join(lines) + "\n")
    program = BUILD / "bin" / "persist_sample"
    subprocess.run([program, folder / "storage", spec], check=True, timeout=60)
    return folder / "storage" / "job" / "step-00000123"


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    random = np.random.default_rng(5)
    tensors = {
        f"{name}.{i}": random_tensor(dtype, shape, random)
        for dtype, name in NAMES.items()
        for i, shape in enumerate(SHAPES)
    }
    tensors["größe \"quoted\"\\"] = torch.arange(5.0)
    tensors["big"] = torch.randn(300, 1000, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    return tensors


@pytest.fixture(scope="module")
def checkpoint(state: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    shards = {
        "rank0": pack(state),
        "model": pack(state),
        "rank0.private": pack({}),
        "blob": ("-", bytes(range(256)) * 300),
    }
    return write_checkpoint(tmp_path_factory.mktemp("persist"), shards, parts={"model": 4})


@pytest.mark.parametrize("shard", ["rank0", "model"])  # the latter in parts
def test_every_dtype_and_shape_is_read_bit_for_bit(
    state: dict[str, torch.Tensor], checkpoint: Path, shard: str
) -> None:
    found = load_file(checkpoint / f"{shard}.1.safetensors")
    assert set(found) == set(state)
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert raw(found[name]) == raw(tensor), name


def test_safe_open_finds_names_and_metadata(checkpoint: Path) -> None:
    for shard in ("rank0", "model"):
        with safe_open(checkpoint / f"{shard}.1.safetensors", framework="pt") as file:
            assert file.metadata()["ckptengine.shard"] == shard
            assert file.metadata()["ckptengine.iteration"] == "123"
            assert file.get_tensor("F32.4").shape == (17, 5)


def test_bytes_without_layout_are_one_tensor(checkpoint: Path) -> None:
    found = load_file(checkpoint / "blob.1.safetensors")
    assert list(found) == ["ckptengine.opaque"]
    assert found["ckptengine.opaque"].numpy().tobytes() == bytes(range(256)) * 300


def test_a_shard_without_tensors_is_an_empty_file_of_tensors(checkpoint: Path) -> None:
    assert load_file(checkpoint / "rank0.private.1.safetensors") == {}


def test_data_begins_at_a_page_and_records_are_json(checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert manifest["format"] == 1 and manifest["iteration"] == 123 and manifest["incarnation"] == 1
    parts = [f"model.{i}of4" for i in range(4)]
    assert [shard["shard"] for shard in manifest["shards"]] == ["blob", *parts, "rank0", "rank0.private"]
    for shard in manifest["shards"]:
        path = checkpoint / shard["file"]
        assert path.stat().st_size == shard["file_bytes"]
        assert int.from_bytes(path.read_bytes()[:8], "little") + 8 == shard["header_bytes"]
        assert shard["header_bytes"] % 4096 == 0
        assert (checkpoint / shard["leaves"]).stat().st_size == 8 * -(-shard["data_bytes"] // 65536)


def test_parts_follow_each_other_in_the_file(state: dict[str, torch.Tensor], checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    parts = [shard for shard in manifest["shards"] if shard["file"] == "model.1.safetensors"]
    data, end = (checkpoint / "model.1.safetensors").read_bytes(), parts[0]["header_bytes"]
    for part in parts:
        assert part["offset_bytes"] == end
        end += part["data_bytes"]
    assert end == len(data)
    assert data[parts[0]["header_bytes"] :] == pack(state)[1]
