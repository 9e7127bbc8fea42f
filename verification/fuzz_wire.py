"""Frames from hell: mutated and generated ones against the codec and a live coordinator, while honest ranks work.

usage: fuzz_wire.py [--frames 1000000] [--live 20000] [--seed 1] [--json EVIDENCE]

The codec gets `frames` inputs: right frames of every type with bits flipped, bytes cut, copied and replaced by extreme
numbers, and noise. What it accepts must survive a second decoding; anything but a WireError is a defect. The corpus grows
by inputs that made it answer something new (another frame, error text or field), which guides it as coverage would. The
coordinator gets `live` of them over sockets, before and after HELLO, whole or in pieces, while two honest ranks check every
result. Exit status 1 when something crashed, memory grew past the limit, or an honest rank saw an error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import fakegpu
from fakegpu import control, endpoint
from fakegpu._core import wire
from fakegpu.settings import parse_address

GROWTH_KIB = 200 << 10  # of the coordinator's resident memory
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 62, (1 << 64) - 1)


def good_frames() -> list[bytes]:
    """A right frame of most types."""
    ops = [wire.Op(opid=1, count=1000, kind=wire.ALL_REDUCE, dtype=wire.FLOAT32), wire.Op(opid=2, count=3, kind=8, root=1)]
    return [
        wire.encode_hello(role=wire.ROLE_RANK, pid=7, timeout_ms=1000, rank=0, world_size=2, host="h", session="s"),
        wire.encode_auth(digest=bytes(32), request=1),
        wire.encode_bye(),
        wire.encode_ping(request=2),
        wire.encode_status(request=3),
        wire.encode_unique_id(request=4),
        wire.encode_comm_init(unique_id=bytes(range(128)), nranks=2, rank=1, timeout_ms=500, request=5, name="fuzz"),
        wire.encode_comm_shrink(exclude=[1], flags=0, name="x", request=6, member=9),
        wire.encode_comm_destroy(request=7, member=9),
        wire.encode_comm_abort(text="why", request=8, member=9),
        wire.encode_submit(ops=ops, timeout_ms=700, issue_ns=1, member=131073),
        wire.encode_done([wire.Done(opid=1)], member=131073),
        wire.encode_data(opid=1, payload=bytes(64), member=131073),
        wire.encode_query(text='{"query": "simulate", "operations": []}', request=9),
        wire.encode_error(status=3, text="text", request=10),
        wire.encode_ack(request=11),
        wire.encode_go([wire.Go(opid=1)], member=3),
        wire.encode_complete([wire.Complete(opid=1)], member=3),
    ]  # fmt: skip


class Mutator:
    """Makes inputs from a corpus."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.good = good_frames()
        self.corpus = list(self.good)

    def make(self) -> bytes:
        """One input."""
        chance = self.chance
        near = chance.random() < 0.5  # one step from a right frame: the bodies' checks are reached
        source = self.good if near else self.corpus
        data = bytearray(source[int(chance.random() * len(source))])
        for _ in range(1 if near else 1 + int(chance.random() * 4)):
            way = int(chance.random() * 8)
            at = int(chance.random() * len(data)) if data else 0
            if way == 0 and data:
                data[at] ^= 1 << int(chance.random() * 8)
            elif way == 1:
                del data[at:]
            elif way == 2:
                data[at:at] = data[at : at + 1 + int(chance.random() * 16)]
            elif way == 3:
                data[at:at] = os.urandom(1) if chance.random() < 0.01 else bytes([int(chance.random() * 256)])
            elif way == 4:
                width = 1 << int(chance.random() * 4)
                number = EXTREMES[int(chance.random() * len(EXTREMES))] & ((1 << 8 * width) - 1)
                data[at : at + width] = number.to_bytes(width, "little")
            elif way == 5 and len(data) >= 12:  # the size fits what is there: only the body is wrong
                struct.pack_into("<I", data, 8, max(len(data) - wire.HEADER_BYTES, 0))
            elif way == 6 and len(data) >= 8:
                struct.pack_into("<H", data, 4, int(chance.random() * 48))
            else:
                other = self.corpus[int(chance.random() * len(self.corpus))]
                data[at:] = other[at:]
        return bytes(data)


def decode(data: bytes) -> str:
    """What the codec says: a short class of answers, so that new ones are seen."""
    try:
        frame = wire.decode_header(data[: wire.HEADER_BYTES])
        rest = data[wire.HEADER_BYTES : wire.HEADER_BYTES + frame.body_bytes]
        if frame.type == wire.T_DATA:
            return f"data {wire.decode_data_head(rest)[0] & 1}"
        body = wire.decode_body(frame, rest)
        again = wire.decode_body(frame, bytearray(rest))
        if repr(body) != repr(again) and " at 0x" not in repr(body):
            raise AssertionError(f"decoded twice, differs: {data.hex()}")
        return f"{frame.type} {type(body).__name__}"
    except wire.WireError as error:
        return re.sub(r"0x[0-9a-f]+|\d+|'.*'", "#", str(error))


