"""Whether this machine has a GPU that a build of ckptengine can use, asked of the CUDA driver itself; and with which
libraries the programs of that build run on it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Iterator
from ctypes import byref, c_int
from pathlib import Path

DRIVER, NCCL = "libcuda.so.1", "libnccl.so.2"
OLDEST_DRIVER = (12, 2)  # as src/device/cuda_driver.hpp says


def gpu_name() -> tuple[str, str]:
    """Name and driver's version of the first GPU, or why there is none."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        return "", f"there is no CUDA driver ({error})"
    if hasattr(driver, "ckpt_double_reset"):
        return "", f"{driver_file()} is the tests' test double of a driver; take its folder out of LD_LIBRARY_PATH"
    status, count, device = driver.cuInit(0), c_int(), c_int()
    if status != 0:
        return "", f"the CUDA driver does not start (cuInit: {status})"
    driver.cuDeviceGetCount(byref(count))
    if count.value == 0:
        return "", "the CUDA driver knows no device"
    name = ctypes.create_string_buffer(100)
    driver.cuDeviceGet(byref(device), 0)
    driver.cuDeviceGetName(name, 100, device)
    return f"{name.value.decode()}, driver for CUDA {driver_version()}", ""


def driver_version() -> str:
    version = c_int()
    ctypes.CDLL(DRIVER).cuDriverGetVersion(byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def why_unusable(build: Path) -> str:
    """Why the programs of a build cannot run on this machine's GPU; empty where they can."""
    if not (build / "cuda_version.txt").exists():
        return f"{build} was built without CUDA; build it where there is an nvcc"
    found = driver_version()
    if tuple(map(int, found.split("."))) < OLDEST_DRIVER:
        wanted = ".".join(map(str, OLDEST_DRIVER))
        return f"the CUDA driver is for CUDA {found}, and ckptengine needs {wanted} (driver 535); update the driver"
    return ""


def loaded_file(name: str) -> Path:
    """The file of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if f"/{name}" in path:
            return Path(path)
    raise RuntimeError(f"{name} is not loaded")


def driver_file() -> Path:
    """The driver that this process has loaded."""
    return loaded_file("libcuda.so")


def nccl_file() -> Path | None:
    """NCCL, that of the system or else what was installed for PyTorch."""
    try:
        ctypes.CDLL(NCCL)
        return loaded_file("libnccl.so")
    except OSError:
        pass
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or []) if packages else []:
        file = Path(folder) / "nccl" / "lib" / NCCL
        if file.exists():
            return file
    return None


@contextlib.contextmanager
def program_libraries(build: Path) -> Iterator[str]:
    """LD_LIBRARY_PATH for the C++ programs of a build or bundle, and for nothing else: links to this machine's driver
    and NCCL alone, whose folders may hold much that shadows other libraries, before the test doubles that a build's
    programs are linked with; then the libraries that a bundle brings."""
    with tempfile.TemporaryDirectory(prefix="ckptengine-gpu-") as folder:
        for name, file in ((DRIVER, driver_file()), (NCCL, nccl_file())):
            if file:
                (Path(folder) / name).symlink_to(file)
        yield os.pathsep.join(filter(None, [folder, str(build / "lib"), os.environ.get("LD_LIBRARY_PATH")]))


def driver_of(program: Path, library_path: str) -> Path | None:
    """The driver that the dynamic linker gives a program which is linked with one."""
    environment = os.environ | {"LD_LIBRARY_PATH": library_path, "LD_TRACE_LOADED_OBJECTS": "1"}
    listing = subprocess.run([program], env=environment, check=False, capture_output=True, text=True).stdout
    for line in listing.splitlines():
        if line.strip().startswith(f"{DRIVER} => /"):
            return Path(line.split()[2]).resolve()
    return None
