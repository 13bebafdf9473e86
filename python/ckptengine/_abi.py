"""The C ABI of libckptengine for ctypes. include/ckptengine/ckptengine.h says what each function does.

The module keeps no state except a cache of loaded libraries. ctypes releases the GIL during calls that may wait. Calls
that never wait keep the GIL, because getting it back can take milliseconds if other threads run.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from collections.abc import Iterator
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path

from ._programs import REMEDY

__all__ = ["Capture", "DType", "Library", "Memory", "Protection", "Stage", "Status", "Tier", "byref", "load_library"]

FILE_NAME = "libckptengine.so"
SO_VERSION = "0"


class Status(enum.IntEnum):
    """Result of a call.

    Attributes:
        OK: The call succeeded.
        SKIPPED: All ranks skip the snapshot of this iteration. Training is not affected.
        DISCARDED: This snapshot was taken and then discarded. Training is not affected.
        INVALID: Bad argument, bad option or wrong order of calls. Nothing changed.
        NO_AGENT: No agent answers on this node, or it belongs to another job.
        CLAIMED: Another running process holds this rank.
        SUPERSEDED: This process belongs to an earlier incarnation: restart it with all others.
        NO_SPACE: No room: in memory, /dev/shm, the GPU's memory, or within the option `arena_bytes`.
        MISMATCH: World size or layout differs from what is stored. The error names where.
        LOST: A committed checkpoint is lost and cannot be rebuilt.
        TIMEOUT: A deadline passed. The error says what the call waited for.
        CORRUPT: Bytes did not match their digest, and no other source has them.
        SYSTEM: The operating system or the GPU refused something.
        INTERNAL: A bug in ckptengine: report it with the agent's log.
        HALTED: The job was halted, because a rank holds it up: do not update (docs/jit.md).
    """

    OK = 0
    SKIPPED = 1
    DISCARDED = 2

    INVALID = 16
    NO_AGENT = 17
    CLAIMED = 18
    SUPERSEDED = 19
    NO_SPACE = 20
    MISMATCH = 21
    LOST = 22
    TIMEOUT = 23
    CORRUPT = 24
    SYSTEM = 25
    INTERNAL = 26
    HALTED = 27

    @property
    def is_error(self) -> bool:
        """False for OK, and for snapshots that were skipped or discarded."""
        return self >= Status.INVALID


class DType(enum.IntEnum):
    """Element types, with the names that safetensors uses."""

    BOOL = 0
    U8 = 1
    I8 = 2
    F8_E4M3 = 3
    F8_E5M2 = 4
    I16 = 5
    U16 = 6
    F16 = 7
    BF16 = 8
    I32 = 9
    U32 = 10
    F32 = 11
    I64 = 12
    U64 = 13
    F64 = 14
    C64 = 15


class Memory(enum.IntEnum):
    """Where a tensor's bytes are.

    Attributes:
        HOST: Memory of the process.
        DEVICE: Memory of a CUDA GPU, one GPU per engine.
    """

    HOST = 0
    DEVICE = 1


class Optimizer(enum.IntEnum):
    """An optimizer of torch.optim."""

    ADAM = 0  # AdamW and Adam
    SGD = 1


class Capture(enum.IntEnum):
    """When a tensor is captured. This also selects its shard.

    Attributes:
        OVERLAPPED: Main shard: copied while training goes on, until before_update().
        SYNCHRONOUS: Private shard: copied before snapshot() returns.
    """

    OVERLAPPED = 0
    SYNCHRONOUS = 1


class Tier(enum.IntEnum):
    """Where a shard of a restored checkpoint came from.

    Attributes:
        NONE: Nothing was restored.
        LOCAL: This node's memory.
        PEER: Another node's memory.
        DECODED: Parity.
        PERSISTENT: Storage.
        LIVE: The rank's own tensors, after a rejoin.
    """

    NONE = 0
    LOCAL = 1
    PEER = 2
    DECODED = 3
    PERSISTENT = 4
    LIVE = 5


class Protection(enum.IntEnum):
    """Whether a job is protected, from best to worst."""

    PROTECTED = 0
    DEGRADED = 1
    NOT_PROTECTED = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")


class Stage(enum.IntEnum):
    """How far a snapshot has come. Later stages have higher values.

    Attributes:
        NONE: Not taken, waiting for a slot, discarded, or more than 256 iterations old.
        CAPTURING: The copy is under way.
        CAPTURED: Complete in this node's memory.
        COMMITTED: Every shard of the job has all its copies and parity.
        DURABLE: The whole checkpoint is on storage (option `storage`).
    """

    NONE = 0
    CAPTURING = 1
    CAPTURED = 2
    COMMITTED = 3
    DURABLE = 4


class COption(Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class _Growing(Structure):
    """A struct to which later versions of the C API may add fields. The constructor sets its struct_size."""

    def __init__(self, **values: object) -> None:
        super().__init__(struct_size=sizeof(type(self)), **values)


class CTensor(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("shape", POINTER(c_int64)),
        ("ndim", c_int32),
        ("dtype", c_int),
        ("memory", c_int),
        ("capture", c_int),
    ]


class CRestored(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("found", c_int32),
        ("behind", c_int32),
        ("status_unknown", c_int32),
        ("main_tier", c_int),
        ("private_tier", c_int),
        ("stored_world_size", c_uint32),
        ("incarnation", c_uint64),
        ("iteration", c_int64),
        ("next_iteration", c_int64),
        ("bytes", c_uint64),
        ("fetch_ms", c_double),
        ("load_ms", c_double),
        ("message", c_char_p),
        ("adopted", c_int32),
        ("reserved", c_uint32),
    ]


class CStats(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("snapshots", c_uint64),
        ("skipped", c_uint64),
        ("discarded", c_uint64),
        ("committed", c_uint64),
        ("committed_iteration", c_int64),
        ("durable_iteration", c_int64),
        ("bytes_captured", c_uint64),
        ("stall_ms", c_double),
        ("capture_ms", c_double),
        ("commit_ms", c_double),
        ("gpu_staging_bytes", c_uint64),
        ("bubble_bytes", c_uint64),
        ("compute_bytes", c_uint64),
        ("update_bytes", c_uint64),
        ("layered", c_uint64),
        ("layered_late", c_uint64),
    ]


class CHealth(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("state", c_int),
        ("copies_now", c_uint32),
        ("copies_wanted", c_uint32),
        ("parity_now", c_uint32),
        ("parity_wanted", c_uint32),
        ("since_ms", c_int64),
        ("at_risk_ms", c_int64),
        ("at_risk_iterations", c_int64),
        ("allowed_ms", c_int64),
        ("committed_incarnation", c_uint64),
        ("committed_iteration", c_int64),
        ("rank", c_int64),
        ("node", c_char * 72),
        ("reason", c_char * 40),
        ("text", c_char * 512),
        ("advice", c_char * 320),
        ("suspicion", c_char * 320),
    ]


class CHalt(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("captured", c_int32),
        ("reserved", c_uint32),
        ("incarnation", c_uint64),
        ("iteration", c_int64),
        ("text", c_char * 512),
    ]


class CGradient(_Growing):
    _fields_ = [
        ("struct_size", c_size_t),
        ("parameter", c_char_p),
        ("first_moment", c_char_p),
        ("second_moment", c_char_p),
        ("largest_second_moment", c_char_p),
        ("data", c_void_p),
        ("elements", c_uint64),
        ("dtype", c_int),
        ("decoupled_weight_decay", c_int32),
        ("maximize", c_int32),
        ("cpu_has_fma", c_int32),
        ("step", c_double),
        ("learning_rate", c_double),
        ("beta1", c_double),
        ("beta2", c_double),
        ("epsilon", c_double),
        ("weight_decay", c_double),
        ("torch_version", c_char_p),
        ("optimizer", c_int),
        ("is_unfused", c_int32),
        ("memory", c_int),
        ("nesterov", c_int32),
        ("stream", c_void_p),
        ("step_count", c_char_p),
        ("momentum", c_double),
        ("dampening", c_double),
    ]


HealthCallback = CFUNCTYPE(None, POINTER(CHealth), c_void_p)
WarningCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

NO_STREAM = c_void_p(-1).value

# Argument types by function name. All of these return a ckpt_status and may wait, so ctypes releases the GIL.
_CALLS: dict[str, list] = {
    "ckpt_create": [POINTER(COption), c_size_t, POINTER(c_void_p)],
    "ckpt_register_tensor": [c_void_p, POINTER(CTensor)],
    "ckpt_move_tensor": [c_void_p, c_char_p, c_void_p],
    "ckpt_unregister_tensor": [c_void_p, c_char_p],
    "ckpt_take_shards": [c_void_p],
    "ckpt_load_taken": [c_void_p, c_char_p, c_void_p, c_size_t],
    "ckpt_stored_layout": [c_void_p, POINTER(c_char_p)],
    "ckpt_restore": [c_void_p, c_void_p, POINTER(CRestored)],
    "ckpt_snapshot": [c_void_p, c_int64, c_void_p],
    "ckpt_before_update": [c_void_p, POINTER(c_void_p), c_size_t],
    "ckpt_add_gradient": [c_void_p, POINTER(CGradient)],
    "ckpt_discard": [c_void_p],
    "ckpt_wait_halt": [c_void_p, c_int64, POINTER(CHalt)],
    "ckpt_report_trouble": [c_void_p, c_char_p],
    "ckpt_rejoin": [c_void_p],
    "ckpt_snapshot_stage": [c_void_p, c_int64, POINTER(c_int)],
    "ckpt_wait": [c_void_p, c_int64, c_int, c_int64],
    "ckpt_stats": [c_void_p, POINTER(CStats)],
    "ckpt_health": [c_void_p, POINTER(CHealth)],
    "ckpt_on_health": [c_void_p, HealthCallback, c_void_p],
    "ckpt_on_warning": [c_void_p, WarningCallback, c_void_p],
}
# Argument types of functions that never wait. They are called with the GIL held.
_INSTANT_CALLS: dict[str, list] = {
    "ckpt_comm_begin": [c_void_p, c_uint32, c_void_p],
    "ckpt_comm_end": [c_void_p, c_uint32, c_void_p],
    "ckpt_bubble_begin": [c_void_p, c_void_p],
    "ckpt_bubble_end": [c_void_p, c_void_p],
    "ckpt_pause": [c_void_p, c_char_p],
    "ckpt_resume": [c_void_p],
    "ckpt_capture_next": [c_void_p],
    "ckpt_own_not_ready": [c_void_p],
    "ckpt_wants_gradients": [c_void_p, POINTER(c_int32)],
}


class Library:
    """A loaded libckptengine with typed functions. Thread-safe."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self.path = path
        for loaded, calls in ((library, _CALLS), (ctypes.PyDLL(path), _INSTANT_CALLS)):
            for name, arguments in calls.items():
                function = getattr(loaded, name)
                function.argtypes = arguments
                function.restype = c_int
                setattr(self, name, function)
        library.ckpt_close.argtypes = [c_void_p]
        library.ckpt_close.restype = None
        self.ckpt_close = library.ckpt_close
        library.ckpt_digest.argtypes = [c_void_p, c_size_t]
        library.ckpt_digest.restype = c_uint64
        self.ckpt_digest = library.ckpt_digest
        for name in ("ckpt_last_error", "ckpt_version"):
            function = getattr(library, name)
            function.argtypes = []
            function.restype = c_char_p
            setattr(self, name, function)

    def last_error(self) -> str:
        """Returns why the last call on this thread failed or was skipped. "" if that call returned OK."""
        return (self.ckpt_last_error() or b"").decode("utf-8", "replace")

    def version(self) -> str:
        return self.ckpt_version().decode()


