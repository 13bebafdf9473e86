"""In-memory checkpoints for large-model training: the Python side of libckptengine.

PyTorch training loops use `ckptengine.torch.Checkpointer`. `Engine` is the C API in Python, for everything else.
"""

from ._abi import Capture, DType, Memory, Protection, Stage, Status, Tier, load_library
from ._engine import Engine, Error, Halt, Halted, Health, NotProtected, Restored, Stats, Ticket
from ._options import Options

__version__ = "0.1.0"

__all__ = [
    "Capture",
    "DType",
    "Engine",
    "Error",
    "Halt",
    "Halted",
    "Health",
    "Memory",
    "NotProtected",
    "Options",
    "Protection",
    "Restored",
    "Stage",
    "Stats",
    "Status",
    "Ticket",
    "Tier",
    "load_library",
]
