"""One coordinator for a long time, and beside hostile peers: flat memory, threads and descriptors, quick answers.

usage: soak.py [--operations 200000] [--json EVIDENCE]

Two ranks over libnccl.so.2 make the operations, in groups, in a hundred communicators one after the other. Then 200
sockets that say nothing, 50 that stop within a header, claims of 2^62 bytes and of 2 billion ranks, HTTP and TLS come at
once: they are refused or timed out, and pings are answered within 5 ms (median and nine tenths). Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fakegpu import control, endpoint
from fakegpu._core import wire
from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import Nccl
from fakegpu.settings import parse_address

ROUNDS, GROUP, PING_MS = 100, 20, 5.0
SLACK_KIB = 16 << 10
STAYS = "2e9 ranks"


def rank(number: int, address: str, operations: int, warm: int) -> None:
    """A rank's process: `warm` communicators' operations first, then a pause until stdin closes, then all of them."""
    os.environ.update(FAKEGPU_COORDINATOR_ADDR=address, FAKEGPU_COORDINATOR_TIMEOUT_MS="60000",
                      FAKEGPU_COORDINATOR_TRANSPORT="unix" if address.startswith("/") else "tcp")  # fmt: skip
    nccl = Nccl()
    for index in range(warm + ROUNDS):
        if index == warm:
            print("warm", flush=True)
            sys.stdin.read()
        comm = nccl.init(2, world_id(f"soak-{index}"), number)
        sent, got = np.arange(16, dtype=np.int64) * (number + 1), np.zeros((GROUP, 16), np.int64)
        for _ in range(operations // ROUNDS // GROUP):
            got[:] = 0
            with nccl.group():
                for row in got:
                    comm.all_reduce(sent, row)
            if (got != 3 * np.arange(16)).any():
                raise SystemExit(f"soak: rank {number}: wrong value in communicator {index}")
        comm.destroy()
    print("done", flush=True)


class Watched:
    """A coordinator's process."""

    def __init__(self, transport: str) -> None:
        where = "127.0.0.1:0" if transport == "tcp" else f"/tmp/fakegpu-soak-{os.getpid()}"
        command = [sys.executable, "-m", "fakegpu", "coordinator", "--transport", transport, "--address", where]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().split()[-1]

    def usage(self) -> dict[str, int]:
        """Once nobody but our own question is connected."""
        until = time.monotonic() + 20
        while (status := control.ask_status(parse_address(self.address)))["connections"] > 1 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)
        root = Path(f"/proc/{self.process.pid}")
        rss = int((root / "status").read_text().partition("VmRSS:")[2].split()[0])
        return {"rss_kib": rss, "threads": len(os.listdir(root / "task")), "descriptors": len(os.listdir(root / "fd")),
                "communicators": len(status["communicators"]), "operations": status["operations"]}  # fmt: skip

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()


def grown(first: dict, last: dict) -> list[str]:
    """What grew although it must not."""
    problems = [f"{key} grew from {first[key]} to {last[key]}" for key in ("threads", "descriptors", "communicators")
                if last[key] > first[key]]  # fmt: skip
    if last["rss_kib"] > first["rss_kib"] + SLACK_KIB:
        problems.append(f"memory grew from {first['rss_kib']} to {last['rss_kib']} KiB")
    return problems


