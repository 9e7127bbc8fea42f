"""The coordinator as a server: bad peers, limits, addresses, tokens, death by signal, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fakegpu
from fakegpu import endpoint, errors
from fakegpu._core import wire
from fakegpu.peers import Limits

sys.path.insert(0, str(Path(__file__).parent))
from worlds import make_id, run_ranks, run_threads, values

DATA = Path(__file__).resolve().parents[2] / "verification" / "data"


@pytest.fixture(params=["unix", "tcp"])
def coordinator(request):
    with fakegpu.Coordinator(request.param) as made:
        yield made


def raw(coordinator) -> socket.socket:
    sock = endpoint.connect(coordinator.address)
    sock.settimeout(20)
    return sock


def read_frame(sock: socket.socket):
    """(frame, body record) of the next frame; None at the end of the stream."""
    head = _read(sock, wire.HEADER_BYTES)
    if not head:
        return None
    frame = wire.decode_header(head)
    return frame, wire.decode_body(frame, _read(sock, frame.body_bytes))


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            return b""
        data += part
    return data


def hello(**fields) -> bytes:
    return wire.encode_hello(**({"role": wire.ROLE_RANK, "pid": os.getpid(), "timeout_ms": 5000} | fields))


def still_works(coordinator) -> bool:
    return values(run_ranks(coordinator.address, 2, lambda comm: comm.all_reduce(np.ones(3)).sum())) == [6.0, 6.0]


# ---- bad peers ----

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4,
    "zeros": bytes(4096),
    "wrong-magic": struct.pack("<IHHIIQQ", 0x12345678, 1, 0, 0, 0, 0, 0),
    "unknown-type": struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, 999, 0, 0, 0, 0, 0),
    "huge-body": struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, wire.T_HELLO, 0, 0xFFFFFFFF, 0, 0, 0),
    "large-body-before-hello": struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, wire.T_SUBMIT, 0, 1 << 20, 0, 0, 0),
    "data-before-hello": struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, wire.T_DATA, 0, 16, 0, 0, 0) + bytes(16),
    "server-frame": wire.encode_ack(request=1),
    "submit-before-hello": wire.encode_submit(ops=[wire.Op(opid=1)]),
    "hello-twice": hello() + hello(),
    "unknown-member": hello() + wire.encode_done([wire.Done(opid=1)], member=77),
    "data-for-unknown-member": hello() + wire.encode_data(opid=1, payload=b"x", member=77),
    "cut-op-list": hello() + struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, wire.T_SUBMIT, 0, 20, 0, 1, 0) + bytes([9] * 20),
}


@pytest.mark.parametrize("case", GARBAGE, ids=str)
def test_a_peer_that_breaks_the_protocol_is_told_and_closed(coordinator, case, caplog):
    with raw(coordinator) as sock:
        sock.sendall(GARBAGE[case])
        replies = []
        with contextlib.suppress(ConnectionResetError):
            while (reply := read_frame(sock)) is not None:
                replies.append(reply)
    if replies:  # a reset may drop the farewell
        assert replies[-1][0].type == wire.T_ERROR
        assert replies[-1][1].status == errors.Status.PROTOCOL
    assert still_works(coordinator)
    assert sum("broke the protocol" in record.message for record in caplog.records) == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=600), greet=st.booleans())
def test_any_bytes_end_one_connection_at_most(noise, greet):
    coordinator = shared_coordinator()
    with raw(coordinator) as sock:
        with contextlib.suppress(OSError):
            sock.sendall((hello() if greet else b"") + noise)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
    with raw(coordinator) as sock:
        sock.sendall(wire.encode_ping(request=5))
        assert read_frame(sock)[0].request == 5


_shared: list = []


def shared_coordinator():
    if not _shared:
        _shared.append(fakegpu.Coordinator().start())
    return _shared[0]


@pytest.fixture(autouse=True, scope="module")
def stop_shared():
    yield
    for made in _shared:
        made.stop()
    _shared.clear()


def test_another_protocol_version_is_refused_by_number(coordinator):
    with raw(coordinator) as sock:
        sock.sendall(hello(version_major=9, version_minor=3))
        frame, error = read_frame(sock)
        assert (frame.type, error.status) == (wire.T_ERROR, errors.Status.VERSION)
        assert "protocol version 9.3, expected 2." in error.text
        assert read_frame(sock) is None


def test_a_newer_minor_version_is_accepted(coordinator):
    with raw(coordinator) as sock:
        sock.sendall(hello(version_minor=7))
        assert read_frame(sock)[0].type == wire.T_WELCOME


def test_a_silent_peer_is_closed_and_holds_nobody_up():
    with fakegpu.Coordinator(hello_timeout=0.3) as made, raw(made) as sock:
        assert still_works(made)
        assert sock.recv(1) == b""


def test_a_half_open_frame_holds_nobody_up(coordinator):
    """A rank that stops in the middle of a payload: the others get a time-out that names the operation."""
    uid = make_id(coordinator.address)

    def run(rank: int):
        if rank == 1:
            return half_open_rank(coordinator, uid)
        with fakegpu.connect(coordinator.address, rank=0, world_size=2, timeout_ms=20_000) as client:
            comm = client.init(2, 0, uid, "world")
            client.timeout_ms = 500
            return comm.all_reduce(np.zeros(1000, np.float32))

    error = run_threads(2, run)[0]
    assert isinstance(error, errors.OperationTimeout)
    assert "without progress: every rank submitted all_reduce #0 float32 count 1000 sum" in error.text


def half_open_rank(coordinator, uid: bytes) -> None:
    """Join as rank 1, submit, send half of the payload and wait for the error."""
    with raw(coordinator) as sock:
        sock.sendall(hello(rank=1, world_size=2))
        sock.sendall(wire.encode_comm_init(unique_id=uid, nranks=2, rank=1, timeout_ms=20_000, request=1))
        read_frame(sock)
        ready = read_frame(sock)[1]
        op = wire.Op(opid=1, count=1000, kind=wire.ALL_REDUCE, dtype=wire.FLOAT32)
        sock.sendall(wire.encode_submit(ops=[op], timeout_ms=500, member=ready.member))
        assert read_frame(sock)[0].type == wire.T_GO
        head = wire.encode_data_header(opid=1, round=0, payload_bytes=4000, member=ready.member)
        sock.sendall(head + bytes(1234))
        assert read_frame(sock)[0].type == wire.T_ERROR


def test_a_payload_of_the_wrong_size_fails_the_communicator(coordinator):
    uid = make_id(coordinator.address)

    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, world_size=2, timeout_ms=20_000) as client:
            comm = client.init(2, rank, uid)
            if rank == 1:
                from fakegpu import task

                right = task.Task.slices
                task.Task.slices = lambda self, blocks, number: [b[:4] for b in right(self, blocks, number)]
                try:
                    return comm.all_reduce(np.zeros(100, np.float32))
                finally:
                    task.Task.slices = right
            return comm.all_reduce(np.zeros(100, np.float32))

    for error in run_threads(2, run).values():
        assert isinstance(error, errors.ProtocolError)
        assert "bytes, expected 400 bytes" in error.text


# ---- limits, world, token ----


def test_connections_are_limited():
    with fakegpu.Coordinator(limits=Limits(connections=2)) as made, contextlib.ExitStack() as stack:
        for rank in range(2):
            stack.enter_context(fakegpu.connect(made.address, rank=rank, timeout_ms=5000))
        with pytest.raises(errors.LimitError, match="has 2 connections, its limit"):
            fakegpu.connect(made.address, rank=2, timeout_ms=5000)


def test_ranks_and_buffered_bytes_are_limited():
    with fakegpu.Coordinator(limits=Limits(ranks=2, buffered_bytes=1000)) as made:
        with fakegpu.connect(made.address, timeout_ms=5000) as client:
            with pytest.raises(errors.WorldError, match="nranks 3, limit 2"):
                client.init(3, 0, client.unique_id())
        results = run_ranks(made.address, 2, lambda comm: comm.all_reduce(np.zeros(200)))
        for error in results.values():
            assert isinstance(error, errors.LimitError)
            assert "limit 1000" in error.text


def test_world_size_must_fit_the_cluster():
    with fakegpu.Coordinator(cluster=DATA / "cluster_valid.yaml") as made:
        with pytest.raises(
            errors.WorldError, match=r"world size 3 does not fit cluster '.*cluster_valid.yaml\), which lists 4"
        ):
            fakegpu.connect(made.address, rank=0, world_size=3, timeout_ms=5000)
        with pytest.raises(errors.WorldError, match="rank 4 does not fit"):
            fakegpu.connect(made.address, rank=4, timeout_ms=5000)
        with fakegpu.connect(made.address, timeout_ms=5000) as client:
            assert client.welcome.world_size == 4
            with pytest.raises(errors.WorldError, match="world of 2 ranks does not fit"):
                client.init(2, 0, client.unique_id())
        assert values(run_ranks(made.address, 4, lambda comm: comm.nranks)) == [4] * 4


def test_token_is_asked_for_and_compared():
    with fakegpu.Coordinator(token="secret") as made:
        with fakegpu.connect(made.address, rank=0, world_size=1, timeout_ms=5000, token="secret") as client:
            assert client.world().all_reduce(np.ones(1))[0] == 1
        for wrong in ("", "other"):
            with pytest.raises(errors.AuthError, match="token differs"):
                fakegpu.connect(made.address, rank=0, timeout_ms=5000, token=wrong)
        with raw(made) as sock:
            sock.sendall(wire.encode_shutdown(request=1))
            assert read_frame(sock)[1].status in (errors.Status.AUTH, errors.Status.PROTOCOL)
        assert made.running


# ---- tools ----


def test_ping_and_status_need_no_hello(coordinator):
    with raw(coordinator) as sock:
        sock.sendall(wire.encode_ping(request=3) + wire.encode_status(request=4))
        assert read_frame(sock)[0].type == wire.T_ACK
        frame, text = read_frame(sock)
        assert frame.request == 4
        assert json.loads(text)["transport"] == coordinator.transport


def test_shutdown_frame_ends_it(coordinator):
    with raw(coordinator) as sock:
        sock.sendall(wire.encode_shutdown(request=1))
        assert read_frame(sock)[0].type == wire.T_ACK
    assert coordinator.wait(10)
    with pytest.raises(errors.NoCoordinatorError, match="no coordinator at"):
        fakegpu.connect(coordinator.address, timeout_ms=100)


def test_simulated_time_of_a_group(coordinator):
    def body(comm):
        operations = [
            {"comm": comm.id, "rank": comm.rank, "kind": 0, "dtype": 7, "redop": 0, "root": -1, "count": 1 << 20},
            {"comm": comm.id, "rank": comm.rank, "kind": 8, "dtype": 7, "redop": 0, "root": 1, "count": 1 << 20},
        ]
        text = json.dumps({"query": "simulate", "operations": operations})
        answer = json.loads(comm.client.request(wire.encode_query, text=text))
        with pytest.raises(errors.ArgumentError, match="QUERY: communicator 999"):
            comm.client.request(wire.encode_query, text=text.replace(f'"comm": {comm.id}', '"comm": 999'))
        return answer["time_us"]

    assert all(time_us > 1 for time_us in values(run_ranks(coordinator.address, 2, body)))


def test_a_hook_that_raises_ends_nothing(caplog):
    from fakegpu.peers import Hooks

    with fakegpu.Coordinator(hooks=Hooks(on_finished=lambda event: 1 / 0, on_communicator=lambda comm: 1 / 0)) as made:
        assert still_works(made)
    assert {"hook on_finished", "hook on_communicator"} <= {record.message for record in caplog.records}


def test_hooks_are_told_and_may_refuse():
    seen = []

    def refuse_large(comm, rank, ops):
        if any(op.count > 10 for op in ops):
            raise errors.InjectedFault("no more than 10 elements here")

    from fakegpu.peers import Hooks

    hooks = Hooks(
        on_join=lambda process: seen.append("join"),
        on_communicator=lambda comm: seen.append("communicator"),
        on_finished=lambda event: seen.append(event.kind),
        on_failure=lambda comm, failure: seen.append(failure.source),
        on_operation=refuse_large,
    )

    def body(comm):
        comm.all_reduce(np.ones(10))
        comm.barrier()
        return comm.all_reduce(np.ones(11))

    with fakegpu.Coordinator(hooks=hooks) as made:
        results = run_ranks(made.address, 2, body)
    assert all(isinstance(error, errors.InjectedFault) for error in results.values())
    told = [what for what in seen if what != "join"]
    assert told[:2] == ["communicator", "all_reduce"] and told[-1] == "injected"


# ---- addresses ----


def test_a_live_address_is_refused_and_a_dead_socket_replaced(tmp_path):
    path = str(tmp_path / "c.sock")
    with fakegpu.Coordinator(address=path):
        with pytest.raises(errors.SettingsError, match=f"cannot listen on {path}: Address already in use"):
            fakegpu.Coordinator(address=path).start()
    assert not os.path.exists(path)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    with fakegpu.Coordinator(address=path) as made:
        assert still_works(made)
    (tmp_path / "c.sock").write_text("not a socket")
    with pytest.raises(errors.SettingsError, match="Address already in use"):
        fakegpu.Coordinator(address=path).start()
    assert (tmp_path / "c.sock").read_text() == "not a socket"


def test_a_used_tcp_port_is_refused():
    with fakegpu.Coordinator("tcp") as made:
        with pytest.raises(errors.SettingsError, match="Address already in use"):
            fakegpu.Coordinator("tcp", made.address).start()


def test_socket_file_is_private():
    with fakegpu.Coordinator() as made:
        assert os.stat(made.address).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(made.address)).st_mode & 0o777 == 0o700


@pytest.mark.parametrize("address", ["/nonexistent/c.sock", "127.0.0.1:1"])
def test_nobody_at_the_address(address):
    with pytest.raises(errors.NoCoordinatorError, match=f"no coordinator at {address}"):
        fakegpu.connect(address, timeout_ms=50)


def test_somebody_else_at_the_address(tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n" * 4)).start()
        with pytest.raises(errors.NoCoordinatorError, match="no fakegpu coordinator"):
            fakegpu.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_ms=5000)


# ---- death and signals ----

HOLDER = """
import os, sys, time, numpy as np
import fakegpu
address, uid = sys.argv[1], bytes.fromhex(sys.argv[2])
client = fakegpu.connect(address, rank=1, world_size=2, timeout_ms=20000)
comm = client.init(2, 1, uid, "world")
if os.fork() == 0:
    time.sleep(60)  # with what it inherited
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_kill_is_seen_although_a_forked_child_lives_on(transport):
    with fakegpu.Coordinator(transport) as made:
        uid = make_id(made.address)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, made.address, uid.hex()], stdout=subprocess.PIPE, start_new_session=True
        )
        try:
            with fakegpu.connect(made.address, rank=0, world_size=2, timeout_ms=20_000) as client:
                comm = client.init(2, 0, uid, "world")
                assert process.stdout.readline() == b"ready\n"
                os.kill(process.pid, signal.SIGKILL)
                killed = time.monotonic()
                with pytest.raises(errors.DeadRankError, match=f"rank 1 .*pid {process.pid} .*(its process ended|closed)"):
                    comm.barrier()
                assert time.monotonic() - killed < 2
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()


