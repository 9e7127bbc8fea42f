"""Who gets in and who does not: tokens, TLS, limits that users set, warnings - through the command line and the wire."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fakegpu
from fakegpu import control, endpoint, errors
from fakegpu._core import wire
from fakegpu.launch.environment import PACKAGE
from fakegpu.peers import Limits
from fakegpu.settings import parse_address

sys.path.insert(0, str(Path(__file__).parent))
from test_cli_coordinator import Running, ask, start  # noqa: F401
from worlds import run_ranks, values

pytestmark = pytest.mark.resilience
INIT = """
import ctypes, sys
nccl = ctypes.CDLL(sys.argv[1])
nccl.ncclGetLastError.restype = ctypes.c_char_p
status = nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
print(status, nccl.ncclGetLastError(None).decode())
"""


def nccl_id(**variables: str) -> tuple[int, str]:
    """Status and text of ncclGetUniqueId in a process of its own."""
    done = subprocess.run([sys.executable, "-c", INIT, str(PACKAGE / "lib" / "libnccl.so.2")], capture_output=True,
                          text=True, timeout=60, check=True, env={"FAKEGPU_COORDINATOR_TRANSPORT": "tcp", **variables})
    status, text = done.stdout.split(" ", 1)
    return int(status), text


# ---- tokens ----


@pytest.mark.parametrize("command", [("coordinator", "--listen", "127.0.0.1:0"), ("run", "true")], ids=lambda c: c[0])
def test_require_token_refuses_to_start_without_one(command) -> None:
    done = ask(command[0], "--require-token", *command[1:], FAKEGPU_TOKEN="")
    assert done.returncode == 2 and "--require-token: there is no token" in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_libnccl_reads_the_token_file(start, tmp_path) -> None:
    (tmp_path / "token").write_text(" secret \n")
    running = start("--listen", "127.0.0.1:0", "--require-token", "--token-file", str(tmp_path / "token"))
    where = {"FAKEGPU_COORDINATOR_ADDR": running.address}
    assert nccl_id(**where, FAKEGPU_TOKEN_FILE=str(tmp_path / "token"))[0] == 0
    status, text = nccl_id(**where)
    assert status and "wants a shared secret" in text
    status, text = nccl_id(**where, FAKEGPU_TOKEN="wrong")
    assert status and "token differs" in text
    status, text = nccl_id(**where, FAKEGPU_TOKEN_FILE=str(tmp_path / "absent"))
    assert status and "absent: not readable" in text


@pytest.mark.parametrize("frame", ["status", "shutdown", "unique_id", "bye", "submit", "query"])
def test_a_stranger_gets_nothing_but_a_ping(frame) -> None:
    made = {"submit": lambda: wire.encode_submit(ops=[wire.Op(opid=1)]),
            "query": lambda: wire.encode_query(text='{"query": "simulate"}', request=2),
            "bye": wire.encode_bye}.get(frame, lambda: getattr(wire, f"encode_{frame}")(request=2))
    with fakegpu.Coordinator("tcp", token="secret") as coordinator:
        for greeting in (b"", wire.encode_hello(role=wire.ROLE_TOOL, pid=1, timeout_ms=1000)):
            with endpoint.connect(coordinator.address) as sock:
                sock.settimeout(20)
                sock.sendall(wire.encode_ping(request=1) + greeting + made())
                sock.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))
            head = wire.decode_header(answer[: wire.HEADER_BYTES])
            assert head.type == wire.T_ACK and b"expected" in answer
        assert coordinator.running and coordinator.status()["connections"] == 0


def test_a_stranger_s_hello_changes_nothing() -> None:
    """What HELLO claims counts after AUTH only: nobody joins, no restart is noted."""
    from fakegpu.peers import Hooks

    joined: list = []
    with fakegpu.Coordinator("tcp", token="secret", hooks=Hooks(on_join=joined.append)) as coordinator:
        with pytest.raises(errors.AuthError):
            fakegpu.connect(coordinator.address, rank=0, timeout_ms=5000, token="wrong")
        assert not joined
        fakegpu.connect(coordinator.address, rank=0, timeout_ms=5000, token="secret").close()
        assert len(joined) == 1


@pytest.mark.parametrize("address, loud", [("0.0.0.0:0", True), ("127.0.0.1:0", False)])
def test_listening_beyond_loopback_without_a_token_is_loud(start, address, loud) -> None:
    running = start("--listen", address, FAKEGPU_TOKEN="")
    running.process.terminate()
    assert ("WARNING: listening on 0.0.0.0" in running.end()[1]) == loud
    guarded = start("--listen", address, FAKEGPU_TOKEN="secret")
    guarded.process.terminate()
    assert "WARNING" not in guarded.end()[1]


# ---- limits ----


def test_an_operation_s_payload_is_limited_by_name() -> None:
    with fakegpu.Coordinator(limits=Limits(operation_bytes=1000)) as coordinator:
        assert values(run_ranks(coordinator.address, 2, lambda comm: comm.all_reduce(np.ones(125)).sum())) == [250, 250]
        for error in run_ranks(coordinator.address, 2, lambda comm: comm.all_reduce(np.ones(126))).values():
            assert isinstance(error, errors.LimitError)
            assert "float64 count 126" in error.text and "1008 bytes; the operation's limit is 1000" in error.text


def test_limits_are_flags(start) -> None:
    running = start("--listen", "127.0.0.1:0", "--max-connections", "1", "--max-ranks", "2", "--max-operation-bytes", "1KiB",
                    "--max-buffered-bytes", "1MiB")
    with fakegpu.connect(running.address, rank=0, timeout_ms=5000) as client:
        with pytest.raises(errors.WorldError, match="nranks 3, limit 2"):
            client.init(3, 0, client.unique_id())
        with pytest.raises(errors.LimitError, match="has 1 connections, its limit"):
            fakegpu.connect(running.address, rank=1, timeout_ms=5000)
        comm = client.init(1, 0, client.unique_id())
        with pytest.raises(errors.LimitError, match="limit is 1024"):
            comm.all_reduce(np.ones(1025, np.int8))


# ---- TLS ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl program to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    "2", "-subj", "/CN=fakegpu test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
                   check=True, capture_output=True, timeout=60)
    return cert, key


def test_ranks_compute_over_tls(certificate) -> None:
    def body(comm):
        total = comm.all_reduce(np.arange(300_000, dtype=np.float64))
        return float(total.sum()), comm.all_gather(np.full(3, comm.rank)).tolist()

    with fakegpu.Coordinator("tcp", tls=certificate, token="secret", chunk_bytes=64 << 10) as coordinator:
        results = values(run_ranks(coordinator.address, 3, body, tls_ca=certificate[0], token="secret"))
        assert results == [(3 * 44999850000.0, [[rank] * 3 for rank in range(3)])] * 3
        where = parse_address(coordinator.address)
        control.ping(where, "secret", certificate[0])
        with pytest.raises(errors.AuthError):
            control.ask_status(where, "wrong", certificate[0])
        control.shut_down(where, "secret", certificate[0])
        assert coordinator.wait(10)


def test_without_tls_a_peer_is_refused_by_name(certificate, start) -> None:
    running = start("--listen", "127.0.0.1:0", "--tls-cert", certificate[0], "--tls-key", certificate[1])
    with pytest.raises(errors.AuthError, match="takes TLS connections only"):
        fakegpu.connect(running.address, rank=0, timeout_ms=5000)
    status, text = nccl_id(FAKEGPU_COORDINATOR_ADDR=running.address)
    assert status and "libnccl.so.2 does not" in text
    done = ask("coordinator", "--ping", running.address, FAKEGPU_TLS_CA=certificate[0])
    assert done.returncode == 0, done.stderr


def test_a_stranger_s_certificate_is_refused(certificate, tmp_path_factory) -> None:
    with fakegpu.Coordinator("tcp", tls=certificate) as coordinator:
        port = coordinator.address.rpartition(":")[2]
        with pytest.raises(errors.NoCoordinatorError, match="no TLS with localhost"):
            fakegpu.connect(f"localhost:{port}", rank=0, timeout_ms=5000, tls_ca=certificate[0])
        with pytest.raises(errors.SettingsError, match="FAKEGPU_TLS_CA=.*key.pem"):
            fakegpu.connect(coordinator.address, rank=0, timeout_ms=5000, tls_ca=certificate[1])
    with fakegpu.Coordinator("tcp") as plain:
        with pytest.raises(errors.NoCoordinatorError, match="no TLS with 127.0.0.1"):
            fakegpu.connect(plain.address, rank=0, timeout_ms=5000, tls_ca=certificate[0])


@pytest.mark.parametrize("noise", [b"\x16\x03\x01" + bytes(200), b"\x16", b"GET / HTTP/1.1\r\n\r\n"], ids=["torn", "half", "http"])
def test_garbage_before_tls_ends_one_connection(certificate, noise) -> None:
    with fakegpu.Coordinator("tcp", tls=certificate, hello_timeout=0.5) as coordinator:
        with endpoint.connect(coordinator.address) as sock:
            sock.settimeout(20)
            sock.sendall(noise)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        control.ping(parse_address(coordinator.address), "", certificate[0])


def test_tls_flags_that_do_not_fit_are_refused(certificate, tmp_path) -> None:
    absent = str(tmp_path / "absent.pem")
    for arguments, text in (
        (("--listen", "127.0.0.1:0", "--tls-cert", absent), "absent.pem"),
        (("--listen", "127.0.0.1:0", "--tls-key", absent), "expected --tls-cert"),
        (("--address", str(tmp_path / "c"), "--tls-cert", certificate[0], "--tls-key", certificate[1]), "needs no TLS"),
    ):
        done = ask("coordinator", *arguments)
        assert done.returncode == 2 and text in done.stderr, done.stderr
    done = ask("run", "--tls-cert", certificate[0], "true")
    assert done.returncode == 2 and "does not speak TLS" in done.stderr
