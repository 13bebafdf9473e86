"""The network that scripts/netns.py makes: its faults do what they say, and nothing of it stays behind."""

from __future__ import annotations

import subprocess
import sys
import time

import netns
import pytest

PORT = 9999
DEADLINE_S = 30
LISTEN = f"""
import socket
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
at.bind(("0.0.0.0", {PORT}))
print("listening", flush=True)
print(at.recv(16).decode(), flush=True)
"""
SEND = f"""
import socket, sys
at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    at.sendto(sys.argv[2].encode(), (sys.argv[1], {PORT}))
except OSError:
    pass
"""

pytestmark = pytest.mark.skipif(netns.why_not() is not None, reason=str(netns.why_not()))


def send(network: netns.Network, sender: str, receiver: str, text: str) -> None:
    words = [*network.enter(sender), sys.executable, "-c", SEND, network.address(receiver), text]
    subprocess.run(words, check=True, timeout=DEADLINE_S)


def first_heard(network: netns.Network, receiver: str, *senders: str) -> str:
    """Who is heard first where the senders speak in turns, again and again: what is sent once may be lost, or wait for
    an address to be found, on any network."""
    words = [*network.enter(receiver), sys.executable, "-c", LISTEN]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout.readline() == "listening\n"
        deadline = time.monotonic() + DEADLINE_S
        while listener.poll() is None:
            if time.monotonic() > deadline:
                listener.kill()
                pytest.fail(f"{receiver} hears none of {senders}")
            for sender in senders:
                send(network, sender, receiver, sender)
        return listener.stdout.readline().strip()


def namespaces() -> str:
    words = ["ip", "netns", "list"]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=DEADLINE_S).stdout


def test_muted_node_receives_but_does_not_send():
    with netns.Network(["a", "b", "c"]) as network:
        assert first_heard(network, "b", "a") == "a"
        network.mute("a")
        assert first_heard(network, "b", "a", "c") == "c"
        assert first_heard(network, "a", "b") == "b"
        network.unmute("a")
        assert first_heard(network, "b", "a") == "a"


def test_unplugged_node_is_unreachable_until_plugged_in():
    with netns.Network(["a", "b", "c"]) as network:
        network.unplug("a")
        assert first_heard(network, "b", "a", "c") == "c"
        network.plug_in("a")
        assert first_heard(network, "b", "a") == "a"


def test_a_closed_network_leaves_nothing():
    with netns.Network(["a"]) as network:
        name = network.enter("a")[-1]
        words = [*network.enter("a"), "sh", "-c", "echo inside; exec sleep 1000"]
        sleeper = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert sleeper.stdout.readline() == "inside\n"
        assert name in namespaces()
    assert name not in namespaces()
    assert sleeper.wait(DEADLINE_S) != 0


def test_next_network_removes_leftovers_of_a_killed_process():
    program = "import netns, sys; n = netns.Network(['a']); print(n.enter('a')[-1], flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        name = owner.stdout.readline().strip()
        assert name in namespaces()
        owner.kill()
    netns.Network().close()
    assert name not in namespaces()
