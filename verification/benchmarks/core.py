"""Speed of fakegpu/_core: GB/s of reductions (bytes read, all inputs) and microseconds per frame.

`python verification/benchmarks/core.py [--mib 32] [--repeat 5]`. Prints medians; exits 1 when a result is wrong or a
frame is slower than its bound (a one-operation SUBMIT decoded in 3 us, a GO encoded in 2 us, doubled for busy
machines). Times are the processor time of this one thread, so that other load disturbs little. The copy line is what
numpy needs to copy the same buffer: the memory's own speed.
"""

import argparse
import statistics
import sys
import time
import timeit
from functools import partial

import numpy as np

from fakegpu._core import wire
from fakegpu._core.reduce import reduce

DTYPES = {"fp32": (7, "f4"), "fp64": (8, "f8"), "int32": (2, "i4"), "fp16": (6, "f2"), "bf16": (9, "u2"),
          "e4m3": (10, "u1"), "e5m2": (11, "u1")}  # fmt: skip
ONE = {"bf16": 0x3F80, "e4m3": 0x38, "e5m2": 0x3C}
BOUNDS_US = {"decode SUBMIT": 3.0, "encode GO": 2.0}
OPS = {"sum": 0, "max": 2, "avg": 4}


def gigabytes_per_second(call, bytes: int, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return bytes / statistics.median(times) / 1e9


def reductions(mib: int, repeat: int) -> list[str]:
    wrong = []
    source = np.ones(mib << 20, np.uint8)
    target = np.empty_like(source)
    copy = gigabytes_per_second(lambda: np.copyto(target, source), source.nbytes, repeat)
    print(f"{'copy':6} {copy:21.2f} GB/s")
    print(f"{'dtype':6} {'op':4} {'2 inputs':>10} {'4 inputs':>10}   GB/s read")
    for name, (dtype, kind) in DTYPES.items():
        count = (mib << 20) // np.dtype(kind).itemsize
        inputs = [np.full(count, ONE.get(name, 1), kind) for _ in range(4)]
        out = np.empty_like(inputs[0])
        for op_name, op in OPS.items():
            speeds = []
            for nin in (2, 4):
                run = partial(reduce, dtype, op, inputs[:nin], [out])
                speeds.append(gigabytes_per_second(run, nin * out.nbytes, repeat))
            print(f"{name:6} {op_name:4} {speeds[0]:10.2f} {speeds[1]:10.2f}")
            if op_name != "sum" and not np.array_equal(out, inputs[0]):
                wrong.append(f"{name} {op_name} of ones: found {out[0]}, expected {inputs[0][0]}")
    return wrong


def frames(repeat: int) -> list[str]:
    op = wire.Op(opid=1, count=1024, kind=wire.ALL_REDUCE, dtype=wire.FLOAT32)
    submit = wire.encode_submit(ops=[op], timeout_ms=1000, member=7)
    header, body = wire.decode_header(submit), submit[wire.HEADER_BYTES :]
    done = wire.encode_done([wire.Done(opid=1)], member=7)
    calls = {
        "decode header": lambda: wire.decode_header(submit),
        "decode SUBMIT": lambda: wire.decode_body(header, body),
        "decode DONE": lambda: wire.decode_body(wire.decode_header(done), done[wire.HEADER_BYTES :]),
        "encode SUBMIT": lambda: wire.encode_submit(ops=[op], timeout_ms=1000, member=7),
        "encode GO": lambda: wire.encode_go([wire.Go(opid=1, flags=2)], member=7),
        "encode DATA header": lambda: wire.encode_data_header(opid=1, round=2, payload_bytes=4096, member=7),
    }
    slow = []
    for name, call in calls.items():
        number = 20_000
        seconds = timeit.repeat(call, timer=time.process_time, number=number, repeat=repeat)
        micros = statistics.median(seconds) / number * 1e6
        print(f"{name:20} {micros:8.2f} us")
        if micros > 2 * BOUNDS_US.get(name, float("inf")):
            slow.append(f"{name}: found {micros:.2f} us, expected at most {BOUNDS_US[name]} us")
    return slow


def main() -> int:
    parser = argparse.ArgumentParser(description="speed of fakegpu/_core")
    parser.add_argument("--mib", type=int, default=32, help="size of one buffer")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    failures = reductions(options.mib, options.repeat) + frames(options.repeat)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
