"""The text to train on, as numbers: one byte per character."""

from __future__ import annotations

import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

CHARACTERS_MAX = 128


def read_text(path: Path | None) -> str:
    """The file's text; without a file, the sources of the Python standard library."""
    if path is not None:
        text = path.read_text(encoding="utf-8", errors="replace")
    else:
        library = Path(sysconfig.get_path("stdlib"))
        sources = sorted(library.glob("*.py"))
        text = "\n".join(source.read_text(encoding="utf-8", errors="replace") for source in sources)
    if len(text) < 10_000:
        raise ValueError(f"{path or 'the standard library'} has {len(text)} characters; the demo needs 10,000 or more")
    return text


def encode(text: str) -> np.ndarray:
    """Each character's rank by frequency; the rarest ones share the last number."""
    known = {character: i for i, (character, _) in enumerate(Counter(text).most_common(CHARACTERS_MAX - 1))}
    return np.fromiter((known.get(character, CHARACTERS_MAX - 1) for character in text), np.uint8, len(text))
