"""Reads checkpoints on storage (docs/formats.md).

With a library, all bytes are checked against their digests before they are returned. Shards are then read, not mapped:
if the medium fails, a read raises an error, whereas a mapping would end the process. Without a library, nothing is
checked and shards are mapped. That is for checkpoints that `ckptctl` has verified.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from pathlib import Path
from typing import Any

from ._abi import Library

LEAF_BYTES = 64 << 10
_AHEAD_BYTES = 1 << 20  # smallest read, because the bytes that follow are usually wanted next
_FORMAT = 1
_RECORD_HEAD = b'{"xxh3":"'
_RECORD_HEAD_BYTES = 28


class StorageError(RuntimeError):
    """A checkpoint on storage is missing or damaged. The text says what is wrong, and what to do."""


class Shard:
    """The tensors of a shard, and its verified bytes."""

    def __init__(self, library: Library | None, folder: Path, pieces: list[dict]) -> None:
        self._file = -1
        self._library = library
        self.path = folder / pieces[0]["file"]
        self.header_bytes = pieces[0]["header_bytes"]
        with open(self.path, "rb") as file:
            header = file.read(self.header_bytes)
        if library is not None and _digest(library, header) != pieces[0]["header_xxh3"]:
            raise damaged(self.path, f"bytes 0 to {self.header_bytes}")
        self.layout: dict[str, dict] = json.loads(header[8:])
        self.name: str = self.layout.pop("__metadata__")["ckptengine.shard"]
        self._leaves = b"" if library is None else b"".join(_leaves(library, folder, piece) for piece in pieces)
        self._bytes = sum(piece["data_bytes"] for piece in pieces)
        self._recent: tuple[int, memoryview] = (0, memoryview(b""))

    def mapped(self) -> memoryview:
        """Returns all bytes of the tensors without checking them, as a private mapping of the file."""
        with open(self.path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[self.header_bytes :]

    def read(self, begin: int, end: int) -> memoryview:
        """Returns the tensors' bytes from `begin` up to, without, `end`. Raises StorageError if they are damaged."""
        assert self._library is not None
        at, recent = self._recent
        if not (at <= begin and end <= at + len(recent)):
            at = begin // LEAF_BYTES * LEAF_BYTES
            recent = self._verified(at, min(self._bytes, max(at + _AHEAD_BYTES, -(-end // LEAF_BYTES) * LEAF_BYTES)))
            self._recent = (at, recent)
        return recent[begin - at : end - at]

    def _verified(self, begin: int, end: int) -> memoryview:
        if self._file < 0:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        data = memoryview(bytearray(end - begin))
        done = 0
        while done < len(data):
            count = os.preadv(self._file, [data[done:]], self.header_bytes + begin + done)
            if count == 0:
                raise damaged(self.path, f"the file ends at byte {self.header_bytes + begin + done}")
            done += count
        for at in range(begin, end, LEAF_BYTES):
            leaf = data[at - begin : at - begin + LEAF_BYTES]
            (wanted,) = struct.unpack_from("<Q", self._leaves, at // LEAF_BYTES * 8)
            if _number(self._library, leaf) != wanted:
                first = self.header_bytes + at
                raise damaged(self.path, f"bytes {first} to {first + len(leaf)}")
        return data

    def close(self) -> None:
        self._recent = (0, memoryview(b""))
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if self._file >= 0:
            self.close()


class Checkpoint:
    """A checkpoint on storage: its manifest, and its shards by name. A shard's file is opened when it is needed."""

    def __init__(self, library: Library | None, folder: Path) -> None:
        manifest = _record(library, folder / "manifest.json")
        try:
            if manifest["format"] != _FORMAT:
                raise StorageError(
                    f"{folder} has format {manifest['format']}, but this version of ckptengine only reads format "
                    f"{_FORMAT}; read it with the version that wrote it"
                )
            self.folder = folder
            self.job: str = manifest["job"]
            self.iteration: int = manifest["iteration"]
            self.incarnation: int = manifest["incarnation"]
            self.world_size: int = manifest["world_size"]
            pieces: dict[str, list[dict]] = {}
            for piece in sorted(manifest["shards"], key=lambda piece: piece["offset_bytes"]):
                pieces.setdefault(piece["file"], []).append(piece)
            for name, of in pieces.items():
                if (folder / name).stat().st_size != of[0]["file_bytes"]:
                    raise damaged(folder / name, "its size is not the one in the manifest")
            end = f".{self.incarnation}.safetensors"
            self._pieces = {name.removesuffix(end): of for name, of in pieces.items()}
        except (KeyError, TypeError) as error:
            raise damaged(folder / "manifest.json", repr(error)) from None
        self._library = library
        self._shards: dict[str, Shard] = {}

    def names(self) -> list[str]:
        return list(self._pieces)

    def shard(self, name: str) -> Shard:
        if name not in self._shards:
            try:
                self._shards[name] = Shard(self._library, self.folder, self._pieces[name])
            except (KeyError, TypeError, ValueError) as error:
                raise damaged(self.folder / self._pieces[name][0]["file"], repr(error)) from None
        return self._shards[name]

    def close(self) -> None:
        while self._shards:
            self._shards.popitem()[1].close()


def open_checkpoint(library: Library, storage: Path, job: str, iteration: int | None) -> Checkpoint:
    """Opens the checkpoint of `iteration`. If that is None, opens the newest checkpoint that has all its files."""
    folder = Path(storage) / job
    if iteration is not None:
        if not (folder / f"step-{iteration:08}" / "manifest.json").exists():
            raise StorageError(f"{folder} has no checkpoint of iteration {iteration}; `ckptctl ls` lists what it has")
        return _in_its_place(Checkpoint(library, folder / f"step-{iteration:08}"), job)
    found, why = [], ""
    for manifest in folder.glob("step-*/manifest.json"):
        try:
            found.append(_in_its_place(Checkpoint(library, manifest.parent), job))
        except (OSError, StorageError) as error:  # this checkpoint does not count; the next older one is tried
            why = f" ({error})"
    if not found:
        raise StorageError(
            f"{folder} has no whole checkpoint{why}; check that this is the job's storage, and that the job's name is "
            "right"
        )
    return max(found, key=lambda one: (one.incarnation, one.iteration))


def _in_its_place(checkpoint: Checkpoint, job: str) -> Checkpoint:
    if checkpoint.job != job or checkpoint.folder.name != f"step-{checkpoint.iteration:08}":
        raise StorageError(
            f"{checkpoint.folder / 'manifest.json'} is of iteration {checkpoint.iteration} of job '{checkpoint.job}', "
            "but its path says otherwise. Somebody moved or renamed this folder: undo that, or remove the folder"
        )
    return checkpoint


def damaged(path: Path, where: str) -> StorageError:
    return StorageError(
        f"{path} is damaged ({where}); `ckptctl verify` says which checkpoints are whole, and the argument `iteration` "
        "selects one of them"
    )


def _record(library: Library | None, path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if library is None:
        return json.loads(data)
    head, rest = data[:_RECORD_HEAD_BYTES], data[_RECORD_HEAD_BYTES:]
    if head != _RECORD_HEAD + _digest(library, rest).encode() + b'",\n':
        raise damaged(path, "its digest is wrong")
    return json.loads(b"{" + rest)


def _leaves(library: Library, folder: Path, piece: dict) -> bytes:
    path = folder / piece["leaves"]
    leaves, length = path.read_bytes(), piece["data_bytes"]
    right = len(leaves) == -(-length // LEAF_BYTES) * 8
    if not right or _digest(library, leaves + struct.pack("<Q", length)) != piece["root_xxh3"]:
        raise damaged(path, "its digest is wrong")
    return leaves


def _digest(library: Library, data: bytes) -> str:
    return f"{_number(library, data):016x}"


def _number(library: Library, data: bytes | memoryview) -> int:
    import ctypes

    if isinstance(data, bytes):
        return library.ckpt_digest(data, len(data))
    return library.ckpt_digest(ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)) if data else 0
