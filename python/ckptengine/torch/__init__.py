"""ckptengine for PyTorch. `Checkpointer` captures the model, optimizer, schedulers, random number generators and the
position in the data in every iteration, and restores all of them from one checkpoint."""

from ._checkpointer import Checkpointer
from ._codec import Unrepresentable, decode, encode

__all__ = ["Checkpointer", "Unrepresentable", "decode", "encode"]
