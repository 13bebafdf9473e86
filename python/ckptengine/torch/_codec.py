"""Stores Python state as bytes, without pickle, so that loading it cannot run code.

    u64 length of the JSON text | JSON text | raw bytes of tensors and byte strings, in the order of their offsets

None, bool, int, str, finite floats (Python writes and reads them exactly), lists, and dicts with string keys are stored
as JSON. Other types become an object {"~": kind, ...}: tuples, sets, dicts with other keys, counters, infinities,
complex numbers, bytes, tensors, numpy arrays and scalars, dtypes, devices. For everything else encode() raises
Unrepresentable, and names its path.

Pure functions, thread-safe.
"""

from __future__ import annotations

import collections
import ctypes
import json
import math
import struct
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

TAG = "~"
_LENGTH = struct.Struct("<Q")
_DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


class Unrepresentable(TypeError):
    """The state has an object that cannot be stored. The text names the object's path in the state."""


def encode(state: Any, what: str = "state") -> bytes:
    """Returns the bytes of a tree of plain values and tensors. `what` names the tree in errors."""
    encoder = _Encoder()
    text = json.dumps(encoder.plain(state, what), separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *encoder.raw])


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Returns the state that was given to encode(). Tensors are in CPU memory. Ignores bytes after the end of the
    encoded state. Raises ValueError if encode() did not make the bytes."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise ValueError("Python state is cut short")
    (length,) = _LENGTH.unpack_from(view)
    if length > len(view) - _LENGTH.size:
        raise ValueError("Python state is cut short")
    start = _LENGTH.size + length
    return _Decoder(view[start:]).tree(json.loads(bytes(view[_LENGTH.size : start])))


class _Encoder:
    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.raw_bytes = 0

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
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise Unrepresentable(f"{path} is a tensor of layout {value.layout} on {value.device}: make it dense first")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return {
            TAG: "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
            "at": self.blob(_tensor_bytes(flat)),
        }

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
    complex: lambda e, v, path: {TAG: "complex", "value": [repr(v.real), repr(v.imag)]},
    torch.dtype: lambda e, v, path: {TAG: "torch dtype", "value": str(v).removeprefix("torch.")},
    torch.device: lambda e, v, path: {TAG: "torch device", "value": str(v)},
}


class _Decoder:
    def __init__(self, raw: memoryview) -> None:
        self.raw = raw

    def tree(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self.tree(item) for key, item in value.items()}
        make = _MAKERS.get(value[TAG])
        if make is None:
            raise ValueError(f"Python state holds an unknown kind '{value[TAG]}'")
        return make(self, value)

    def items(self, value: dict) -> list:
        return [self.tree(item) for item in value["items"]]

    def pairs(self, value: dict) -> list[tuple]:
        return [(self.tree(k), self.tree(v)) for k, v in value["items"]]

    def blob(self, value: dict) -> bytearray:
        begin, end = value["at"]
        if not 0 <= begin <= end <= len(self.raw):
            raise ValueError("Python state is cut short")
        return bytearray(self.raw[begin:end])

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
    "complex": lambda d, v: complex(*(float(part) for part in v["value"])),
    "torch dtype": lambda d, v: _DTYPES[v["value"]],
    "torch device": lambda d, v: torch.device(v["value"]),
    "tensor": _Decoder.tensor,
    "ndarray": _Decoder.numpy,
    "numpy scalar": _Decoder.numpy,
}


def _tensor_bytes(flat: torch.Tensor) -> bytes:
    """The bytes of a contiguous uint8 tensor in CPU memory."""
    return ctypes.string_at(flat.data_ptr(), flat.numel()) if flat.numel() else b""
