"""Writer and Reader for torch.distributed.checkpoint (DCP). docs/frameworks.md explains them."""

from .._stored import StorageError
from ._reader import Reader
from ._writer import Writer

__all__ = ["Reader", "StorageError", "Writer"]
