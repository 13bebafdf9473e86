"""Describes the memory of any tensor to the engine, which takes only contiguous memory in row-major order.

- A contiguous tensor is registered as it is.
- A dense tensor with permuted strides (channels_last, a transposed weight) is registered with its dimensions in the
  order of its memory. The permutation is part of the stored name: "conv.weight@0,2,3,1". This needs no extra copy.
- Any other tensor (a slice with gaps, an expanded tensor) is staged: snapshot() copies it to contiguous memory, and the
  engine captures this staging copy. The staging copy changes only at the next snapshot, so its capture may be
  overlapped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._abi import Capture, DType, Memory
from .._engine import Error, Status
from ._split import local

_DTYPES = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.uint16: DType.U16,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int32: DType.I32,
    torch.uint32: DType.U32,
    torch.float32: DType.F32,
    torch.int64: DType.I64,
    torch.uint64: DType.U64,
    torch.float64: DType.F64,
    torch.complex64: DType.C64,
    torch.float8_e4m3fn: DType.F8_E4M3,
    torch.float8_e5m2: DType.F8_E5M2,
}
_TORCH_DTYPES = {dtype.name: torch_dtype for torch_dtype, dtype in _DTYPES.items()}
_PERMUTED = re.compile(r"^(.*)@(\d+(?:,\d+)*)$", re.DOTALL)


@dataclass(frozen=True)
class Shown:
    """How to register one tensor. `memory` is contiguous. It is the tensor's own memory or, if `source` is not None,
    the staging copy of `source`."""

    name: str
    memory: torch.Tensor
    capture: Capture
    source: torch.Tensor | None = None

    @property
    def dtype(self) -> DType:
        return _DTYPES[self.memory.dtype]

    @property
    def place(self) -> Memory:
        return Memory.DEVICE if self.memory.is_cuda else Memory.HOST

    def fits(self, other: Shown) -> bool:
        """Whether the two registrations differ only in their address."""
        mine, theirs = self.memory, other.memory
        return (
            mine.dtype == theirs.dtype
            and mine.shape == theirs.shape
            and mine.device == theirs.device
            and self.capture == other.capture
        )

    def stage(self) -> None:
        """Refreshes the staging copy, if there is one."""
        if self.source is not None:
            self.memory.copy_(self.source)

    def unstage(self) -> None:
        """Copies the staging copy back to the tensor, after a restore. Does nothing if there is no staging copy."""
        if self.source is not None:
            self.source.copy_(self.memory)


def show(name: str, tensor: torch.Tensor, capture: Capture) -> Shown:
    """Returns how to register `tensor` under `name`. Raises Error if it cannot be stored."""
    tensor = plain(name, local(tensor).detach())
    if tensor.is_contiguous():
        return Shown(name, tensor, capture)
    order = _memory_order(tensor)
    permuted = tensor.permute(order)
    if permuted.is_contiguous():
        return Shown(f"{name}@{','.join(map(str, order))}", permuted, capture)
    source = _without_expansion(tensor)
    if _overlaps(source):
        raise _refused(name, f"has elements that share memory (strides {tensor.stride()}): use a contiguous copy")
    staging = torch.empty(source.shape, dtype=source.dtype, device=source.device)
    return Shown(name, staging, capture, source)


def show_as_stored(shown: Shown, tensor: torch.Tensor, stored_name: str) -> Shown:
    """Returns how to register the tensor in the stored memory order. Stages it if its own memory order differs."""
    if stored_name == shown.name:
        return shown
    base, order = split_name(stored_name)
    source = plain(base, local(tensor).detach())
    if order is None:
        staging = torch.empty(source.shape, dtype=source.dtype, device=source.device)
        return Shown(stored_name, staging, shown.capture, source)
    if sorted(order) != list(range(source.ndim)):
        return shown
    permuted = source.permute(order)
    staging = torch.empty(permuted.shape, dtype=source.dtype, device=source.device)
    return Shown(stored_name, staging, shown.capture, permuted)


def apart(shown: Shown) -> Shown:
    """Returns how to register a staging copy in host memory for it."""
    memory = torch.empty(shown.memory.shape, dtype=shown.memory.dtype)
    return Shown(shown.name, memory, shown.capture, shown.memory if shown.source is None else shown.source)


def create_as_stored(stored_name: str, stored: dict, device: torch.device) -> torch.Tensor:
    """Creates a tensor for the one stored under `stored_name`, with the strides that it had."""
    if stored["dtype"] not in _TORCH_DTYPES:
        raise Error(
            Status.MISMATCH,
            f"tensor '{stored_name}' is stored with the type {stored['dtype']}, which this version does not know; use "
            "the version that stored it",
        )
    memory = torch.zeros(stored["shape"], dtype=_TORCH_DTYPES[stored["dtype"]], device=device)
    _, order = split_name(stored_name)
    if order is None:
        return memory
    inverse = [0] * len(order)
    for position, dim in enumerate(order):
        inverse[dim] = position
    return memory.permute(inverse)


def split_name(stored_name: str) -> tuple[str, list[int] | None]:
    """Splits a stored name into the tensor's name and its memory order. The order is None for row-major."""
    match = _PERMUTED.match(stored_name)
    return (match[1], [int(dim) for dim in match[2].split(",")]) if match else (stored_name, None)


def plain(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Returns `tensor` in a type and layout that the engine knows, on the same memory. Raises Error otherwise."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise _refused(name, f"has layout {tensor.layout}: only dense, unquantized tensors are stored")
    if tensor.device.type not in ("cpu", "cuda"):
        only = "only cpu and cuda memory is captured; move it there, or leave it out"
        raise _refused(name, f"is on {tensor.device}: {only}")
    if tensor.is_conj() or tensor.is_neg():
        raise _refused(name, "is a lazy conjugate or negative: call its resolve_conj() or resolve_neg() first")
    if is_traceable_wrapper_subclass(tensor) or (tensor.numel() and tensor.data_ptr() == 0):
        raise _refused(
            name, f"is a {type(tensor).__name__}, without memory of its own: register the tensors in it instead"
        )
    if tensor.dtype in _DTYPES:
        return tensor
    if tensor.dtype == torch.complex128:
        return torch.view_as_real(tensor)
    if tensor.element_size() == 1 and tensor.dtype.is_floating_point:
        return tensor.view(torch.uint8)  # the rarer 8-bit floats are stored as bytes
    raise _refused(name, f"is of type {tensor.dtype}, which cannot be stored: convert it to another type")


def _refused(name: str, why: str) -> Error:
    return Error(Status.INVALID, f"tensor '{name}' {why}")


def _memory_order(tensor: torch.Tensor) -> list[int]:
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda dim: (-strides[dim], dim))


def _without_expansion(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a view with one element of every expanded dimension, because the others are the same memory."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share an address. False only if each stride is larger than all smaller dimensions."""
    reach = 0
    steps = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    for stride, size in sorted(steps):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False
