"""The library of tests/kernels/optimizer_c.cpp. It does not need torch."""

from __future__ import annotations

import ctypes

CAPABILITIES = ["DEFAULT", "AVX2", "AVX512", "cuda"]  # in the order of TorchCapability


class Call(ctypes.Structure):
    """What its functions are called with."""

    _fields_ = [
        ("factors", ctypes.c_double * 5),
        ("step", ctypes.c_double),
        ("flags", ctypes.c_int32 * 3),
        ("fused", ctypes.c_int32),
        ("capability", ctypes.c_int32),
        ("isa", ctypes.c_int32),
        ("bfloat16", ctypes.c_int32),
        ("elements", ctypes.c_uint64),
        ("gradient", ctypes.c_void_p),
        ("tensors", ctypes.c_void_p * 4),
        ("digests", ctypes.c_void_p * 4),
    ]
