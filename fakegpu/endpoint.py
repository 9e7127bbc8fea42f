"""Sockets at an address: the coordinator's listener and a rank's connection, with errors that name what is wrong.

A Unix socket is made 0600; a socket file whose coordinator is dead is replaced, a live one refused. Used by
server.py and client.py. Layer 5.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
import struct
import tempfile
import time

from fakegpu.errors import FakeGPUError, NoCoordinatorError, SettingsError
from fakegpu.settings import SOCKET_PATH_BYTES, Address, parse_address
from fakegpu.tls import TlsSocket, client_context

_BUFFER_BYTES = 1 << 20
_BACKLOG = 1024
_RETRY_S = 0.05
_HANDSHAKE_S = 10.0


def listen(address: Address) -> tuple[socket.socket, Address]:
    """A listening, non-blocking socket, and its address with the port that was chosen for port 0."""
    try:
        sock = _listen_unix(address) if address.transport == "unix" else _listen_tcp(address)
    except OSError as error:
        raise SettingsError(f"cannot listen on {address}: {error.strerror or error}", _listen_hint(error)) from None
    sock.setblocking(False)
    if address.transport == "unix":
        return sock, address
    return sock, Address("tcp", host=address.host, port=sock.getsockname()[1])


def _listen_hint(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another coordinator or program uses this address: end it or choose another one"
    return "choose an address of this host"


def _listen_unix(address: Address) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        try:
            _bind_private(sock, address.path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not _remove_stale(address.path):
                raise
            _bind_private(sock, address.path)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_private(sock: socket.socket, path: str) -> None:
    sock.bind(path)
    os.chmod(path, 0o600)


def _remove_stale(path: str) -> bool:
    """Remove a socket file that nobody listens on any more; False when it is something else or alive."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return True
        except OSError:
            return False
    return False


def _listen_tcp(address: Address) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        enlarge_buffers(sock)  # before listen: accepted sockets inherit it
        sock.bind(where)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def enlarge_buffers(sock: socket.socket) -> None:
    """Room for whole rounds in the kernel, as far as it allows."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)


def tune_tcp(sock: socket.socket) -> None:
    """Small frames leave at once; a host that vanished is noticed within half a minute."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def connect(
    address: str | Address, transport: str | None = None, timeout: float = 0.0, authority: str | None = None
) -> socket.socket | TlsSocket:
    """A connected, blocking socket; NoCoordinatorError when nobody answers within `timeout` seconds.

    authority: over TLS, with a certificate that these certificates vouch for.
    """
    if not isinstance(address, Address):
        address = parse_address(address, transport)
    deadline = time.monotonic() + timeout
    while True:
        try:
            sock = _connect_once(address, max(deadline - time.monotonic(), 1.0))
            return _secured(sock, address, authority) if authority else sock
        except OSError as error:
            waits = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            if not waits or time.monotonic() + _RETRY_S > deadline:
                raise NoCoordinatorError(f"no coordinator at {address}: {error.strerror or error}") from None
        time.sleep(_RETRY_S)


def _secured(sock: socket.socket, address: Address, authority: str) -> TlsSocket:
    if address.transport != "tcp":
        sock.close()
        raise SettingsError(f"FAKEGPU_TLS_CA={authority}: {address} is a Unix socket", "TLS needs a host:port")
    try:
        return TlsSocket.connect(sock, client_context(authority), address.host, _HANDSHAKE_S)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            why = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error
            raise NoCoordinatorError(f"no TLS with {address}: {why}", "see FAKEGPU_TLS_CA and --tls-cert") from None
        raise


def _connect_once(address: Address, timeout: float) -> socket.socket:
    if address.transport == "unix":
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            enlarge_buffers(sock)
            sock.settimeout(timeout)
            sock.connect(address.path)
        except BaseException:
            sock.close()
            raise
    else:
        sock = socket.create_connection((address.host, address.port), timeout)
        enlarge_buffers(sock)
        tune_tcp(sock)
    sock.settimeout(None)
    return sock


def peer_credentials(sock: socket.socket) -> tuple[int, int]:
    """(pid, uid) of a Unix socket's peer; pid 0: in a namespace that cannot be seen from here."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return pid, uid


def beyond_loopback(listener: socket.socket) -> bool:
    """Whether other hosts may reach a TCP listener."""
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def peer_is_local(sock: socket.socket) -> bool:
    """Whether a connection comes from this host."""
    if sock.family == socket.AF_UNIX:
        return True
    try:
        peer, own = sock.getpeername()[0], sock.getsockname()[0]
    except OSError:
        return False
    return peer == own or peer.startswith("127.") or peer in ("::1", "::ffff:127.0.0.1")


def remove(address: Address) -> None:
    """Remove a listener's socket file."""
    if address.transport == "unix":
        try:
            os.unlink(address.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FakeGPUError(f"cannot remove {address}: {error.strerror}") from None


def private_folder(socket: str) -> str:
    """A new folder (0700) whose path leaves room for a socket's name; TMPDIR may lie too deep for one."""
    folder = tempfile.mkdtemp(prefix="fakegpu-")
    if len(os.fsencode(folder)) + 1 + len(socket) > SOCKET_PATH_BYTES:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="fakegpu-", dir="/tmp")
    return folder
