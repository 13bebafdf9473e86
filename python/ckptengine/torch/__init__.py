"""ckptengine for PyTorch. `Checkpointer` captures model, optimizer, schedulers, random number generators and data
position every iteration, and restores all of them from one checkpoint."""

from ._checkpointer import Checkpointer
from ._codec import Unrepresentable, decode, encode

__all__ = ["Checkpointer", "Unrepresentable", "decode", "encode"]
