"""Reads and writes the states of the random number generators that training loops commonly use.

These are torch's generator for the CPU, torch's generator for the current CUDA device (once CUDA is in use), Python's
random, and numpy's global generator (once numpy is imported). Not thread-safe, like the generators themselves.
"""

from __future__ import annotations

import array
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from . import _codec


class Generators:
    """Reads the states as bytes. Encodes only states that have changed since the last call."""

    def __init__(self) -> None:
        self._seen: dict[str, Any] = {}
        self._encoded: dict[str, bytes] = {}

    def encoded(self) -> bytes:
        """Returns the states, for write() after _codec.decode()."""
        for name, state, value in _states():
            if self._seen.get(name) != state:
                self._seen[name] = state
                self._encoded[name] = _codec.encode(value(), name)
        return _codec.join(self._encoded)


def read() -> dict[str, Any]:
    """Returns the states, for write()."""
    return {name: value() for name, _, value in _states()}


def _states() -> Iterator[tuple[str, Any, Any]]:
    """Yields the name and state of each generator, and a function that returns the state as it is stored."""
    torchs = torch.get_rng_state()
    yield "torch", _codec._tensor_bytes(torchs), lambda: torchs
    pythons = random.getstate()
    yield "python", pythons, lambda: [pythons[0], array.array("I", pythons[1]).tobytes(), pythons[2]]
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpys = numpy.random.get_state(legacy=False)
        yield "numpy", _comparable(numpys), lambda: numpys
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        cudas = torch.cuda.get_rng_state()
        yield "cuda", _codec._tensor_bytes(cudas), lambda: cudas


def _comparable(state: Any) -> Any:
    """The state with bytes in place of numpy's arrays."""
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if hasattr(state, "tobytes") else state


def write(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    unpacked = array.array("I")
    unpacked.frombytes(words)
    random.setstate((version, tuple(unpacked), gauss))
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
