"""Nodes of their own on this machine: network namespaces, each with one interface that is plugged into a common switch.

A Network owns its namespaces, and takes them and every process in them away when it is closed. What an earlier process
left behind because it was killed goes when the next Network is made.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

INTERFACE = "ckpt0"  # on every node
SWITCH = "switch"  # the namespace that has the other ends
BRIDGE = "bridge"
NOBODY = "02:00:00:00:00:00"  # a hardware address that no interface has
# What one send may pass on at once is kept small, so that a limited link is shared in small turns; the bucket takes it
# whole.
GSO_BYTES = 32 << 10
BURST_BYTES = GSO_BYTES + (1 << 10)
QUEUE_BYTES = 4 << 20
DEADLINE_S = 30


class NetworkFailure(Exception):
    """Namespaces or what runs in them cannot be had; the text says why."""


def why_not() -> str | None:
    """Why this process cannot have a Network; None where it can."""
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2 (a Debian package)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = _try("unshare", "--net", "true")
    return None if probe.returncode == 0 else f"no network namespaces here: {probe.stderr.strip()}"


class Network:
    """Nodes by name. Each direction of a node's link takes `rate_mbit` Mbit/s, or what there is.

    A name of a namespace tells whose it is: the process by number and start, so that it is never mistaken for another.
    """

    interface = INTERFACE
    has_links = True

    def __init__(self, nodes: Iterable[str] = (), rate_mbit: float | None = None) -> None:
        reason = why_not()
        if reason is not None:
            raise NetworkFailure(reason)
        _remove_orphans()
        self._prefix = f"ckptengine-{os.getpid()}-{_start_of(os.getpid())}-{os.urandom(2).hex()}-"
        self._rate_mbit = rate_mbit
        self._numbers: dict[str, int] = {}
        self._used = 0
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._make_switch()
            for node in nodes:
                self.add(node)
            undo.pop_all()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for name in [self._namespace(node) for node in [*self._numbers, SWITCH]]:
            _remove(name)
        self._numbers.clear()

    # ---- Nodes ----

    def add(self, node: str) -> None:
        self._used += 1
        self._numbers[node] = self._used
        inside, switch = self._namespace(node), self._namespace(SWITCH)
        _must("ip", "netns", "add", inside)
        _must("ip", "link", "add", self._port(node), "netns", switch, "type", "veth",
              "peer", INTERFACE, "netns", inside)
        self._start_interface(inside, self.address(node))
        _must("ip", "-n", switch, "link", "set", self._port(node), "master", BRIDGE, "up")
        self._limit(switch, self._port(node))
        self._await_link(node)

    def remove(self, node: str) -> None:
        """The machine, and every process on it."""
        _remove(self._namespace(node))
        del self._numbers[node]

    def address(self, node: str) -> str:
        high, low = divmod(self._numbers[node], 256)
        return f"10.77.{high}.{low}"

    def enter(self, node: str) -> list[str]:
        """The words before a command that make it run on that node. Its process becomes the command's."""
        return ["ip", "netns", "exec", self._namespace(node)]

    # ---- Faults ----

    def unplug(self, node: str) -> None:
        """Pulls the cable: the node sees its link go down."""
        _must("ip", "-n", self._namespace(SWITCH), "link", "set", self._port(node), "down")

    def plug_in(self, node: str) -> None:
        _must("ip", "-n", self._namespace(SWITCH), "link", "set", self._port(node), "up")
        self._await_link(node)

    def mute(self, node: str) -> None:
        """One direction fails: the node hears all others, and nobody hears it."""
        for other in self._numbers.keys() - {node}:
            _must("ip", "-n", self._namespace(node), "neigh", "replace", self.address(other), "lladdr", NOBODY,
                  "nud", "permanent", "dev", INTERFACE)

    def unmute(self, node: str) -> None:
        _must("ip", "-n", self._namespace(node), "neigh", "flush", "nud", "permanent", "dev", INTERFACE)

    # ---- How it is made ----

    def _namespace(self, node: str) -> str:
        return self._prefix + node

    def _port(self, node: str) -> str:
        return f"port{self._numbers[node]}"

    def _make_switch(self) -> None:
        switch = self._namespace(SWITCH)
        _must("ip", "netns", "add", switch)
        _must("ip", "-n", switch, "link", "add", BRIDGE, "type", "bridge")
        _must("ip", "-n", switch, "link", "set", BRIDGE, "up")

    def _start_interface(self, inside: str, address: str) -> None:
        _must("ip", "-n", inside, "link", "set", "lo", "up")
        _must("ip", "-n", inside, "addr", "add", f"{address}/16", "dev", INTERFACE)
        _must("ip", "-n", inside, "link", "set", INTERFACE, "up", "gso_max_size", str(GSO_BYTES))
        self._limit(inside, INTERFACE)

    def _limit(self, namespace: str, device: str) -> None:
        """Limits what leaves through the device: a node's interface to send, its port at the switch to receive."""
        if self._rate_mbit is not None:
            limit = ["rate", f"{self._rate_mbit}mbit", "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES)]
            _must("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit)

    def _await_link(self, node: str) -> None:
        """Until the kernel says so, programs take the interface for one that cannot be used, and the switch passes
        nothing on."""
        port = ["bridge", "-n", self._namespace(SWITCH), "link", "show", "dev", self._port(node)]
        deadline = time.monotonic() + DEADLINE_S
        while ("state UP" not in _must("ip", "-n", self._namespace(node), "link", "show", INTERFACE)
               or "state forwarding" not in _must(*port)):
            if time.monotonic() > deadline:
                raise NetworkFailure(f"the network link of node {node} did not come up")
            time.sleep(0.02)


# ---- What is left behind ----


def _remove_orphans() -> None:
    for line in _try("ip", "netns", "list").stdout.splitlines():
        name = line.split()[0]
        owner = re.fullmatch(r"ckptengine-(\d+)-(\d+)-.+", name)
        if owner and _start_of(int(owner[1])) != int(owner[2]):
            _remove(name)


def _remove(namespace: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (pids := _try("ip", "netns", "pids", namespace).stdout.split()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.01)
    _try("ip", "netns", "del", namespace)


def _start_of(pid: int) -> int | None:
    """When the process began, in ticks since boot; None where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _must(*words: str) -> str:
    done = _try(*words)
    if done.returncode != 0:
        raise NetworkFailure(f"'{' '.join(words)}' failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def _try(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
