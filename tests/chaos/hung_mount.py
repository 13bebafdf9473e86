"""A file system that takes requests and never answers them, over a folder that has one for a while. Needs root."""

import ctypes
import functools
import os
import tempfile

FUSE = "/dev/fuse"
MNT_DETACH = 2
AT_FDCWD, RENAME_EXCHANGE = -100, 2

_libc = ctypes.CDLL(None, use_errno=True)


def make(folder):
    """The descriptor of the mount: what waits there waits until it is closed."""
    server = os.open(FUSE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"none", os.fsencode(folder), b"fuse", 0, options) != 0:
        os.close(server)
        _raise(folder)
    return server


def remove(folder):
    """All of them; what is under them can be reached again."""
    while _libc.umount2(os.fsencode(folder), MNT_DETACH) == 0:
        pass


@functools.cache
def can_be_made():
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.close(make(folder))
        except OSError:
            return False
        remove(folder)
        return True


def exchange(one, other):
    """Each file gets the other's place, and at no moment is either place empty."""
    if _libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        _raise(one)


def _raise(path):
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(path))
