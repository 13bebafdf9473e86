"""Reads and writes the states of the random number generators that training loops commonly use.

These are torch's generator for the CPU, torch's generator for the current CUDA device (once CUDA is in use), Python's
random, and numpy's global generator (once numpy is imported). Reading them takes some 20 microseconds. Not thread-safe,
like the generators themselves.
"""

from __future__ import annotations

import array
import random
import sys
from typing import Any

import torch


def read() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "python": [version, array.array("I", words).tobytes(), gauss],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


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