SERVER = """
import sys, fakegpu
coordinator = fakegpu.Coordinator(report=sys.argv[1])
coordinator.serve_forever(lambda: print(coordinator.address, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_foreground_server_with_its_report(tmp_path, number):
    path = tmp_path / "report.json"
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip()
        values(run_ranks(address, 2, lambda comm: comm.barrier()))
        process.send_signal(number)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert json.loads(path.read_text())["collectives"]["barrier"]["calls"] == 1
    assert not os.path.exists(os.path.dirname(address))


def test_ranks_learn_that_the_coordinator_stopped(coordinator):
    there = threading.Barrier(3)

    def run(rank: int):
        with fakegpu.connect(coordinator.address, rank=rank, world_size=3, timeout_ms=20_000) as client:
            there.wait(20)
            return client.init(3, rank, bytes(128)) if rank > 9 else client.world()

    stopper = threading.Thread(target=lambda: (there.wait(20), wait_for_joined(coordinator), coordinator.stop()))
    stopper.start()
    results = run_threads(2, run)
    stopper.join()
    for error in results.values():
        assert isinstance(error, errors.CoordinatorError)


def wait_for_joined(coordinator) -> None:
    while coordinator.status()["gathering"] < 2:
        pass


def test_nothing_is_left_behind(tmp_path):
    def open_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def life() -> None:
        with fakegpu.Coordinator("tcp", report=tmp_path / "r.json") as tcp, fakegpu.Coordinator() as unix:
            for made in (tcp, unix):
                values(run_ranks(made.address, 3, lambda comm: comm.split(0).all_reduce(np.ones(200_000)).sum()))
                run_ranks(made.address, 2, lambda comm: comm.all_reduce(np.ones(comm.rank + 1)))
            folders.append(os.path.dirname(unix.address))

    folders: list[str] = []
    life()  # modules and pools
    before, threads = open_descriptors(), threading.active_count()
    life()
    assert open_descriptors() == before
    assert threading.active_count() == threads
    assert not any(map(os.path.exists, folders))
    assert sorted(os.listdir(tmp_path)) == ["r.json", "r.md"]
