"""A rank in pure Python: `fakegpu.connect(...)`, unique ids, communicators over numpy arrays.

One connection, one receiver thread. The receiver only reads: it fills output arrays and wakes who waits. The thread
that called an operation sends its rounds, so that neither side can block the other. Payloads always go through the
socket. Used as a library and for fuzzing; programs under ./fgpu use libnccl.so.2 instead. Layer 5.
"""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable

from fakegpu import endpoint
from fakegpu._core import wire
from fakegpu.errors import (
    CoordinatorError,
    NoCoordinatorError,
    ProtocolError,
    Status,
    StatusError,
    UsageError,
    error_for,
)
from fakegpu.framesocket import FrameSocket
from fakegpu.member import Communicator
from fakegpu.membership import world_id
from fakegpu.settings import Settings
from fakegpu.task import Task

_CONNECT_S = 1.0
_REPLY_S = 10.0  # of HELLO and AUTH


def connect(
    address: str | None = None,
    transport: str | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    timeout_ms: int | None = None,
    session: str | None = None,
    token: str | None = None,
    tls_ca: str | None = None,
) -> Client:
    """A rank's connection to a coordinator; what is not given comes from FAKEGPU_ and the launcher's variables."""
    settings = Settings.from_env()
    where = address or str(settings.address())
    known = settings.ranks if rank is None else None
    hello = {
        "role": wire.ROLE_RANK,
        "timeout_ms": settings.timeout_ms if timeout_ms is None else timeout_ms,
        "rank": known.rank if known else rank,
        "world_size": world_size if world_size is not None else known.world_size if known else -1,
        "local_rank": known.local_rank if known else -1,
        "node": known.node if known else -1,
        "generation": settings.ranks.generation,
        "session": settings.session if session is None else session,
    }
    return Client(where, transport, hello, settings.secret() if token is None else token, tls_ca or settings.tls_ca)


_open: weakref.WeakSet[Client] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: its copies of sockets would hide the parent's death from the coordinator."""
    for client in list(_open):
        client._sock.close()


os.register_at_fork(after_in_child=_leave_to_parent)


