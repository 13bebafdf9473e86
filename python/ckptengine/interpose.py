"""Prints the path of libckptinterpose.so, for LD_PRELOAD:

    LD_PRELOAD=$(python3 -m ckptengine.interpose) ckptrun --nproc-per-node 8 train.py

docs/jit.md says what the library does."""

from __future__ import annotations

import sys
from pathlib import Path

from ._abi import find_library
from ._programs import REMEDY

FILE_NAME = "libckptinterpose.so"


def interpose_path() -> Path:
    """Returns where libckptinterpose.so is.

    Raises:
        FileNotFoundError: This installation has no libckptinterpose.so.
    """
    path = find_library(FILE_NAME)
    if path is None:
        raise FileNotFoundError(f"{FILE_NAME} is neither in the package nor in build/release. To get it, {REMEDY}")
    return path


if __name__ == "__main__":
    try:
        print(interpose_path())
    except FileNotFoundError as error:
        sys.exit(f"ckptengine: {error}")
