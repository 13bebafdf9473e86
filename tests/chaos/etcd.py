"""Real etcd servers of one test or campaign: started, struck, mended and ended by scripts/etcd_server.sh."""

import os
import signal
import subprocess
import time
from pathlib import Path

from processes import has_ended, kill_process

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "etcd_server.sh"
DEADLINE_S = 60
DISK_BYTES = 640 << 20  # etcd's log has segments of 64 MiB, and some of them wait to be removed


class EtcdFailure(Exception):
    """The servers do not do what they are told to; the text says why."""


class Etcd:
    """Servers with their data in `folder`, on the node that the words `enter` lead to. `options` are the script's."""

    def __init__(self, folder, enter=(), options=()):
        self.folder = folder
        self.enter = enter
        self.options = options
        self.location = ""

    def start(self, *options):
        """The first time makes the servers; a later one starts those that do not run."""
        self.location = self._script("start", *self.options, *options)
        return self.location

    def stop(self):
        self._script("stop")
        if os.path.ismount(self.disk):
            _run("umount", self.disk)

    @property
    def disk(self):
        return self.folder / "0"  # where the script lets member 0 keep everything

    def fill(self):
        """Until the servers, which have a quota, refuse to write."""
        self._script("fill")

    def free(self):
        self._script("free")

    def wipe(self):
        """As somebody does who takes all keys for leftovers."""
        self._script("control", "del", "--prefix", "/ckptengine/")

    def hang(self):
        """Takes requests, and answers none."""
        self.signal(signal.SIGSTOP)

    def answer(self):
        self.signal(signal.SIGCONT)

    def signal(self, number, member=0):
        kill_process(self._pid(member), number)

    def kill(self, member=0):
        pid = self._pid(member)
        kill_process(pid)
        _wait_until(lambda: has_ended(pid), "the end of etcd")

    def _pid(self, member):
        return int((self.folder / str(member) / "pid").read_text())

    def _script(self, command, *options, text=""):
        return _run(*self.enter, "bash", SCRIPT, command, self.folder, *options, text=text)


class EtcdOnDisk(Etcd):
    """One server on a disk of its own, which can be full. Needs root."""

    def __init__(self, folder, enter=(), options=()):
        super().__init__(folder, enter, options)
        self.disk.mkdir(mode=0o700, parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "none", self.disk)

    def fill_disk(self):
        """To the last byte; etcd, which then cannot keep what it has promised to keep, ends itself."""
        try:
            with open(self.disk / "hog", "wb", buffering=0) as hog:
                while hog.write(bytes(1 << 20)):
                    pass
        except OSError:
            pass  # no space left
        end = time.monotonic() + DEADLINE_S
        while not has_ended(self._pid(0)):
            if time.monotonic() > end:
                raise EtcdFailure("etcd goes on without a byte left on its disk")
            self._put("x" * 1_000_000)

    def free_disk(self):
        (self.disk / "hog").unlink()

    def _put(self, value):
        try:
            self._script("control", "put", "hog", text=value)
        except EtcdFailure:
            pass  # it has ended, or is about to


def _run(*words, text=""):
    try:
        done = subprocess.run(words, check=False, input=text, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as late:
        raise EtcdFailure(f"{' '.join(map(str, words))} did not end within {DEADLINE_S} s") from late
    if done.returncode != 0:
        raise EtcdFailure(done.stderr.strip())
    return done.stdout.strip()


def _wait_until(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            raise EtcdFailure(f"{what}: not within {DEADLINE_S} s")
        time.sleep(0.01)