def _places() -> Iterator[Path]:
    """Folders to search for the library, in order: the package (wheel), the bundle around it, the source tree."""
    package = Path(__file__).resolve().parent
    root = package.parent.parent
    yield package / "lib"
    yield root / "lib"
    yield from sorted(root.glob("lib/*-linux-gnu"))
    yield root / "build" / "release" / "lib"


def find_library(*names: str) -> Path | None:
    """Finds the first of these files in the package, in the bundle around the package, or in the release build of the
    source tree. Returns None if none of these places has one."""
    return next((place / name for place in _places() for name in names if (place / name).exists()), None)


def load_library(path: str | os.PathLike | None = None) -> Library:
    """Loads libckptengine.

    Args:
        path: Path of the library. Without it, tries in this order: the package, the bundle around the package, the
            release build of the source tree, the system's loader.

    Returns:
        The loaded library. Loading it again returns the same object.

    Raises:
        OSError: The library is in none of these places, or it does not fit this package.
    """
    if path is not None:
        return _load(os.fspath(path))
    found = find_library(FILE_NAME, f"{FILE_NAME}.{SO_VERSION}")
    if found is not None:
        return _load(str(found))
    try:
        return _load(f"{FILE_NAME}.{SO_VERSION}")
    except OSError as error:
        raise OSError(
            f"{FILE_NAME} was not found. It is neither in the package nor in build/release nor known to the system's "
            f"loader ({error}). To get it, {REMEDY}, or give library=PATH"
        ) from None


@functools.cache
def _load(path: str) -> Library:
    try:
        return Library(path)
    except AttributeError as error:
        raise OSError(
            f"{path} is not the library that this Python package is for ({error}); rebuild it, or install package and "
            "library of one version"
        ) from None