def operations(count: int) -> tuple[dict, list[str]]:
    watched = Watched("unix")
    command = [sys.executable, __file__, "--address", watched.address, "--operations", str(count)]
    ranks = [subprocess.Popen([*command, "--rank", str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
             for number in range(2)]  # fmt: skip
    try:
        for process in ranks:
            process.stdout.readline()
        before = control.ask_status(parse_address(watched.address))["operations"]
        first = sample(watched)
        started = time.monotonic()
        for process in ranks:
            process.stdin.close()
        ends = [process.wait() for process in ranks]
        seconds = time.monotonic() - started
        last = watched.usage()
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            process.stdout.close()
        watched.stop()
    done = last["operations"] - before
    problems = [f"memory: {text}" for text in grown({**first, "descriptors": first["descriptors"]}, last)]
    if any(ends) or done < count:
        problems.append(f"{done} of {count} operations; the ranks ended with {ends}")
    return {"first": first, "last": last, "operations": done, "seconds": round(seconds, 1)}, problems


def sample(watched: Watched) -> dict[str, int]:
    """Like usage, while two warm ranks are connected."""
    root = Path(f"/proc/{watched.process.pid}")
    rss = int((root / "status").read_text().partition("VmRSS:")[2].split()[0])
    return {"rss_kib": rss, "threads": len(os.listdir(root / "task")), "descriptors": len(os.listdir(root / "fd")),
            "communicators": 0}  # fmt: skip


def header(kind: int, size: int) -> bytes:
    return struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, kind, 0, size, 0, 0, 0)


def attackers(address: str) -> dict[str, list[socket.socket]]:
    """Every kind of bad peer, all connected."""
    hello = wire.encode_hello(role=wire.ROLE_RANK, pid=1, timeout_ms=60_000, rank=0, world_size=2_000_000_000)
    init = wire.encode_comm_init(unique_id=bytes(128), nranks=2_000_000_000, rank=1, timeout_ms=60_000, request=5)
    op = wire.Op(opid=1, count=1 << 62, kind=wire.ALL_REDUCE, dtype=wire.FLOAT32)
    kinds = {
        "idle": (200, b""),
        "half a header": (50, header(wire.T_HELLO, 100)[:17]),
        "4 GiB frame": (10, header(wire.T_HELLO, 0xFFFFFFFF)),
        "4 GiB payload": (10, hello + header(wire.T_DATA, 0xFFFFFFFF)),
        "2^62 elements": (10, hello + wire.encode_submit(ops=[op], timeout_ms=9, member=131073)),
        "2e9 ranks": (10, hello + init),
        "http": (10, b"GET / HTTP/1.1\r\nHost: fakegpu\r\n\r\n" * 3),
        "tls": (10, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(300)),
    }  # fmt: skip
    found = {}
    for name, (count, data) in kinds.items():
        found[name] = [endpoint.connect(address) for _ in range(count)]
        for sock in found[name]:
            sock.sendall(data)
    return found


def hostile() -> tuple[dict, list[str]]:
    watched = Watched("tcp")
    problems: list[str] = []
    try:
        control.ping(parse_address(watched.address))
        for socks in attackers(watched.address).values():  # once before: the allocator keeps what their buffers took
            for sock in socks:
                sock.close()
        first = watched.usage()
        with contextlib.ExitStack() as stack:
            asker = stack.enter_context(endpoint.connect(watched.address))
            asker.sendall(wire.encode_hello(role=wire.ROLE_TOOL, pid=os.getpid()))
            read_frame(asker)
            peers = attackers(watched.address)
            pings = sorted(ping(asker, number) for number in range(500))
            ends = {name: sum(refused(sock) if name == STAYS else closed(sock) for sock in socks)
                    for name, socks in peers.items()}  # fmt: skip
            for name, socks in peers.items():
                if ends[name] != len(socks):
                    problems.append(f"{name}: {ends[name]} of {len(socks)} connections were ended or refused")
                for sock in socks:
                    sock.close()
        last = watched.usage()
    finally:
        watched.stop()
    median, nine_tenths, worst = pings[250], pings[450], pings[-1]
    if nine_tenths > PING_MS:
        problems.append(f"pings: median {median:.2f} ms, nine tenths {nine_tenths:.2f} ms, expected at most {PING_MS} ms")
    problems += grown(first, last)
    return {"first": first, "last": last, "ended": ends,
            "ping_ms": {"median": round(median, 2), "p90": round(nine_tenths, 2), "worst": round(worst, 2)}}, problems  # fmt: skip


def read_frame(sock: socket.socket) -> None:
    head = wire.decode_header(sock.recv(wire.HEADER_BYTES, socket.MSG_WAITALL))
    if head.body_bytes:
        sock.recv(head.body_bytes, socket.MSG_WAITALL)


def ping(sock: socket.socket, number: int) -> float:
    started = time.perf_counter()
    sock.sendall(wire.encode_ping(request=number + 1))
    read_frame(sock)
    return 1000 * (time.perf_counter() - started)


def refused(sock: socket.socket) -> bool:
    """Whether the request was answered with the reason; such a peer may stay and ask for less."""
    sock.settimeout(15)
    answer = b""
    while b"limit" not in answer:
        part = sock.recv(65536)
        if not part:
            return b"nranks" in answer
        answer += part
    return True


def closed(sock: socket.socket) -> bool:
    """Whether the coordinator ends it within its time for a greeting, and a bit."""
    sock.settimeout(15)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass  # reset
    return True


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        rank(options.rank, options.address, options.operations, ROUNDS // 5)
        return 0
    evidence, problems = {}, []
    for name, check in (("operations", lambda: operations(options.operations)), ("hostile peers", hostile)):
        evidence[name], found = check()
        problems += [f"{name}: {problem}" for problem in found]
        for key, value in evidence[name].items():
            print(f"  {name}: {key} {value}", flush=True)
    for problem in problems:
        print(f"  {problem}")
    print(f"soak: {'ok' if not problems else f'{len(problems)} problems'}")
    if options.json:
        options.json.write_text(json.dumps({**evidence, "problems": problems}, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
