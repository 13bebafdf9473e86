"""Somebody who has no token and sends bytes to the ports of one machine: unauthenticated_peer.py ADDRESS SEED PORT...

It prints nothing and ends within a minute, whatever is answered.
"""

import contextlib
import random
import socket
import struct
import sys

TIMEOUT_S = 2.0
SILENT = 50  # connections at a time that say nothing


def words_of_ucx(dice):
    """What UCX takes for the beginning of something."""
    magic = struct.pack("<Q", 0xCAFEBABE12345678)
    yield struct.pack("<Q", dice.randrange(400)) + dice.randbytes(400)
    yield magic + struct.pack("<BI", dice.randrange(36), dice.randrange(300)) + dice.randbytes(300)
    yield magic + struct.pack("<BI", dice.randrange(36), dice.choice([2**31, 2**32 - 1])) + dice.randbytes(100)


def everything(dice):
    yield b"A" * 4096
    yield bytes(64)
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield bytes.fromhex("16030102000100") + dice.randbytes(512)  # how TLS begins
    yield struct.pack("<4sI", b"CKPD", dice.randrange(1 << 32)) + bytes(64)
    yield dice.randbytes(dice.randrange(1, 3000))
    yield bytes(1 << 20)
    yield from words_of_ucx(dice)


def say(address, word, dice):
    """Then waits for an answer, hangs up, or breaks off."""
    with contextlib.suppress(OSError), socket.create_connection(address, TIMEOUT_S) as connection:
        manner = dice.randrange(3)
        if manner == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(word)
        if manner == 1:
            connection.settimeout(0.2)
            connection.recv(4096)


def stay_silent(address):
    with contextlib.ExitStack() as open_ones:
        for _ in range(SILENT):
            with contextlib.suppress(OSError):
                open_ones.enter_context(socket.create_connection(address, TIMEOUT_S))


def main():
    host, seed, *ports = sys.argv[1:]
    dice = random.Random(seed)
    addresses = [(host, int(port)) for port in ports]
    dice.shuffle(addresses)
    for address in addresses:
        words = list(everything(dice))
        dice.shuffle(words)
        for word in words:
            say(address, word, dice)
        stay_silent(address)


if __name__ == "__main__":
    main()
