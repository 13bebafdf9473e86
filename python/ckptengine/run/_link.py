"""Connections between launchers: lines of JSON over TCP. Both ends prove first that they have the job's secret."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ._loop import Loop

Message = dict[str, Any]
LINE_BYTES_MAX = 1 << 20
GREETING_BYTES_MAX = 1024  # of a line, before the other end has proven anything
WAITING_BYTES_MAX = 8 << 20
PROOF_WAIT_S = 10.0
PENDING_MAX = 64
DIAL_AGAIN_S = 0.3


def secret_of(run_id: str) -> bytes:
    """Returns a secret made from the job's name and its token. Without CKPTENGINE_TOKEN_FILE, from the name alone: then
    it only keeps jobs apart."""
    file = os.environ.get("CKPTENGINE_TOKEN_FILE")
    secret = Path(file).read_bytes().strip() if file else b""
    return hashlib.sha256(b"ckptrun\0" + run_id.encode() + b"\0" + secret).digest()


class Link:
    """One connection. Calls `on_open()` once both ends have proven that they have the secret, and `on_message(message)`
    for each message after that. Calls `on_lost(why)` once: when the other end closes, breaks the rules, or is silent
    for `timeout_s`."""

    def __init__(self, loop: Loop, connection: socket.socket, secret: bytes, timeout_s: float, *, dialed: bool) -> None:
        self.on_open: Callable[[], None] = lambda: None
        self.on_message: Callable[[Message], None] = lambda message: None
        self.on_lost: Callable[[str], None] = lambda why: None
        self.farewell: Message = {}  # sent before the link is given up because the other end was silent
        self.is_open = False
        self._loop, self._socket, self._secret, self._timeout_s = loop, connection, secret, timeout_s
        self._in, self._out = b"", b""
        self._closed = False
        self._nonce = secrets.token_hex(16)
        self._greet = self._answer_nonce if dialed else self._check_client
        self._heard_s = self._ticked_s = time.monotonic()
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(connection, self._ready)
        loop.after(PROOF_WAIT_S, self._proof_is_due)
        if not dialed:
            self._put({"nonce": self._nonce})

    def send(self, message: Message) -> None:
        if self.is_open:
            self._put(message)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._closed else len(self._out)

    def close(self) -> None:
        """Closes the connection, and does not call on_lost()."""
        if not self._closed:
            self._closed, self.is_open = True, False
            self._loop.forget(self._socket)
            self._socket.close()

    # ---- bytes ----

    def _put(self, message: Message) -> None:
        if self._closed:
            return
        self._out += json.dumps(message).encode() + b"\n"
        if len(self._out) > WAITING_BYTES_MAX:
            self._lose("does not read what is sent to it")
        else:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._lose(f"is gone: {error.strerror}")
            return
        self._loop.watch(self._socket, self._ready, write=bool(self._out))

    def _ready(self) -> None:
        if self._out:
            self._flush()
        if self._closed:
            return
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(f"is gone: {error.strerror}")
            return
        if not data:
            self._lose("has ended")
            return
        self._heard_s = time.monotonic()
        self._in += data
        while b"\n" in self._in and not self._closed:
            line, self._in = self._in.split(b"\n", 1)
            self._take(line)
        if len(self._in) > (LINE_BYTES_MAX if self.is_open else GREETING_BYTES_MAX):
            self._lose("sent a message that is too long")

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError
            if not self.is_open:
                self._greet(message)
                return
        except (ValueError, KeyError):
            self._lose("sent something that is not a message of ckptrun")
            return
        if message:  # an empty one only says that the other end lives
            self.on_message(message)

    def _lose(self, why: str) -> None:
        if not self._closed:
            self.close()
            self.on_lost(why)

    # ---- the proof: each end sends a nonce, and a code over both ----

    def _proof(self, who: str, server_nonce: str, client_nonce: str) -> str:
        return hmac.new(self._secret, f"{who} {server_nonce} {client_nonce}".encode(), hashlib.sha256).hexdigest()

    def _answer_nonce(self, message: Message) -> None:
        server = str(message["nonce"])
        self._expected = self._proof("server", server, self._nonce)
        self._greet = self._check_server
        self._put({"nonce": self._nonce, "proof": self._proof("client", server, self._nonce)})

    def _check_client(self, message: Message) -> None:
        client = str(message["nonce"])
        if not hmac.compare_digest(str(message["proof"]), self._proof("client", self._nonce, client)):
            self._put({"refused": "secret"})
            self._lose("does not have this job's secret")
            return
        self._put({"proof": self._proof("server", self._nonce, client)})
        self._opened()

    def _check_server(self, message: Message) -> None:
        if "refused" in message or not hmac.compare_digest(str(message["proof"]), self._expected):
            self._lose(
                "belongs to another job: --rdzv-id (or CKPTENGINE_JOB) and CKPTENGINE_TOKEN_FILE must be the same"
            )
        else:
            self._opened()

    def _opened(self) -> None:
        self.is_open = True
        self._tick()
        self.on_open()

    def _proof_is_due(self) -> None:
        if not self.is_open:
            self._lose("does not prove that it belongs to the job")

    # ---- signs of life ----

    def _tick(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        if now - self._ticked_s > self._timeout_s / 2:  # this launcher was stopped itself: it hears nobody then
            self._heard_s = now
        self._ticked_s = now
        if now - self._heard_s > self._timeout_s:
            self._put(self.farewell)
            self._lose(f"has been silent for {self._timeout_s:g} s")
            return
        self._put({})
        self._loop.after(self._timeout_s / 5, self._tick)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at the address of `host`. If this machine does not have that address, at all of its
    addresses."""
    try:
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return _listen_at(family, address)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
        return _listen_at(socket.AF_INET, ("", port))
    except OSError as error:
        raise OSError(error.errno, f"cannot listen at {host}:{port}: {error.strerror}") from None


def _listen_at(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Listener:
    """Accepts connections of launchers, and calls `on_link(link)` for each. The secret is proven only after that."""

    def __init__(
        self, loop: Loop, listener: socket.socket, secret: bytes, timeout_s: float, on_link: Callable[[Link], None]
    ) -> None:
        self._loop, self._listener, self._secret, self._timeout_s = loop, listener, secret, timeout_s
        self._on_link = on_link
        self._links: list[Link] = []
        loop.watch(listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        self._links = [link for link in self._links if not link.is_open and not link._closed]
        if len(self._links) >= PENDING_MAX:
            connection.close()
            return
        link = Link(self._loop, connection, self._secret, self._timeout_s, dialed=False)
        self._links.append(link)
        self._on_link(link)

    def close(self) -> None:
        self._loop.forget(self._listener)
        self._listener.close()


def dial(
    loop: Loop, host: str, port: int, secret: bytes, timeout_s: float, until_s: float,
    on_link: Callable[[Link], None], on_failure: Callable[[str], None],
) -> None:  # fmt: skip
    """Connects, and then calls `on_link(link)`. Tries again until time.monotonic() is `until_s`, and then calls
    `on_failure(why)`."""
    try:
        connection = socket.create_connection((host, port), timeout=1.0)  # no rank runs yet that would wait
    except OSError as error:
        if time.monotonic() > until_s:
            on_failure(str(error.strerror or error))
            return
        loop.after(DIAL_AGAIN_S, lambda: dial(loop, host, port, secret, timeout_s, until_s, on_link, on_failure))
        return
    on_link(Link(loop, connection, secret, timeout_s, dialed=True))
