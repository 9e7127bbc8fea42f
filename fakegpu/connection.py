"""One connection of the coordinator: frames out of a byte stream, a queue of bytes into one. Never blocks.

Control frames are cut out of a small buffer. A DATA frame's payload goes straight from the socket to where the
registry wants it, and what is sent goes straight from where it lies; nothing is copied on the way. Reads and writes
are partial; the event loop in server.py calls `readable` and `writable`. Layer 5.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Callable

from fakegpu._core import wire
from fakegpu.coordinator import Registry
from fakegpu.errors import Status, StatusError, error_for
from fakegpu.peers import Process

log = logging.getLogger("fakegpu.coordinator")
_HEADER = wire.HEADER_BYTES
_DATA = wire.T_DATA
_DATA_HEAD = _HEADER + wire.Data.BYTES  # a DATA frame's part before its payload
_INPUT_BYTES = 64 << 10
_EARLY_BYTES = 4096  # before HELLO nobody gets memory for more
_SKIP_BYTES = 256 << 10
_MAX_PARTS = 64  # buffers of one sendmsg


class _Descriptor:
    """In the output queue: the next buffer travels with this file descriptor."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd


class Connection:
    """See the module's text. `lost` says why it has to be closed; the loop does that."""

    def __init__(self, sock: socket.socket, registry: Registry, peer: str, privileged: bool, notify: Callable) -> None:
        self.sock, self.registry = sock, registry
        self.process = Process(self.send, self.send_data, peer, privileged)
        self.lost = ""
        self.refused = ""  # why the peer was told to go; what it still sends is thrown away
        self.blocked = False  # there is output that the socket did not take
        self.pidfd = -1
        self.opened_ns = time.monotonic_ns()
        self._notify = notify  # (connection): it became blocked or lost outside of the loop's own call
        self._input = memoryview(bytearray(_INPUT_BYTES))
        self._start = self._end = 0
        self._rest: memoryview | None = None  # of a body that does not go through _input: still to come
        self._then: Callable | None = None  # what to do when it is complete
        self._output: deque = deque()  # memoryview, _Descriptor, or an owner to release
        self._queued = 0  # bytes in it
        self._pumping = False

    # ---- input ----

    def readable(self) -> bool:
        """Read once and act on the frames that are complete; whether anything came."""
        try:
            if self.refused:
                got = self.sock.recv_into(self._input)
            elif self._rest is not None:
                got = self._read_body()
            else:
                got = self.sock.recv_into(self._input[self._end :])
                self._end += got
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.fail(f"its connection broke: {error.strerror or error}")
            return False
        if not got:
            self.fail("its connection closed without BYE")
            return False
        if self._rest is None and not self.refused:
            self._parse()
        return True

    def _read_body(self) -> int:
        """Straight into its place, together with the head of the frame behind it."""
        rest = self._rest
        got = self.sock.recvmsg_into([rest, self._input[:_DATA_HEAD]])[0]
        if got < len(rest):
            self._rest = rest[got:]
        else:
            self._start, self._end = 0, got - len(rest)
            self._complete()
        return got

    def _complete(self) -> None:
        then, self._rest, self._then = self._then, None, None
        then()

    def _parse(self) -> None:
        """Act on the frames in the input buffer."""
        while self._rest is None and not self.lost and not self.refused and self._end - self._start >= _HEADER:
            try:
                frame = wire.decode_header(self._input[self._start : self._start + _HEADER])
                if self.process.state != "ready" and frame.body_bytes > _EARLY_BYTES:
                    raise wire.WireError(f"{wire.FRAME_NAMES[frame.type]} of {frame.body_bytes} bytes before HELLO")
                if not (self._begin_data(frame) if frame.type == _DATA else self._begin_control(frame)):
                    break
            except wire.WireError as error:
                self.refuse(error_for(Status.PROTOCOL, str(error)))
            except StatusError as error:
                self.refuse(error)
        if self._rest is None and self._start:
            left = self._end - self._start
            if left:
                self._input[:left] = bytes(self._input[self._start : self._end])
            self._start, self._end = 0, left

    def _begin_control(self, frame) -> bool:
        """Act on a control frame if it is complete; False: more bytes have to come first."""
        size = frame.body_bytes
        at = self._start + _HEADER
        if self._end - at >= size:
            self._start = at + size
            self._act(frame, self._input[at : at + size])
            return True
        if size > _INPUT_BYTES - _HEADER:
            body = memoryview(bytearray(size))
            self._fill(at, body, lambda: self._act(frame, body))
            return True
        return False

    def _begin_data(self, frame) -> bool:
        """Find a DATA frame's payload its place; False: the head is not complete."""
        if self._end - self._start < _DATA_HEAD:
            return False
        size = frame.body_bytes - wire.Data.BYTES
        at = self._start + _DATA_HEAD
        if size < 0 or self.process.state != "ready":
            raise wire.WireError("DATA: cut off" if size < 0 else "DATA: expected HELLO first")
        opid, number = wire.decode_data_head(self._input[self._start + _HEADER : at])
        slot = self.registry.reserve(self.process, frame.member, opid, number, size)
        if slot is None:
            self._skip(at, size)
        else:
            relay = self.registry.relay
            self._fill(at, slot.view, lambda: relay.arrived(slot, time.monotonic_ns()))
        return True

    def _fill(self, at: int, body: memoryview, then: Callable) -> None:
        """Take what is in the input buffer from `at` on; the rest comes straight from the socket."""
        have = min(self._end - at, len(body))
        body[:have] = self._input[at : at + have]
        self._start = at + have
        if have == len(body):
            then()
        else:
            self._rest, self._then = body[have:], then

    def _skip(self, at: int, size: int) -> None:
        """Read a payload that nobody wants."""
        part = min(size, _SKIP_BYTES)
        more = (lambda: self._skip(self._start, size - part)) if size > part else (lambda: None)
        self._fill(at, memoryview(bytearray(part)), more)

    def _act(self, frame, body) -> None:
        try:
            self.registry.handle(self.process, frame, wire.decode_body(frame, body), time.monotonic_ns())
        except StatusError as error:
            self.refuse(error, frame.request)
        except wire.WireError:
            raise
        except Exception as error:  # a defect must end one connection, not everybody's
            log.exception("internal error in %s", wire.FRAME_NAMES[frame.type])
            self.refuse(error_for(Status.INTERNAL, f"{wire.FRAME_NAMES[frame.type]}: {error!r}"), frame.request)

    # ---- output ----

    def send(self, frame: bytes, fd: int | None = None) -> None:
        """Send a frame, or queue what the socket does not take."""
        if self.lost:
            return
        if fd is not None:
            self._output.append(_Descriptor(os.dup(fd)))
        elif not self._output:
            try:
                sent = self.sock.send(frame)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.fail(f"its connection broke: {error.strerror or error}")
                return
            if sent == len(frame):
                return
            frame = memoryview(frame)[sent:]
        self._output.append(memoryview(frame))
        self._queued += len(frame)
        if not self.blocked:
            self._pump()

    def send_data(self, parts: list, owner) -> None:
        """Send a payload frame; owner.release() when its last byte has left, or the connection is lost."""
        if self.lost:
            owner.release()
            return
        output = self._output
        for part in parts:
            output.append(memoryview(part))
            self._queued += len(part)
        output.append(owner)
        if not self.blocked:
            self._pump()

    def writable(self) -> None:
        """The socket takes bytes again."""
        self.blocked = False
        self._pump()

    def _pump(self) -> None:
        if self._pumping:
            return  # a release queued more: the loop below goes on
        self._pumping = True
        try:
            self._pump_queue()
        finally:
            self._pumping = False

    def _pump_queue(self) -> None:
        output = self._output
        while output and not self.lost:
            if type(output[0]) is not memoryview and type(output[0]) is not _Descriptor:
                output.popleft().release()
                continue
            parts, ancillary = self._next_parts()
            try:
                sent = self.sock.sendmsg(parts, ancillary)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self.fail(f"its connection broke: {error.strerror or error}")
                return
            if not sent:
                self._block()
                return
            self._sent(sent)

    def _next_parts(self) -> tuple[list, list]:
        """Buffers for one sendmsg; one that travels with a descriptor goes alone."""
        output = self._output
        if type(output[0]) is _Descriptor:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", output[0].fd))
            return [output[1]], [rights]
        parts = []
        for item in output:
            if type(item) is memoryview:
                parts.append(item)
            elif type(item) is _Descriptor or len(parts) >= _MAX_PARTS:
                break
        return parts[:_MAX_PARTS], []

    def _sent(self, count: int) -> None:
        """Take `count` bytes off the queue; owners behind them are released by the caller's loop or here."""
        output = self._output
        self._queued -= count
        if type(output[0]) is _Descriptor:
            os.close(output.popleft().fd)
        owners = []
        while count:
            head = output[0]
            if type(head) is not memoryview:
                owners.append(output.popleft())
            elif count < len(head):
                output[0] = head[count:]
                break
            else:
                count -= len(head)
                output.popleft()
        for owner in owners:  # last: a release may queue more
            owner.release()

    def _block(self) -> None:
        if self._queued > self.registry.limits.output_bytes:
            self.fail(f"it does not read: {self._queued} bytes wait for it")
        elif not self.blocked:
            self.blocked = True
            self._notify(self)

    # ---- the end ----

    def refuse(self, error: StatusError, request: int = 0) -> None:
        """Tell the peer what was wrong with it, and give it up; closing at once could cost it the text."""
        if not self.refused:
            self.send(wire.encode_error(status=error.status, text=error.text, request=request))
            self.refused = f"it broke the protocol: {error.text}" if error.status == Status.PROTOCOL else error.text
            self._notify(self)

    def fail(self, why: str) -> None:
        """The connection is of no use any more."""
        if not self.lost:
            self.lost = why
            self._notify(self)

    def close(self) -> None:
        """Close the socket and let go of everything that was queued."""
        self.lost = self.lost or "closed"
        output, self._output = self._output, deque()
        self._rest = self._then = None
        self.sock.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        for item in output:
            if type(item) is _Descriptor:
                os.close(item.fd)
            elif type(item) is not memoryview:
                item.release()
