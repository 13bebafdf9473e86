"""ckptengine for PyTorch. `Checkpointer` captures the model, optimizer, schedulers, random number generators and the
position in the data in every iteration, and restores all of them from one checkpoint. With run(), a process continues
after another process has failed."""

import torch.distributed as _distributed

from ._checkpointer import Checkpointer
from ._codec import Unrepresentable, decode, encode

__all__ = ["Checkpointer", "Unrepresentable", "decode", "encode"]

if _distributed.is_available():
    from . import groups
    from ._run import run
    from .groups import Interrupted

    __all__ += ["Interrupted", "groups", "run"]
