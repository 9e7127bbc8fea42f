"""One question to a running coordinator: ping, status, shutdown. Connects, asks, says BYE; no thread.

Used by the command line and the launcher. Errors are one line that names the address. Layer 5.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
from collections.abc import Callable
from typing import Any

from fakegpu import endpoint
from fakegpu._core import wire
from fakegpu.errors import NoCoordinatorError, Status, StatusError, error_for
from fakegpu.settings import Address

_ANSWER_SECONDS = 5.0


def ping(address: Address, token: str = "", tls_ca: str | None = None) -> None:
    """NoCoordinatorError unless a coordinator answers."""
    _ask(address, token, tls_ca, wire.encode_ping)


def ask_status(address: Address, token: str = "", tls_ca: str | None = None) -> dict:
    """The coordinator's state: see coordinator.Registry.status."""
    return json.loads(_ask(address, token, tls_ca, wire.encode_status))


def shut_down(address: Address, token: str = "", tls_ca: str | None = None) -> None:
    """Ask it to stop; returns when it has agreed."""
    _ask(address, token, tls_ca, wire.encode_shutdown)


def _ask(address: Address, token: str, tls_ca: str | None, encode: Callable) -> Any:
    with endpoint.connect(address, authority=tls_ca) as sock:
        sock.settimeout(_ANSWER_SECONDS)
        try:
            _greet(sock, token)
            sock.sendall(encode(request=2))
            answer = _read(sock)
            with contextlib.suppress(OSError):  # a coordinator that was told to stop may be gone by now
                sock.sendall(wire.encode_bye())
            return answer
        except TimeoutError:
            raise NoCoordinatorError(
                f"no answer from {address} within {_ANSWER_SECONDS:.0f} s", "is it a fakegpu coordinator?"
            ) from None
        except StatusError:
            raise  # the coordinator's own words
        except (OSError, wire.WireError) as error:
            raise NoCoordinatorError(f"what listens at {address} is no fakegpu coordinator: {error}") from None


def _greet(sock: socket.socket, token: str) -> None:
    host = socket.gethostname()[: wire.NAME_BYTES // 4]
    sock.sendall(wire.encode_hello(role=wire.ROLE_TOOL, pid=os.getpid(), host=host, program="fakegpu"))
    welcome = _read(sock)
    if welcome.features & wire.FEATURE_TOKEN:
        digest = hmac.digest(token.encode(), welcome.challenge, "sha256")
        sock.sendall(wire.encode_auth(digest=digest, request=1))
        _read(sock)


def _read(sock: socket.socket) -> Any:
    """The next frame's body; an ERROR is raised."""
    frame = wire.decode_header(_exactly(sock, wire.HEADER_BYTES))
    body = wire.decode_body(frame, _exactly(sock, frame.body_bytes))
    if frame.type == wire.T_ERROR:
        raise error_for(Status(body.status), body.text)
    return body


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return bytes(data)
