"""TLS around the coordinator's TCP connections: contexts from files, and a socket with the calls that we make.

The certificates are the user's. The event loop and the Python client use TlsSocket where they would use a socket;
libnccl.so.2 does not speak TLS and is refused by name. One lock per connection: OpenSSL allows one thread at a time,
while the client reads and writes in two. Layer 5.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from fakegpu.errors import SettingsError

HANDSHAKE = 0x16  # first byte of every TLS connection
_RECORD_BYTES = 16 << 10
NEEDED = (
    "this coordinator takes TLS connections only: the Python client and the tools speak it (FAKEGPU_TLS_CA), "
    "libnccl.so.2 does not; give its ranks a coordinator without --tls-cert, in a tunnel of your own"
)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The coordinator's side; SettingsError when the files do not fit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"--tls-cert {certificate}, --tls-key {key or certificate}: {error}",
            "expected a certificate (chain) and its private key, both PEM",
        ) from None
    return context


def client_context(authority: str) -> ssl.SSLContext:
    """A client's side: the coordinator's certificate must come from `authority` (PEM) and name its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"FAKEGPU_TLS_CA={authority}: {error}", "expected certificates, PEM") from None
    return context


class TlsSocket:
    """A TLS connection with the calls of a socket; without a time-out of 0 they wait, outside of the lock."""

    def __init__(self, sock: ssl.SSLSocket, timeout: float | None = 0.0) -> None:
        self._sock, self._timeout, self._lock = sock, timeout, threading.Lock()
        sock.setblocking(False)
        self.family = sock.family

    @classmethod
    def accept(cls, sock: socket.socket, context: ssl.SSLContext) -> TlsSocket:
        """The coordinator's end; the handshake happens in the first reads."""
        return cls(context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False))

    @classmethod
    def connect(cls, sock: socket.socket, context: ssl.SSLContext, host: str, timeout: float) -> TlsSocket:
        """A client's end, shaken hands; OSError when the coordinator is not who it should be."""
        sock.settimeout(timeout)
        return cls(context.wrap_socket(sock, server_hostname=host), None)

    # ---- input ----

    def recv_into(self, view: Any) -> int:
        """As a socket's; 0 at the end of the stream."""
        return self._do(lambda: self._sock.recv_into(view))

    def recvmsg_into(self, views: list) -> tuple[int]:
        """Into the first buffer only: the next call goes on."""
        return (self.recv_into(views[0]),)

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        return self._do(lambda: self._sock.recv(size))

    def pending(self) -> bool:
        """Whether decrypted bytes are there that no selector will announce."""
        with self._lock:
            return self._sock.pending() > 0

    # ---- output ----

    def send(self, data: Any) -> int:
        """One record at most; what was refused once has to be offered again first."""
        part = memoryview(data)[:_RECORD_BYTES]
        return self._do(lambda: self._sock.send(part)) if len(part) else 0

    def sendmsg(self, parts: list, _ancillary: object = ()) -> int:
        """Of the first part that holds something, one record at most."""
        return self.send(next((part for part in parts if len(part)), b""))

    def sendall(self, data: bytes) -> None:
        """Everything."""
        view = memoryview(data)
        while len(view):
            view = view[self.send(view) :]

    def _do(self, call: Callable) -> Any:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            with self._lock:
                try:
                    return call()
                except ssl.SSLZeroReturnError:
                    return 0
                except ssl.SSLWantReadError:
                    mask = select.POLLIN
                except ssl.SSLWantWriteError:
                    mask = select.POLLOUT
            if self._timeout == 0.0:
                raise BlockingIOError
            self._wait(mask, deadline)

    def _wait(self, mask: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._sock.fileno(), mask)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if not poll.poll(None if left is None else left * 1000):
            raise TimeoutError("timed out")

    # ---- the rest ----

    def settimeout(self, timeout: float | None) -> None:
        """Seconds that a call may wait; None: for ever."""
        self._timeout = timeout

    def fileno(self) -> int:
        """The descriptor."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        """As a socket's; of TCP, not of TLS."""
        with contextlib.suppress(ValueError):
            socket.socket.shutdown(self._sock, how)

    def close(self) -> None:
        """As a socket's."""
        self._sock.close()

    def __enter__(self) -> TlsSocket:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
