"""A box is a part of a tensor: a begin and a size for each dimension. Stored.read() reads a box of a stored tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from ..torch._memory import _TORCH_DTYPES, split_name

_BLOCK_BYTES = 16 << 20  # how much of a box is read at a time

Read = Callable[[int, int], memoryview]  # returns the packed bytes of a shard, from begin to end


@dataclass(frozen=True)
class Box:
    begin: tuple[int, ...]
    size: tuple[int, ...]

    def within(self, other: Box) -> Box:
        """The same box, with its begin counted from the begin of `other`, which contains it."""
        return Box(tuple(a - b for a, b in zip(self.begin, other.begin, strict=True)), self.size)

    def moved(self, by: tuple[int, ...]) -> Box:
        return Box(tuple(a + b for a, b in zip(self.begin, by, strict=True)), self.size)

    def common(self, other: Box) -> Box | None:
        begin = tuple(map(max, self.begin, other.begin))
        end = tuple(
            min(a + m, b + n) for a, m, b, n in zip(self.begin, self.size, other.begin, other.size, strict=True)
        )
        size = tuple(e - b for b, e in zip(begin, end, strict=True))
        return Box(begin, size) if min(size, default=1) > 0 else None

    def elements(self) -> int:
        return math.prod(self.size)

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(begin, begin + size) for begin, size in zip(self.begin, self.size, strict=True))


class Stored:
    """A stored tensor as its shard's layout describes it, with the dimensions and the type that it had in training."""

    def __init__(self, stored_name: str, entry: dict, dtype: torch.dtype | None = None) -> None:
        self.name, self.order = split_name(stored_name)
        self.lies = tuple(entry["shape"])  # its shape, with the dimensions in the order of memory
        self.begin = entry["data_offsets"][0]
        self.dtype = _TORCH_DTYPES[entry["dtype"]] if dtype is None else dtype
        if self.dtype is not _TORCH_DTYPES[entry["dtype"]]:  # stored as bytes: the last dimension is a number of bytes
            self.lies = (*self.lies[:-1], self.lies[-1] // self.dtype.itemsize)
        if self.order is None:
            self.order = list(range(len(self.lies)))
        self.shape = tuple(self.lies[self.order.index(dim)] for dim in range(len(self.lies)))

    def read(self, read: Read, box: Box, target: torch.Tensor) -> None:
        """Reads a box of this tensor into `target`, a tensor of the box's size. `read` reads its shard."""
        if box.elements() == 0:
            return
        if not box.size:
            target.copy_(self._elements(read, 0, 1).reshape(()))
            return
        strides = [math.prod(self.lies[dim + 1 :]) for dim in range(len(self.lies))]
        begin, size = ([values[dim] for dim in self.order] for values in (box.begin, box.size))
        into = target.permute(self.order)
        rows = max(1, _BLOCK_BYTES // max(1, strides[0] * self.dtype.itemsize))
        for row in range(0, size[0], rows):
            block = [min(rows, size[0] - row), *size[1:]]
            at = [begin[0] + row, *begin[1:]]
            first = sum(a * s for a, s in zip(at, strides, strict=True))
            last = first + sum((b - 1) * s for b, s in zip(block, strides, strict=True))
            into[row : row + rows].copy_(self._elements(read, first, last + 1).as_strided(block, strides))

    def _elements(self, read: Read, first: int, end: int) -> torch.Tensor:
        size = self.dtype.itemsize
        found = read(self.begin + first * size, self.begin + end * size)
        if found.obj is not None and found.c_contiguous:
            flat = torch.frombuffer(found, dtype=torch.uint8)
            if flat.data_ptr() % size == 0:
                return flat.view(self.dtype)
        return torch.frombuffer(bytearray(found), dtype=self.dtype)


Wanted = tuple[str, Stored, Box, torch.Tensor]  # read this box of this tensor of this shard into a tensor in CPU memory
Parts = Iterable[tuple[list[Wanted], Callable[[], None]]]  # what to read, and what to call once all of it is read


def pieces(at: tuple[tuple[tuple[int, int], ...], ...]) -> Iterator[tuple[Box, tuple[int, ...]]]:
    """Yields the boxes of a rank's split: each box within the whole tensor, and where it begins in the local tensor."""
    dims = []
    for ranges in at:
        begins = itertools.accumulate((end - begin for begin, end in ranges), initial=0)
        dims.append([(begin, end - begin, local) for (begin, end), local in zip(ranges, begins, strict=False)])
    for chosen in itertools.product(*dims):
        yield Box(tuple(c[0] for c in chosen), tuple(c[1] for c in chosen)), tuple(c[2] for c in chosen)
