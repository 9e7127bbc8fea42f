"""One rank of a bandwidth run, a process of its own: libnccl.so.2 through ctypes on numpy buffers.

Started as `python -m fakegpu.cli._bandwidth.rank` with the job as JSON on standard input and the coordinator's
address in the environment. Writes one JSON line per size to standard output, or {"error": text} and status 1.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable

import attrs
import numpy as np

from fakegpu.cli._bandwidth.workload import Workload, decode
from fakegpu.dtypes import DType, ReduceOp
from fakegpu.nccl_ctypes import Comm, Config, Nccl, NcclError

SAMPLE = 3
_PARAMETER_BYTES = 1024


class Different(Exception):
    """The ranks were started with different parameters."""


@attrs.frozen
class Job:
    """What the launcher wants of one rank."""

    rank: int
    world_size: int
    session: str
    unique_id: str  # hex
    collective: str
    dtype: int
    op: int
    root: int
    sizes: list[int]
    warmup: int
    iterations: int
    in_place: bool
    check: bool
    compared: str  # JSON of what all ranks must agree on

    def workload(self, size: int) -> Workload:
        return Workload(self.collective, DType(self.dtype), ReduceOp(self.op), self.root, self.world_size, size)


def agree(comm: Comm, job: Job) -> None:
    """Exchange the parameters and name the flag, the ranks and the values that differ."""
    mine = np.zeros(_PARAMETER_BYTES, np.uint8)
    text = job.compared.encode()
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.zeros((job.world_size, _PARAMETER_BYTES), np.uint8)
    if job.collective == "all_gather":  # keeps the report's count of the measured collective exact
        comm.all_to_all(np.tile(mine, job.world_size), everyone.reshape(-1), mine.size)
    else:
        comm.all_gather(mine, everyone.reshape(-1))
    found = [json.loads(bytes(row).rstrip(b"\0")) for row in everyone]
    for flag in found[0]:
        values: dict = {}
        for rank, parameters in enumerate(found):
            values.setdefault(parameters[flag], []).append(rank)
        if len(values) > 1:
            sides = ", ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in values.items())
            raise Different(f"{flag} differs between the ranks of session '{job.session}': {sides}")


def operation(comm: Comm, work: Workload, rank: int, send: np.ndarray, recv: np.ndarray) -> Callable[[], None]:
    """The call to measure."""
    dtype, op, root, count = int(work.dtype), int(work.op), work.root, work.count
    common = {"count": count, "dtype": dtype}
    if work.collective == "send_recv":

        def ring() -> None:
            with comm.nccl.group():
                comm.send(send, (rank + 1) % work.world_size, **common)
                comm.recv(recv, (rank - 1) % work.world_size, **common)

        return ring
    call = getattr(comm, work.collective)
    if work.collective in ("all_reduce", "reduce_scatter"):
        return lambda: call(send, recv, op, **common)
    if work.collective == "reduce":
        return lambda: call(send, recv, root, op, **common)
    if work.collective in ("all_gather", "all_to_all"):
        return lambda: call(send, recv, **common)
    return lambda: call(send, recv, root, **common)


def in_place_buffers(work: Workload, rank: int, data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Input and output that overlap as NCCL defines it for the collective."""
    inputs, outputs = work.blocks(rank)
    whole = np.zeros(max(inputs, outputs) * work.count, work.dtype.numpy)
    block = slice(rank * work.count, (rank + 1) * work.count)
    send = whole[block] if outputs > inputs and inputs else whole[: inputs * work.count]
    recv = whole[block] if inputs > outputs and outputs else whole[: outputs * work.count]
    send[...] = data
    return send, recv


def measure(job: Job, comm: Comm, work: Workload, send: np.ndarray, recv: np.ndarray, data: np.ndarray) -> dict:
    """Warm up, time every iteration, check the last one."""
    issue = operation(comm, work, job.rank, send, recv)
    times = []
    for index in range(job.warmup + job.iterations):
        send[...] = data  # in place the last result lies there
        began = time.perf_counter_ns()
        issue()
        if index >= job.warmup:
            times.append((time.perf_counter_ns() - began) / 1e3)
    wrong = work.wrong(job.rank, recv) if job.check else 0
    return {"times_us": times, "wrong": wrong, "sample": decode(recv[:SAMPLE], work.dtype).tolist()}


def run_size(job: Job, comm: Comm, size: int) -> dict:
    work = job.workload(size)
    data = work.input(job.rank)
    recv = np.zeros(work.blocks(job.rank)[1] * work.count, work.dtype.numpy)
    result = {"size": size, **measure(job, comm, work, data.copy(), recv, data)}
    if job.in_place and work.collective != "send_recv":
        found = measure(job, comm, work, *in_place_buffers(work, job.rank, data), data)
        result |= {"in_place_us": found["times_us"], "in_place_wrong": found["wrong"]}
    return result


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher ends its ranks
    job = Job(**json.loads(sys.stdin.read()))
    comm = None
    try:
        nccl = Nccl()
        config = Config(commName=f"bandwidth session {job.session}"[:63])
        comm = nccl.init(job.world_size, bytes.fromhex(job.unique_id), job.rank, config)
        agree(comm, job)
        for size in job.sizes:
            print(json.dumps(run_size(job, comm, size)), flush=True)
        comm.destroy()
    except Different as error:
        # every rank finds the same; an abort would reach the others before their last bytes
        comm.destroy()
        return failed(error)
    except NcclError as error:
        if comm is not None:
            comm.abort()
        return failed(error)
    return 0


def failed(error: Exception) -> int:
    """Tell the launcher."""
    print(json.dumps({"error": str(error)}), flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
