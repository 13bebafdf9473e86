"""ckptengine for torch.distributed.checkpoint. docs/dcp.md explains it."""

from .._stored import StorageError
from ._reader import Reader
from ._writer import Writer

__all__ = ["Reader", "StorageError", "Writer"]
