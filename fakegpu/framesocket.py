"""A blocking socket that speaks frames: whole frames out, one thread at a time; frames in, for one reader.

Payloads are read straight into the memory they are for. Used by client.py. Layer 5.
"""

from __future__ import annotations

import socket
import threading

from fakegpu._core import wire
from fakegpu.errors import CoordinatorError

_INPUT_BYTES = 64 << 10


class FrameSocket:
    """See the module's text. Raises OSError, WireError, and CoordinatorError at the end of the stream."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._transmit = threading.Lock()
        self._input = memoryview(bytearray(_INPUT_BYTES))
        self._start = self._end = 0

    def send(self, parts: list) -> None:
        """One whole frame, in any number of buffers."""
        with self._transmit:
            left = sum(map(len, parts))
            while True:
                sent = self._sock.sendmsg(parts)
                left -= sent
                if not left:
                    return
                parts = _without(parts, sent)

    def read_header(self):
        """The next frame's header."""
        self._need(wire.HEADER_BYTES)
        frame = wire.decode_header(self._input[self._start : self._start + wire.HEADER_BYTES])
        self._start += wire.HEADER_BYTES
        return frame

    def read_body(self, frame):
        """The record of a frame's body."""
        body = memoryview(bytearray(frame.body_bytes))
        self.read_into(body)
        return wire.decode_body(frame, body)

    def read_data_head(self) -> tuple[int, int]:
        """(opid, round) of a DATA frame, whose payload comes next."""
        self._need(wire.Data.BYTES)
        head = wire.decode_data_head(self._input[self._start : self._end])
        self._start += wire.Data.BYTES
        return head

    def read_into(self, view: memoryview) -> None:
        """Exactly the view's bytes: what is buffered, the rest straight from the socket."""
        have = min(self._end - self._start, len(view))
        view[:have] = self._input[self._start : self._start + have]
        self._start += have
        while have < len(view):
            have += self._got(self._sock.recv_into(view[have:]))

    def _need(self, size: int) -> None:
        """At least `size` bytes in the input buffer."""
        left = self._end - self._start
        if left >= size:
            return
        self._input[:left] = bytes(self._input[self._start : self._end])
        self._start, self._end = 0, left
        while self._end < size:
            self._end += self._got(self._sock.recv_into(self._input[self._end :]))

    @staticmethod
    def _got(count: int) -> int:
        if not count:
            raise CoordinatorError("the coordinator closed the connection")
        return count


def _without(parts: list, sent: int) -> list:
    """The buffers without the first `sent` bytes."""
    rest = []
    for part in parts:
        if sent >= len(part):
            sent -= len(part)
        else:
            rest.append(memoryview(part)[sent:])
            sent = 0
    return rest