def fuzz_codec(mutator: Mutator, frames: int) -> dict:
    seen: dict[str, int] = {}
    accepted = 0
    for _ in range(frames):
        data = mutator.make()
        answer = decode(data)
        accepted += answer[0].isdigit() or answer.startswith("data")
        if answer not in seen:
            seen[answer] = 0
            if len(data) <= 4096 and len(mutator.corpus) < 2000:
                mutator.corpus.append(data)
        seen[answer] += 1
    return {"frames": frames, "accepted": accepted, "distinct_answers": len(seen), "corpus": len(mutator.corpus)}


def rss_kib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


def honest(address: str, over: threading.Event, counts: list[int], errors: list[str]) -> None:
    """Two ranks that compute until it is over and say what went wrong."""

    def body(rank: int) -> None:
        try:
            with fakegpu.connect(address, rank=rank, world_size=2, timeout_ms=60_000, session="honest") as client:
                comm = client.world()
                number = 0
                while True:
                    number += 1
                    ends = comm.all_reduce(np.array([number, over.is_set()], np.int64))
                    if ends[0] != 2 * number:
                        raise AssertionError(f"operation {number}: {ends}")
                    counts[rank] = number
                    if ends[1]:
                        return
        except Exception as error:
            errors.append(f"rank {rank}: {error!r}")

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    over.wait()
    for thread in threads:
        thread.join()


def throw(address: str, mutator: Mutator, live: int) -> tuple[int, float]:
    """Send frames until the coordinator has had `live`; connections, and the slowest ping in ms."""
    chance, hello = mutator.chance, good_frames()[0]
    sent = connections = 0
    slowest = 0.0
    while sent < live:
        connections += 1
        with endpoint.connect(address) as sock:
            sock.settimeout(0.2)
            batch = [mutator.make() for _ in range(chance.randint(1, 200))]
            stream = (hello if chance.random() < 0.7 else b"") + b"".join(batch)
            try:
                while stream:
                    size = len(stream) if chance.random() < 0.5 else chance.randint(1, 600)
                    sock.sendall(stream[:size])
                    stream = stream[size:]
                if chance.random() < 0.3:
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(65536):
                        pass
            except OSError:
                pass  # refused, as it should be
            sent += len(batch)
        if connections % 20 == 0:
            started = time.monotonic()
            control.ping(parse_address(address))
            slowest = max(slowest, 1000 * (time.monotonic() - started))
    return connections, slowest


def fuzz_live(mutator: Mutator, live: int, transport: str) -> tuple[dict, list[str]]:
    where = "127.0.0.1:0" if transport == "tcp" else f"/tmp/fakegpu-fuzz-{os.getpid()}"
    process = subprocess.Popen([sys.executable, "-m", "fakegpu", "coordinator", "--transport", transport, "--address", where],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    address = process.stdout.readline().split()[-1]
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.extend(
        line for line in process.stderr if "internal error" in line or "Traceback" in line))
    reader.start()
    over, errors, counts = threading.Event(), [], [0, 0]
    ranks = threading.Thread(target=honest, args=(address, over, counts, errors))
    ranks.start()
    try:
        throw(address, mutator, live // 10)
        first = rss_kib(process.pid)
        connections, slowest = throw(address, mutator, live)
        last = rss_kib(process.pid)
    finally:
        over.set()
        ranks.join()
        alive = process.poll() is None
        process.terminate()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()
    problems = errors + said + ([] if alive else ["the coordinator ended"])
    if not min(counts):
        problems.append("the honest ranks did nothing meanwhile")
    if last - first > GROWTH_KIB:
        problems.append(f"memory grew from {first} to {last} KiB")
    return {"frames": live, "connections": connections, "honest_operations": counts[0], "rss_kib": [first, last],
            "slowest_ping_ms": round(slowest, 1)}, problems  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--live", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    mutator = Mutator(options.seed)
    started = time.monotonic()
    evidence: dict = {"seed": options.seed, "codec": fuzz_codec(mutator, options.frames)}
    print(f"  codec: {evidence['codec']}, {time.monotonic() - started:.0f} s", flush=True)
    problems: list[str] = []
    for transport in ("unix", "tcp"):
        evidence[transport], found = fuzz_live(mutator, options.live, transport)
        print(f"  {transport} coordinator: {evidence[transport]}", flush=True)
        problems += [f"{transport}: {problem}" for problem in found]
    for problem in problems:
        print(f"  {problem}")
    print(f"fuzz_wire: {'ok' if not problems else f'{len(problems)} problems'}, {time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps({**evidence, "problems": problems}, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
