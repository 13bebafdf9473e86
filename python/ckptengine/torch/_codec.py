"""Stores Python state as bytes, without pickle, so that loading it cannot run code.

    u64 length of the JSON text | JSON text | raw bytes of tensors and byte strings, in the order of their offsets

None, bool, int, str, finite floats (Python writes and reads them exactly), lists, and dicts with string keys are stored
as JSON. Other types become an object {"~": kind, ...}: tuples, sets, dicts with other keys, counters, infinities,
complex numbers, bytes, tensors, quantized tensors, numpy arrays and scalars, dtypes, devices. For everything else
encode() raises Unrepresentable, and names its path.

join() makes one dict of parts that were encoded before. So a caller that encodes often need not encode unchanged parts
again.

Reading a GPU's tensor waits for the GPU. With `on_gpu`, encode() leaves such tensors where they are. Their bytes belong
into a buffer on the GPU, which decode() gets as `gpu_bytes`.

Pure functions, thread-safe.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import io
import itertools
import json
import math
import struct
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

TAG = "~"
_LENGTH = struct.Struct("<Q")
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)
_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


class Unrepresentable(TypeError):
    """The state has an object that cannot be stored. The text names the object's path in the state."""


class Number:
    """A tensor with one element, which is stored as a Python number."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class OnGpu:
    """The tensors that encode() leaves on the GPU `device`. Each has a place in a buffer on that GPU."""

    _ALIGNMENT = 16  # of the largest type

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.size_bytes = 0  # that the buffer needs
        self._tensors: list[tuple[torch.Tensor, int, int]] = []

    def place(self, tensor: torch.Tensor) -> list[int]:
        begin = -(-self.size_bytes // self._ALIGNMENT) * self._ALIGNMENT
        self.size_bytes = begin + tensor.numel() * tensor.element_size()
        self._tensors.append((tensor, begin, self.size_bytes))
        return [begin, self.size_bytes]

    @torch.no_grad()
    def copy_to(self, buffer: torch.Tensor) -> None:
        """Copies all tensors to the buffer of bytes, on the current stream. Does not wait for the GPU."""
        for tensor, begin, end in self._tensors:
            buffer.narrow(0, begin, end - begin).view(tensor.dtype).reshape(tensor.shape).copy_(tensor)


def encode(state: Any, what: str = "state", on_gpu: OnGpu | None = None) -> bytes:
    """Returns the bytes of a tree of plain values and tensors. decode() reads them.

    Without `on_gpu`, waits for each GPU that has a tensor of the tree.

    Args:
        state: The tree: dicts, lists, tuples, plain values, arrays and tensors.
        what: The tree's name in errors.
        on_gpu: Takes the tensors that stay on their GPU. Only the engine uses it.

    Returns:
        The encoded state.

    Raises:
        Unrepresentable: The tree has an object that cannot be stored. The text names its path.
    """
    encoder = _Encoder(on_gpu)
    text = json.dumps(encoder.plain(state, what), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *encoder.raw])


def join(parts: Mapping[str, bytes]) -> bytes:
    """Returns the bytes of the dict whose values were encoded to these parts."""
    return b"".join([_head(tuple(parts), tuple(map(len, parts.values()))), *parts.values()])


@functools.lru_cache(maxsize=64)
def _head(names: tuple[str, ...], sizes: tuple[int, ...]) -> bytes:
    ends = list(itertools.accumulate(sizes, initial=0))
    parts = [[name, {TAG: "encoded", "at": [ends[i], ends[i + 1]]}] for i, name in enumerate(names)]
    tree: Any = {TAG: "dict", "items": parts} if TAG in names else dict(parts)
    text = json.dumps(tree, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text


def decode(data: bytes | bytearray | memoryview, gpu_bytes: bytes | bytearray | memoryview = b"") -> Any:
    """Returns the state that was given to encode(). Tensors are in CPU memory.

    Args:
        data: Bytes from encode(). Bytes after the end of the encoded state are ignored.
        gpu_bytes: The bytes of the tensors that encode() left on a GPU.

    Returns:
        The tree of values and tensors.

    Raises:
        ValueError: encode() did not make these bytes.
    """
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise ValueError("the stored Python state is damaged: it ends too early. Load another checkpoint")
    (length,) = _LENGTH.unpack_from(view)
    if length > len(view) - _LENGTH.size:
        raise ValueError("the stored Python state is damaged: it ends too early. Load another checkpoint")
    start = _LENGTH.size + length
    return _Decoder(view[start:], memoryview(gpu_bytes)).tree(json.loads(bytes(view[_LENGTH.size : start])))


class _Encoder:
    def __init__(self, on_gpu: OnGpu | None) -> None:
        self.raw: list[bytes] = []
        self.raw_bytes = 0
        self.on_gpu = on_gpu

    def plain(self, value: Any, path: str) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}
        if kind is list:
            return [self.plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
        if kind is dict:
            if TAG not in value and all(type(key) is str for key in value):
                return {key: self.plain(item, f"{path}[{key!r}]") for key, item in value.items()}
            return {TAG: "dict", "items": self.pairs(value, path)}
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, value, path)
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        return self.numpy(value, path)

    def pairs(self, value: dict, path: str) -> list:
        return [[self.plain(k, f"{path} key {k!r}"), self.plain(v, f"{path}[{k!r}]")] for k, v in value.items()]

    def items(self, kind: str, value: Any, path: str) -> dict:
        return {TAG: kind, "items": [self.plain(item, f"{path}[{i}]") for i, item in enumerate(value)]}

    def blob(self, data: bytes) -> list[int]:
        begin = self.raw_bytes
        self.raw.append(data)
        self.raw_bytes += len(data)
        return [begin, self.raw_bytes]

    def tensor(self, value: torch.Tensor, path: str) -> dict:
        if is_traceable_wrapper_subclass(value):
            raise Unrepresentable(f"{path} is a {type(value).__name__}: give it as one of `tensors`")
        if value.is_quantized and value.dtype in _QUANTIZED:
            return self.quantized(value, path)
        stays = self.on_gpu is not None and value.device == self.on_gpu.device
        if value.layout is not torch.strided or value.is_quantized or (value.is_meta and not stays):
            raise Unrepresentable(f"{path} is a tensor of layout {value.layout} on {value.device}: make it dense first")
        described = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
        if stays:
            return {TAG: "tensor", **described, "on_gpu": self.on_gpu.place(value.detach())}
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {TAG: "tensor", **described, "at": self.blob(_tensor_bytes(flat))}

    def quantized(self, value: torch.Tensor, path: str) -> dict:
        if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            how = [value.q_scale(), value.q_zero_point()]
        else:
            how = [value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()]
        parts = [value.int_repr(), *how]
        return {TAG: "quantized", "parts": [self.plain(part, path) for part in parts]}

    def number(self, value: Number, path: str) -> Any:
        if self.on_gpu is not None and value.tensor.device == self.on_gpu.device:
            return {TAG: "number", "value": self.tensor(value.tensor, path)}
        return self.plain(value.tensor.item(), path)

    def numpy(self, value: Any, path: str) -> dict:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
            return {
                TAG: "ndarray" if isinstance(value, numpy.ndarray) else "numpy scalar",
                "dtype": value.dtype.str,
                "shape": list(value.shape),
                "at": self.blob(value.tobytes()),
            }
        raise Unrepresentable(
            f"{path} is of type {type(value).__module__}.{type(value).__qualname__}, which has no representation in a "
            f"checkpoint: give plain values and tensors, from a state_dict() for instance"
        )


_SPECIAL = {
    tuple: lambda e, v, path: e.items("tuple", v, path),
    torch.Size: lambda e, v, path: e.items("size", v, path),
    set: lambda e, v, path: e.items("set", sorted(v, key=repr), path),
    frozenset: lambda e, v, path: e.items("frozenset", sorted(v, key=repr), path),
    collections.deque: lambda e, v, path: e.items("deque", v, path) | {"maxlen": v.maxlen},
    collections.OrderedDict: lambda e, v, path: {TAG: "ordered dict", "items": e.pairs(v, path)},
    collections.Counter: lambda e, v, path: {TAG: "counter", "items": e.pairs(v, path)},
    # The factory of a defaultdict is code and is not stored. So a defaultdict is loaded as a plain dict.
    collections.defaultdict: lambda e, v, path: {TAG: "dict", "items": e.pairs(v, path)},
    bytes: lambda e, v, path: {TAG: "bytes", "at": e.blob(v)},
    bytearray: lambda e, v, path: {TAG: "bytearray", "at": e.blob(bytes(v))},
    io.BytesIO: lambda e, v, path: {TAG: "bytes io", "at": e.blob(v.getvalue())},
    complex: lambda e, v, path: {TAG: "complex", "value": [repr(v.real), repr(v.imag)]},
    Number: _Encoder.number,
    torch.dtype: lambda e, v, path: {TAG: "torch dtype", "value": str(v).removeprefix("torch.")},
    torch.device: lambda e, v, path: {TAG: "torch device", "value": str(v)},
}


class _Decoder:
    def __init__(self, raw: memoryview, on_gpu: memoryview) -> None:
        self.raw = raw
        self.on_gpu = on_gpu

    def tree(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self.tree(item) for key, item in value.items()}
        make = _MAKERS.get(value[TAG])
        if make is None:
            raise ValueError(
                f"the stored Python state has the kind '{value[TAG]}', which this version does not know; use the "
                "version that stored it"
            )
        return make(self, value)

    def items(self, value: dict) -> list:
        return [self.tree(item) for item in value["items"]]

    def pairs(self, value: dict) -> list[tuple]:
        return [(self.tree(k), self.tree(v)) for k, v in value["items"]]

    def view(self, value: dict) -> memoryview:
        data, (begin, end) = (self.raw, value["at"]) if "at" in value else (self.on_gpu, value["on_gpu"])
        if not 0 <= begin <= end <= len(data):
            raise ValueError("the stored Python state is damaged: it ends too early. Load another checkpoint")
        return data[begin:end]

    def blob(self, value: dict) -> bytearray:
        return bytearray(self.view(value))

    def tensor(self, value: dict) -> torch.Tensor:
        data = self.blob(value)
        dtype = _DTYPES[value["dtype"]]
        if not data:
            return torch.empty(value["shape"], dtype=dtype)
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(value["shape"])

    def numpy(self, value: dict) -> Any:
        import numpy

        array = numpy.frombuffer(self.blob(value), dtype=numpy.dtype(value["dtype"])).reshape(value["shape"])
        return array if value[TAG] == "ndarray" else array[()]


_MAKERS = {
    "encoded": lambda d, v: decode(d.view(v), d.on_gpu),
    "number": lambda d, v: d.tensor(v["value"]).item(),
    "float": lambda d, v: float(v["value"]),
    "tuple": lambda d, v: tuple(d.items(v)),
    "size": lambda d, v: torch.Size(d.items(v)),
    "set": lambda d, v: set(d.items(v)),
    "frozenset": lambda d, v: frozenset(d.items(v)),
    "deque": lambda d, v: collections.deque(d.items(v), v["maxlen"]),
    "dict": lambda d, v: dict(d.pairs(v)),
    "ordered dict": lambda d, v: collections.OrderedDict(d.pairs(v)),
    "counter": lambda d, v: collections.Counter(dict(d.pairs(v))),
    "bytes": lambda d, v: bytes(d.blob(v)),
    "bytearray": lambda d, v: d.blob(v),
    "bytes io": lambda d, v: io.BytesIO(d.blob(v)),
    "complex": lambda d, v: complex(*(float(part) for part in v["value"])),
    "torch dtype": lambda d, v: _DTYPES[v["value"]],
    "torch device": lambda d, v: torch.device(v["value"]),
    "tensor": _Decoder.tensor,
    "quantized": lambda d, v: _quantized(*map(d.tree, v["parts"])),
    "ndarray": _Decoder.numpy,
    "numpy scalar": _Decoder.numpy,
}


def _quantized(integers: torch.Tensor, scale: Any, zero_point: Any, axis: int | None = None) -> torch.Tensor:
    if axis is None:
        return torch._make_per_tensor_quantized_tensor(integers, scale, zero_point)
    return torch._make_per_channel_quantized_tensor(integers, scale, zero_point, axis)


def _tensor_bytes(flat: torch.Tensor) -> bytes:
    """The bytes of a contiguous uint8 tensor in CPU memory."""
    return ctypes.string_at(flat.data_ptr(), flat.numel()) if flat.numel() else b""