class Client:
    """One process's connection; see the module's text. A context manager: leaving it says BYE."""

    def __init__(self, address: str, transport: str | None, hello: dict, token: str = "", tls_ca: str | None = None) -> None:
        self.timeout_ms: int = hello["timeout_ms"]
        self.rank, self.world_size, self.session = hello["rank"], hello["world_size"], hello.get("session", "")
        self._sock = endpoint.connect(address, transport, min(_CONNECT_S, self.timeout_ms / 1000), tls_ca)
        self._wire = FrameSocket(self._sock)
        _open.add(self)
        self._changed = threading.Condition()  # guards everything below
        self._requests = itertools.count(1)
        self._replies: dict[int, tuple | None] = {}
        self._communicators: dict[int, Communicator] = {}
        self._lost: tuple[int, str] | None = None
        self._closed = False
        self._groups = threading.local()
        try:
            self.welcome = self._greet(hello, token)
        except BaseException:
            self._sock.close()
            raise
        self._receiver = threading.Thread(target=self._receive, name="fakegpu-client", daemon=True)
        self._receiver.start()

    # ---- life ----

    def _greet(self, hello: dict, token: str):
        self._sock.settimeout(_REPLY_S)
        program = os.path.basename(sys.argv[0] or "python")[: wire.NAME_BYTES // 4]
        host = socket.gethostname()[: wire.NAME_BYTES // 4]
        try:
            self._wire.send([wire.encode_hello(pid=os.getpid(), host=host, program=program, **hello)])
            welcome = self._expect(wire.T_WELCOME)
            if welcome.version_major != wire.WIRE_VERSION_MAJOR:
                found = f"{welcome.version_major}.{welcome.version_minor}"
                raise error_for(Status.VERSION, f"the coordinator speaks protocol version {found}")
            if welcome.features & wire.FEATURE_TOKEN:
                digest = hmac.digest(token.encode(), welcome.challenge, "sha256")
                self._wire.send([wire.encode_auth(digest=digest, request=next(self._requests))])
                self._expect(wire.T_ACK)
        except TimeoutError:
            raise NoCoordinatorError(f"no answer to HELLO within {_REPLY_S:.0f} s") from None
        except (ConnectionError, wire.WireError) as error:
            if isinstance(error, StatusError):
                raise
            raise NoCoordinatorError(f"the peer is no fakegpu coordinator: {error}") from None
        self._sock.settimeout(None)
        return welcome

    def _expect(self, kind: int):
        frame = self._wire.read_header()
        body = self._wire.read_body(frame)
        if frame.type == wire.T_ERROR:
            raise error_for(body.status, body.text)
        if frame.type != kind:
            raise ProtocolError(f"found {wire.FRAME_NAMES[frame.type]}, expected {wire.FRAME_NAMES[kind]}")
        return body

    def close(self) -> None:
        """Say BYE and end; closing twice does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError):
            self._wire.send([wire.encode_bye()])
            self._sock.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._receiver:
            self._receiver.join()
        self._sock.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ---- communicators ----

    def unique_id(self) -> bytes:
        """An id that one communicator can be made from; hand it to the other ranks."""
        return self.request(wire.encode_unique_id).bytes

    def init(self, nranks: int, rank: int, unique_id: bytes, name: str = "") -> Communicator:
        """Become a rank of a communicator; returns when all ranks have come."""
        reply = self.request(
            wire.encode_comm_init, unique_id=unique_id, nranks=nranks, rank=rank, timeout_ms=self.timeout_ms, name=name
        )
        return self.made(reply)

    def world(self, name: str = "world") -> Communicator:
        """The communicator of all ranks of this session; needs rank and world_size, but no id to be handed round."""
        if self.rank < 0 or self.world_size < 1:
            raise UsageError(
                "world: rank or world size not known, expected them in connect or the launcher's variables"
            )
        return self.init(self.world_size, self.rank, world_id(self.session), name)

    def made(self, ready) -> Communicator | None:
        """The communicator of a COMM_READY; None for a split without colour."""
        return self._communicators[ready.member] if ready.nranks else None

    def forget(self, comm: Communicator) -> None:
        """A communicator was destroyed."""
        with self._changed:
            self._communicators.pop(comm.handle, None)

    def status(self) -> str:
        """The coordinator's state as JSON."""
        return self.request(wire.encode_status)

    def request(self, encode: Callable, **fields):
        """Send a request and wait for its answer's body; an ERROR is raised."""
        number = next(self._requests)
        with self._changed:
            self._replies[number] = None
        self.send([encode(request=number, **fields)])
        with self._changed:
            while self._replies[number] is None and self._lost is None:
                self._changed.wait()
            reply = self._replies.pop(number)
        if reply is None:
            raise error_for(*self._lost)
        kind, body = reply
        if kind == wire.T_ERROR:
            raise error_for(body.status, body.text)
        return body

    # ---- operations ----

    @contextlib.contextmanager
    def group(self):
        """Operations of this thread, on any communicator of the client, are submitted together at the end."""
        depth = getattr(self._groups, "depth", 0)
        if not depth:
            self._groups.tasks = []
        self._groups.depth = depth + 1
        try:
            yield self
        finally:
            self._groups.depth = depth
        if not depth:
            tasks, self._groups.tasks = self._groups.tasks, []
            self._run(tasks)

    def add(self, task: Task) -> None:
        """Run a task, or queue it in this thread's open group."""
        if getattr(self._groups, "depth", 0):
            self._groups.tasks.append(task)
        else:
            self._run([task])

    def _run(self, tasks: list[Task]) -> None:
        """Submit tasks, one frame per communicator, and move their payloads until all have ended."""
        jobs: dict[Communicator, list[Task]] = {}
        for task in tasks:
            jobs.setdefault(task.comm, []).append(task)
        with self._changed:
            for comm, group in jobs.items():
                comm.tasks.update((task.op.opid, task) for task in group)
        for comm, group in jobs.items():
            for i in range(0, len(group), wire.MAX_OPS_PER_FRAME):
                ops = [task.op for task in group[i : i + wire.MAX_OPS_PER_FRAME]]
                now = time.monotonic_ns()
                self.send([wire.encode_submit(ops=ops, timeout_ms=self.timeout_ms, issue_ns=now, member=comm.handle)])
        try:
            self._drive(tasks)
        finally:
            with self._changed:
                for task in tasks:
                    task.comm.tasks.pop(task.op.opid, None)

    def _drive(self, tasks: list[Task]) -> None:
        """Send what the windows allow and wait for the rest; collectives of a communicator go one after the other."""
        window = self.welcome.window
        left = tasks
        while left:
            busy: set[Communicator] = set()
            for task in left:
                collective = task.op.kind <= wire.SCATTER or task.op.kind == wire.BARRIER
                if collective and task.comm in busy:
                    continue
                while task.may_send(window):
                    self.send(task.next_frame(task.comm.handle))
                if collective and not task.ended:
                    busy.add(task.comm)
            left = self._retire(left)
            with self._changed:
                self._check(left)
                if left and not any(self._can_go_on(task, window, busy) for task in left):
                    self._changed.wait()

    @staticmethod
    def _can_go_on(task: Task, window: int, busy: set) -> bool:
        return task.ended or (task.may_send(window) and task.comm not in busy)

    def _retire(self, tasks: list[Task]) -> list[Task]:
        """Report what has ended; the tasks that have not."""
        done: dict[Communicator, list] = {}
        left = []
        for task in tasks:
            if not task.ended:
                left.append(task)
            elif not task.eager:
                done.setdefault(task.comm, []).append(task.done())
        for comm, records in done.items():
            self.send([wire.encode_done(records, member=comm.handle)])
        return left

    def _check(self, tasks: list[Task]) -> None:
        for task in tasks:
            error = task.error or task.comm.error or self._lost
            if error is not None:
                raise error_for(*error)

    # ---- the wire ----

    def send(self, parts: list) -> None:
        """One whole frame."""
        try:
            self._wire.send(parts)
        except OSError as error:
            with self._changed:
                text = f"the connection to the coordinator broke: {error.strerror or error}"
                lost = self._lost or (Status.COORDINATOR_LOST, text)
            raise error_for(*lost) from None

    def _receive(self) -> None:
        """The receiver thread."""
        text = "the connection to the coordinator ended"
        try:
            while True:
                frame = self._wire.read_header()
                if frame.type == wire.T_DATA:
                    self._read_data(frame)
                else:
                    self._dispatch(frame, self._wire.read_body(frame))
        except CoordinatorError as error:
            text = error.text
        except (OSError, wire.WireError, StatusError) as error:
            text = f"the connection to the coordinator broke: {error}"
        with self._changed:
            self._lost = (Status.COORDINATOR_LOST, "the client was closed" if self._closed else text)
            self._changed.notify_all()

    def _dispatch(self, frame, body) -> None:
        with self._changed:
            comm = self._communicators.get(frame.member)
            if frame.request:
                if frame.type == wire.T_COMM_READY and body.nranks:
                    self._communicators[body.member] = Communicator(self, body)
                if frame.request in self._replies:
                    self._replies[frame.request] = (frame.type, body)
            elif frame.type == wire.T_GO and comm is not None:
                now = time.monotonic_ns()
                for go in body:
                    if go.flags & wire.OP_CRASH:
                        os.kill(os.getpid(), signal.SIGKILL)
                    if task := comm.tasks.get(go.opid):
                        task.obey(go.flags, now)
            elif frame.type == wire.T_ERROR:
                self._take_error(comm, frame, body)
            self._changed.notify_all()

    def _take_error(self, comm: Communicator | None, frame, body) -> None:
        if not frame.member:
            self._lost = (body.status, body.text)  # the coordinator gives this connection up
        elif comm is not None and body.opid:
            if task := comm.tasks.get(body.opid):
                task.error = (body.status, body.text)
        elif comm is not None and comm.error is None:
            comm.error = (body.status, body.text)

    def _read_data(self, frame) -> None:
        """A round of results, straight into the output arrays."""
        opid, number = self._wire.read_data_head()
        size = frame.body_bytes - wire.Data.BYTES
        with self._changed:
            comm = self._communicators.get(frame.member)
            task = comm.tasks.get(opid) if comm is not None else None
        views = task.slices(task.outputs, number) if task is not None and size else []
        if task is None:
            self._wire.read_into(memoryview(bytearray(size)))
            return
        if sum(map(len, views)) != size or number != task.received:
            expected = f"round {task.received} of {sum(map(len, views))} bytes"
            raise ProtocolError(f"DATA: operation {opid}: found round {number} of {size} bytes, expected {expected}")
        for view in views:
            self._wire.read_into(view)
        with self._changed:
            task.moved += size
            task.received += 1
            self._changed.notify_all()
