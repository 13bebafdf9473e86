"""`ckptrun`, a launcher that restarts only the ranks that have died. docs/launcher.md explains it.

One launcher runs on each node: `ckptrun --nproc-per-node 8 train.py`, or `python -m ckptengine.run`. It needs no torch.
"""

from ._main import main

__all__ = ["main"]
