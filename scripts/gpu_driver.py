"""Whether this machine has a GPU that ckptengine can use, asked of the CUDA driver itself; and where NCCL is."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import byref, c_int
from pathlib import Path


def gpu_name() -> tuple[str, str]:
    """Name and driver's version of the first GPU, or why there is none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return "", f"there is no CUDA driver ({error})"
    status, count, device, version = driver.cuInit(0), c_int(), c_int(), c_int()
    if status != 0:
        return "", f"the CUDA driver does not start (cuInit: {status})"
    driver.cuDeviceGetCount(byref(count))
    if count.value == 0:
        return "", "the CUDA driver knows no device"
    name = ctypes.create_string_buffer(100)
    driver.cuDeviceGet(byref(device), 0)
    driver.cuDeviceGetName(name, 100, device)
    driver.cuDriverGetVersion(byref(version))
    return f"{name.value.decode()}, driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}", ""


def loaded_from(name: str) -> str:
    """The folder of a library that this process has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if f"/{name}" in path:
            return str(Path(path).parent)
    raise RuntimeError(f"{name} is not loaded")


def driver_folder() -> str:
    """Where the driver is that this process has loaded: before a stand-in's on LD_LIBRARY_PATH, it is what is found."""
    return loaded_from("libcuda.so")


def nccl_folder() -> str:
    """Where NCCL is, that of the system or else what was installed for PyTorch; empty where there is none."""
    try:
        ctypes.CDLL("libnccl.so.2")
        return loaded_from("libnccl.so")
    except OSError:
        pass
    packages = importlib.util.find_spec("nvidia")
    for folder in (packages.submodule_search_locations or []) if packages else []:
        if (Path(folder) / "nccl" / "lib" / "libnccl.so.2").exists():
            return str(Path(folder) / "nccl" / "lib")
    return ""
