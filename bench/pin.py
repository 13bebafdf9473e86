"""Measures how fast the kernel pins memory of a tmpfs, with small pages and with huge ones. Needs root and no GPU.

The engine pins slots in pieces of 256 MiB, and a GPU's driver may hold its lock meanwhile. The kernel does most of this
work. Here io_uring asks the kernel for it, as a driver does. With --gpu, the GPU's driver asks. The bench mounts two
tmpfs that no other process sees: with huge=never, as /dev/shm is by default, and with huge=within_size. In each it
reserves a file, maps it, and pins it once. It does so several times, and takes the shortest: in a virtual machine,
memory that the machine has never used costs much more. Without root, or if the kernel has no io_uring, it measures
nothing and ends with status 3.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("python", "python/tests")]

MIB = 1 << 20
PIECE_BYTES = 256 * MIB  # pin_max_bytes in src/device/cuda_copy.hpp
UNUSABLE = 3
IO_URING_SETUP, IO_URING_REGISTER = 425, 427  # the same on all machines
REGISTER_BUFFERS, UNREGISTER_BUFFERS = 0, 1
libc = ctypes.CDLL(None, use_errno=True)


class Iovec(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size_bytes", ctypes.c_size_t)]


def call(number: int, *arguments: object) -> int:
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class Pinner:
    """Pins through io_uring."""

    def __init__(self) -> None:
        parameters = ctypes.create_string_buffer(120)  # struct io_uring_params
        self.ring = call(IO_URING_SETUP, 4, parameters)

    def pin(self, address: int, size_bytes: int) -> None:
        part = Iovec(address, size_bytes)
        call(IO_URING_REGISTER, self.ring, REGISTER_BUFFERS, ctypes.byref(part), 1)

    def unpin(self) -> None:
        call(IO_URING_REGISTER, self.ring, UNREGISTER_BUFFERS, None, 0)


class DriverPinner:
    """Pins through the driver of the GPU."""

    def __init__(self) -> None:
        from cuda_trainer import Gpu  # needs the engine's library

        self.gpu = Gpu()
        self.address = 0

    def pin(self, address: int, size_bytes: int) -> None:
        self.address = address
        self.gpu.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), 0)

    def unpin(self) -> None:
        self.gpu.call("cuMemHostUnregister", ctypes.c_void_p(self.address))


def measure(pinner: Pinner | DriverPinner, folder: Path, size_bytes: int) -> tuple[float, float, float]:
    """The seconds that it takes to reserve the file, to pin it, and to pin the slowest piece."""
    file = folder / "slot"
    with file.open("w+b") as opened:
        file.unlink()
        begin = time.perf_counter()
        os.posix_fallocate(opened.fileno(), 0, size_bytes)
        reserved_s = time.perf_counter() - begin
        with mmap.mmap(opened.fileno(), size_bytes) as mapped:
            first = ctypes.c_char.from_buffer(mapped)
            pieces = []
            for at in range(0, size_bytes, PIECE_BYTES):
                begin = time.perf_counter()
                pinner.pin(ctypes.addressof(first) + at, min(PIECE_BYTES, size_bytes - at))
                pieces.append(time.perf_counter() - begin)
                pinner.unpin()
            del first
    return reserved_s, sum(pieces), max(pieces)


def compare(pinner: Pinner | DriverPinner, mib: int, rounds: int) -> None:
    kinds = {"small": "never", "huge": "within_size"}
    found: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for kind, option in kinds.items():
            place = Path(folder) / kind
            place.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"huge={option}", "tmpfs", place], check=True)
        for _ in range(rounds):
            for kind, figures in found.items():
                figures.append(measure(pinner, Path(folder) / kind, mib * MIB))
        for kind in kinds:
            subprocess.run(["umount", Path(folder) / kind], check=True)
    gib = mib / 1024
    shortest = {kind: [min(row[i] for row in rows) for i in range(3)] for kind, rows in found.items()}
    for kind, (reserved_s, pinned_s, piece_s) in shortest.items():
        print(
            f"pin: {kind} pages: reserve {reserved_s / gib:.3f} s and pin {pinned_s / gib:.3f} s per GiB, "
            f"slowest piece of 256 MiB {1000 * piece_s:.1f} ms"
        )
    ours, theirs = (sum(shortest[kind][:2]) / gib for kind in ("huge", "small"))
    print(
        f"ratio: pin_huge_pages = {ours / theirs:.3f} "
        f"(ours {ours:.3f}, theirs {theirs:.3f}, s per GiB, reserved and pinned)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of a file; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--gpu", action="store_true", help="pin through the driver of this machine's GPU")
    parser.add_argument("--mounts-are-own", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("nothing is measured: mounting a tmpfs needs root")
        return UNUSABLE
    if not arguments.mounts_are_own:
        return subprocess.run(
            ["unshare", "--mount", sys.executable, *sys.argv, "--mounts-are-own"], check=False
        ).returncode
    try:
        compare(DriverPinner() if arguments.gpu else Pinner(), arguments.mib, arguments.rounds)
    except OSError as error:
        print(f"nothing is measured: the kernel refused: {error}")
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
