"""The coordinator's one event loop: accepts, reads, writes, watches peers' lives and deadlines.

Everything in registry and connections runs in the thread that calls `run`; other threads only `post` work to it.
Reductions of large rounds run in a small thread pool and come back as posts. Used by server.py only. Layer 5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fakegpu import endpoint, tls
from fakegpu.connection import Connection
from fakegpu.coordinator import Registry
from fakegpu.errors import Status, error_for

log = logging.getLogger("fakegpu.coordinator")
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_MAX_WAIT_S = 3600.0
_LINGER_NS = 1_000_000_000
_PAUSE_S = 0.05  # after accept failed for want of descriptors


class EventLoop:
    """See the module's text."""

    def __init__(self, listener: socket.socket, hello_timeout_s: float, secure: ssl.SSLContext | None = None) -> None:
        self._secure = secure
        self.registry: Registry | None = None  # set before run
        self.listener = listener
        self._hello_ns = int(hello_timeout_s * 1e9)
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.RLock()  # the descriptor goes when the loop ends; re-entered by signal handlers
        self._posted: deque[Callable] = deque()
        self._connections: set[Connection] = set()
        self._silent: deque[Connection] = deque()  # in order of arrival: may not have said HELLO yet
        self._lost: list[Connection] = []  # or refused: to be looked after at the end of the turn
        self._lingering: deque[tuple[int, Connection]] = deque()  # refused: closed at that time
        self._stopping = False
        self._pool: ThreadPoolExecutor | None = None
        self.thread: threading.Thread | None = None  # the one that runs it
        self._selector.register(listener, _READ, self._accept)
        self._selector.register(self._wake, _READ, self._woken)

    # ---- from any thread ----

    def post(self, work: Callable) -> None:
        """Run `work` in the loop's thread, soon."""
        self._posted.append(work)
        self._poke()

    def stop(self) -> None:
        """End `run`; also from a signal handler, also when it has ended."""
        self._stopping = True
        self._poke()

    def _poke(self) -> None:
        with self._wake_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def in_thread(self, work: Callable, then: Callable) -> None:
        """Run `work` in the pool, then `then` in the loop."""
        if self._pool is None:
            workers = max(1, min(4, (os.cpu_count() or 1) // 2))
            self._pool = ThreadPoolExecutor(workers, "fakegpu-reduce")
        self._pool.submit(self._work, work, then)

    def _work(self, work: Callable, then: Callable) -> None:
        try:
            work()
        except Exception:  # the operation's time-out tells its ranks
            log.exception("internal error in a reduction")
        else:
            self.post(then)

    # ---- the loop ----

    def run(self) -> None:
        """Serve until `stop` or a SHUTDOWN frame; then close everything."""
        self.thread = threading.current_thread()
        try:
            while not self._stopping and not self.registry.stopping:
                for key, events in self._selector.select(self._wait_s()):
                    key.data(events)
                self._bury()
                now = time.monotonic_ns()
                if self.registry.deadline <= now:
                    self.registry.expire(now)
                    self._bury()
                if self._silent or self._lingering:
                    self._check_silent(now)
        finally:
            self._close()

    def _wait_s(self) -> float:
        due = self.registry.deadline
        if self._silent:
            due = min(due, self._silent[0].opened_ns + self._hello_ns)
        if self._lingering:
            due = min(due, self._lingering[0][0])
        return min(max((due - time.monotonic_ns()) / 1e9, 0.0), _MAX_WAIT_S)

    def _woken(self, _events: int) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            self._posted.popleft()()

    def _accept(self, _events: int) -> None:
        try:
            sock, where = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            log.warning("cannot accept a connection: %s", error.strerror or error)
            time.sleep(_PAUSE_S)
            return
        sock.setblocking(False)
        local = endpoint.peer_is_local(sock)
        pid = uid = 0
        if sock.family == socket.AF_UNIX:
            pid, uid = endpoint.peer_credentials(sock)
            peer = f"pid {pid}"
        else:
            endpoint.tune_tcp(sock)
            peer = f"{where[0]}:{where[1]}"
        connection = Connection(sock, self.registry, peer, local, self._changed)
        self._connections.add(connection)
        self._silent.append(connection)
        self._selector.register(sock, _READ, lambda events: self._ready(connection, events))
        if sock.family == socket.AF_UNIX and uid not in (os.getuid(), 0):
            connection.refuse(error_for(Status.AUTH, f"user {uid} may not use the coordinator of user {os.getuid()}"))
        elif len(self._connections) > self.registry.limits.connections:
            limit = self.registry.limits.connections
            connection.refuse(error_for(Status.LIMIT, f"the coordinator has {limit} connections, its limit"))
        elif pid not in (0, os.getpid()):
            self._watch(connection, pid)

    def _watch(self, connection: Connection, pid: int) -> None:
        """A peer's death shows in its pidfd even while a forked child of it holds the socket."""
        try:
            connection.pidfd = os.pidfd_open(pid)
        except OSError:
            return  # gone already (the socket shows it), or a kernel without pidfd
        self._selector.register(connection.pidfd, _READ, lambda _events: self._died(connection))

    def _died(self, connection: Connection) -> None:
        while not connection.lost and connection.readable():
            pass  # what it said before it died counts, BYE above all
        connection.fail("its process ended without BYE")

    def _greet_securely(self, connection: Connection) -> None:
        """TLS begins with a known byte; whoever begins otherwise is told, in the clear."""
        try:
            first = connection.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            connection.fail(f"its connection broke: {error.strerror or error}")
            return
        if first and first[0] != tls.HANDSHAKE:
            connection.refuse(error_for(Status.AUTH, tls.NEEDED))
        elif first:
            connection.sock = tls.TlsSocket.accept(connection.sock, self._secure)

    def _ready(self, connection: Connection, events: int) -> None:
        if self._secure is not None and type(connection.sock) is socket.socket and not connection.refused:
            self._greet_securely(connection)
        if events & _WRITE and not connection.lost:
            connection.writable()
            if not connection.blocked and not connection.lost:
                self._selector.modify(connection.sock, _READ, self._selector.get_key(connection.sock).data)
        if events & _READ and not connection.lost:
            connection.readable()
            while type(connection.sock) is tls.TlsSocket and not connection.lost and connection.sock.pending():
                connection.readable()
            if connection.process.state == "ended" and not connection.refused:
                connection.fail("ended")

    def _changed(self, connection: Connection) -> None:
        """A connection became blocked, refused or lost."""
        if connection.lost or connection.refused:
            self._lost.append(connection)
        elif connection in self._connections:
            self._selector.modify(connection.sock, _READ | _WRITE, self._selector.get_key(connection.sock).data)

    def _bury(self) -> None:
        """Close lost connections and tell the registry; that may lose more."""
        while self._lost:
            connection = self._lost.pop()
            if connection not in self._connections:
                continue
            process, why = connection.process, connection.refused or connection.lost
            if process.state == "new" or (connection.refused and process.state != "ended"):
                log.warning("connection from %s closed: %s", process.peer, why)
            if connection.lost:
                self._forget(connection)
            else:
                self._linger(connection)
            self.registry.gone(process, why, time.monotonic_ns())

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        if connection.pidfd >= 0:
            self._selector.unregister(connection.pidfd)
        connection.close()

    def _linger(self, connection: Connection) -> None:
        """Nothing more goes out; wait a moment for the peer to have read it and to close."""
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_WR)
        self._lingering.append((time.monotonic_ns() + _LINGER_NS, connection))

    def _check_silent(self, now: int) -> None:
        """Close those that never said HELLO, and the refused ones whose time is up."""
        while self._lingering and self._lingering[0][0] <= now:
            self._lingering.popleft()[1].fail("refused")
        while self._silent:
            connection = self._silent[0]
            if connection.process.state not in ("new", "challenged") or connection.lost or connection.refused:
                self._silent.popleft()
            elif connection.opened_ns + self._hello_ns <= now:
                self._silent.popleft()
                connection.fail(f"no HELLO within {self._hello_ns // 1_000_000_000} s")
            else:
                break
        self._bury()

    def _close(self) -> None:
        for connection in list(self._connections):
            self._selector.unregister(connection.sock)
            connection.close()
        self._connections.clear()
        self.listener.close()
        self._selector.close()
        if self._pool is not None:
            self._pool.shutdown()
        with self._wake_lock:
            os.close(self._wake)
            self._wake = -1


def raise_descriptor_limit() -> None:
    """As many connections as the system allows."""
    import resource  # noqa: PLC0415

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
