"""A coordination directory that can hang, be moved away and be wiped, as a mount can."""

import contextlib
import errno
import os
import re
import shutil
import stat
from pathlib import Path

import hung_mount


class Directory:
    """The store of one job."""

    def __init__(self, folder):
        self.location = str(folder)
        self._away = folder.with_name(f"{folder.name}.away")
        self._kept = folder.with_name(f"{folder.name}.kept")  # a record, while a pipe is in its place
        self._record = None  # where that pipe is
        self._mounts = []  # descriptors of those that hang, or hung

    def start(self):
        Path(self.location).mkdir(mode=0o700)

    def stop(self):
        self._let_go()
        for folder in (Path(self.location), self._away):
            hung_mount.remove(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def hang(self):
        """Like a mount whose server does not answer."""
        self._mounts.append(hung_mount.make(self.location))

    def answer(self, lets_go=True):
        """Whoever waits gets an error or, unless `lets_go`, waits for good."""
        hung_mount.remove(self.location)
        if lets_go:
            self._let_go()

    def _let_go(self):
        while self._mounts:
            os.close(self._mounts.pop())

    def put_pipe(self):
        """In the place of the record `incarnation`, which all agents read over and over. It has no writer."""
        self._record = max(Path(self.location).glob("*/incarnation*"), key=revision)
        os.mkfifo(self._kept, 0o600)
        hung_mount.exchange(self._record, self._kept)

    def take_pipe(self):
        """The record is back, unless a newer one has come. Whoever still waits at the pipe gets it, too."""
        content = self._kept.read_bytes()
        if self._record.exists() and stat.S_ISFIFO(self._record.stat().st_mode):
            with contextlib.suppress(OSError):  # nobody waits, or nobody reads what another one has got
                pipe = os.open(self._record, os.O_WRONLY | os.O_NONBLOCK)
                try:
                    os.write(pipe, content)
                finally:
                    os.close(pipe)
            os.rename(self._kept, self._record)
        self._kept.unlink(missing_ok=True)

    def move_away(self):
        """Like a mount that is gone: nothing is there, and what is written there does not last."""
        os.rename(self.location, self._away)

    def move_back(self):
        for left in reversed(range(1000)):  # agents make it anew meanwhile
            self.wipe()
            try:
                return os.rename(self._away, self.location)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or left == 0:
                    raise

    def wipe(self):
        """With all that is in it, at one moment."""
        wiped = Path(f"{self.location}.wiped")
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.location, wiped)
        shutil.rmtree(wiped, ignore_errors=True)


def revision(file):
    """Of a record that is one file per revision."""
    found = re.fullmatch(r"[^@]+@(\d+)", file.name)
    return int(found[1]) if found else -1
