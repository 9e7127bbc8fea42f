"""Who is connected: a process, what it holds, what is accepted from it, and the hooks that are told.

Plain records of the registry (coordinator.py); the sockets behind them belong to the server. Layer 4.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import attrs

from fakegpu._core import wire
from fakegpu.communicator import Communicator
from fakegpu.errors import Status

log = logging.getLogger("fakegpu.coordinator")


@attrs.frozen
class Limits:
    """What one coordinator accepts."""

    connections: int = 4096
    ranks: int = wire.MAX_RANKS
    operation_bytes: int = 0  # payload of one rank in one operation; 0 = any
    buffered_bytes: int = 4 << 30  # payload held for all operations together
    output_bytes: int = 256 << 20  # control frames queued for one process that does not read


@attrs.frozen
class Hooks:
    """Own policies, called in the event loop's thread; a StatusError from the first two refuses.

    What another hook raises is logged and ends nothing.
    """

    on_join: Callable | None = None  # (Process): a rank said hello
    on_operation: Callable | None = None  # (Communicator, rank, [Op]): a rank submitted; refusing fails them all
    on_communicator: Callable | None = None  # (Communicator): made
    on_finished: Callable | None = None  # (OperationEvent)
    on_failure: Callable | None = None  # (Communicator, Failure)

    def told(self, name: str, *what: object) -> None:
        """Call a hook that only listens."""
        hook = getattr(self, name)
        if hook is not None:
            try:
                hook(*what)
            except Exception:
                log.exception("hook %s", name)


@attrs.define(eq=False)
class Member:
    """How a communicator's rank is reached."""

    process: Process
    handle: int
    device: int


def boot_identity() -> str:
    """This host as ranks name it in HELLO: boot id and process namespace, in which /proc/PID means the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return "unknown"  # equals nobody's


class Process:
    """One connected process: what it said in HELLO and the members it holds."""

    def __init__(self, send: Callable, send_data: Callable, peer: str = "", privileged: bool = True) -> None:
        self.send = send  # (frame: bytes, fd: int | None = None)
        self.send_data = send_data  # ([buffers], owner): owner.release() when all bytes have left
        self.peer, self.privileged = peer, privileged
        self.state = "new"  # new, challenged, ready, ended
        self.role = self.pid = self.timeout_ns = 0
        self.rank = self.world_size = self.node = self.generation = -1
        self.host = self.boot_id = self.session = self.program = ""
        self.challenge = b""
        self.members: dict[int, tuple[Communicator, int]] = {}
        self.former: set[int] = set()  # handles it had: frames on their way are ignored
        self.rank_of_device: dict[int, int] = {}

    def introduce(self, hello, timeout_ns: int) -> None:
        """Take over what HELLO says."""
        self.pid, self.role, self.rank = hello.pid, hello.role, hello.rank
        self.world_size, self.node, self.generation = hello.world_size, hello.node, hello.generation
        self.host, self.boot_id, self.session = hello.host, hello.boot_id, hello.session
        self.program, self.timeout_ns = hello.program, timeout_ns

    @property
    def where(self) -> str:
        """ "pid 123 on host"."""
        return f"pid {self.pid} on {self.host or self.peer or 'an unknown host'}"


def reply(process: Process, request: int, status: int, text: str = "", member: int = 0) -> None:
    """Answer a request: ACK, or ERROR with the reason."""
    if status == Status.OK:
        process.send(wire.encode_ack(request=request, member=member))
    else:
        process.send(wire.encode_error(status=status, text=text, request=request, member=member))
