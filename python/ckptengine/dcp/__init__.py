"""ckptengine for torch.distributed.checkpoint. docs/dcp.md explains it."""

from .._stored import StorageError
from ._reader import Reader

__all__ = ["Reader", "StorageError"]
