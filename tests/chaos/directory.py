"""A coordination directory that can hang, be moved away and be wiped, as a mount can."""

import contextlib
import ctypes
import os
import shutil
import stat
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2
RECORD = "life"  # of the job, which all agents read over and over


class Directory:
    """The store of one job."""

    def __init__(self, folder):
        self.location = str(folder)
        self._kept = folder.with_name(f"{folder.name}.kept")  # a record, while a pipe is in its place
        self._away = folder.with_name(f"{folder.name}.away")

    def start(self):
        Path(self.location).mkdir(mode=0o700)

    def stop(self):
        for folder in (Path(self.location), self._away):
            shutil.rmtree(folder, ignore_errors=True)

    def hang(self):
        """Whoever opens the job's record waits: a pipe without a writer has taken its place."""
        os.mkfifo(self._kept, 0o600)
        _exchange(self._record(), self._kept)

    def answer(self, lets_go=True):
        """The record is back. Whoever still waits for the old one gets it, or waits for good."""
        record = self._record()
        if stat.S_ISFIFO(record.stat().st_mode):
            _exchange(record, self._kept)
        if lets_go:
            self._let_go(record.read_bytes())
        self._kept.unlink()

    def _let_go(self, content):
        with contextlib.suppress(OSError):  # nobody waits (ENXIO), or nobody reads what one other reader has got
            fd = os.open(self._kept, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, content)
            finally:
                os.close(fd)

    def _record(self):
        (record,) = Path(self.location).glob(f"*/{RECORD}")
        return record

    def move_away(self):
        """Like a mount that is gone: nothing is there, and what is written there does not last."""
        os.rename(self.location, self._away)

    def move_back(self):
        self.wipe()
        os.rename(self._away, self.location)

    def wipe(self):
        """With all that is in it, at one moment."""
        wiped = Path(f"{self.location}.wiped")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.location, wiped)
        shutil.rmtree(wiped, ignore_errors=True)


def _exchange(one, other):
    """Each gets the other's place, and at no moment is either place empty."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))
