"""Random NCCL programs: what they are, how a rank runs one, and what every rank has to get. See test_nccl_fuzz.py.

A program is a list of steps. A step is a split of a communicator, or operations on one communicator (a group when they
are several). At most one step is wrong: one rank does something else than the others, or nothing.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np
from hypothesis import strategies as st
from nccl_reference import CODE_TYPES, DTYPES, IN_BLOCKS, KINDS, OPS, OUT_BLOCKS, REDUCING, expected

ROOTED = ("reduce", "broadcast", "gather", "scatter")
WAYS = ("count", "dtype", "kind", "op", "root", "missing")


# ---- what a program is ----


@st.composite
def operations(draw) -> dict:
    kind = draw(st.sampled_from((*KINDS, "ring")))
    plain = sorted(set(OPS) - {"premulsum"})
    return {
        "kind": kind, "dtype": DTYPES[draw(st.sampled_from(sorted(DTYPES)))],
        "op": OPS[draw(st.sampled_from(plain))] if kind in REDUCING else 0,
        "count": draw(st.one_of(st.integers(0, 9), st.integers(0, 300))), "root": draw(st.integers(0, 7)),
        "in_place": draw(st.booleans()), "device": draw(st.booleans()), "seed": draw(st.integers(0, 2**20)),
    }  # fmt: skip


@st.composite
def programs(draw, nranks: int) -> dict:
    """Communicators are lists of global ranks, in their order."""
    comms, steps = {"world": list(range(nranks))}, []
    for number in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(comms)))
        if draw(st.integers(0, 3)) == 0 and len(comms) < 4:
            colors = draw(st.lists(st.integers(-1, 2), min_size=nranks, max_size=nranks))
            keys = draw(st.lists(st.integers(-3, 3), min_size=nranks, max_size=nranks))
            steps.append({"split": name, "name": f"split{number}", "colors": colors, "keys": keys})
            for color in sorted(set(colors) - {-1}):
                chosen = [rank for rank in comms[name] if colors[rank] == color]
                if chosen:
                    place = {rank: i for i, rank in enumerate(comms[name])}
                    comms[f"split{number}.{color}"] = sorted(chosen, key=lambda rank: (keys[rank], place[rank]))
        else:
            steps.append({"comm": name, "ops": draw(st.lists(operations(), min_size=1, max_size=3))})
    program = {"comms": comms, "steps": steps, "wrong": None}
    chances = [i for i, step in enumerate(steps) if "ops" in step and len(comms[step["comm"]]) > 1]
    if chances and draw(st.integers(0, 3)) == 0:
        step = draw(st.sampled_from(chances))
        how = draw(st.sampled_from(WAYS if draw(st.integers(0, 4)) == 0 else WAYS[:-1]))
        program["wrong"] = {"step": step, "rank": draw(st.sampled_from(comms[steps[step]["comm"]])), "how": how,
                            "op": draw(st.integers(0, len(steps[step]["ops"]) - 1))}  # fmt: skip
    if not differs(program):
        program["wrong"] = None  # that way makes no difference to that operation
    return program


def spoiled(op: dict, how: str, nranks: int) -> dict | None:
    """The operation as the wrong rank does it; None: that way makes no difference to this operation."""
    changed = dict(op)
    if op["kind"] == "ring" and op["root"] % nranks == 0:
        return None  # a rank that sends to itself disagrees with nobody
    if how == "count":
        changed["count"] += 1
    elif how == "dtype":
        changed["dtype"] = DTYPES["int32"] if op["dtype"] != DTYPES["int32"] else DTYPES["fp32"]
        if op["kind"] == "ring" and not op["count"]:
            return None
    elif how == "kind" and op["kind"] != "ring":
        changed["kind"] = "all_gather" if op["kind"] != "all_gather" else "broadcast"
        changed["in_place"] = False
    elif how == "op" and op["kind"] in REDUCING:
        changed["op"] = OPS["max"] if op["op"] != OPS["max"] else OPS["sum"]
    elif how == "root" and op["kind"] in ROOTED:
        changed["root"] += 1
    else:
        return None
    return changed


def differs(program: dict) -> bool:
    """Whether the wrong step is really wrong."""
    wrong = program["wrong"]
    if wrong is None or wrong["how"] == "missing":
        return wrong is not None
    step = program["steps"][wrong["step"]]
    return spoiled(step["ops"][wrong["op"]], wrong["how"], len(program["comms"][step["comm"]])) is not None


# ---- data and results ----


def data_of(op: dict, nranks: int) -> list[np.ndarray]:
    """Every rank's input, random bits."""
    random = np.random.default_rng([op["seed"], nranks, op["count"]])
    codes = np.dtype(CODE_TYPES[op["dtype"]])
    size = op["count"] * (nranks if op["kind"] in IN_BLOCKS else 1)
    return [np.frombuffer(random.bytes(size * codes.itemsize), codes).copy() for _ in range(nranks)]


def results_of(op: dict, nranks: int) -> list:
    """What each rank's output has to be; None: not written."""
    data = data_of(op, nranks)
    if op["kind"] == "ring":
        shift = op["root"] % nranks
        return [data[(rank - shift) % nranks] for rank in range(nranks)]
    return expected(op["kind"], data, op["dtype"], op["op"], op["root"] % nranks, op["count"])


# ---- a rank's side ----


def run_program(ctx, program: dict) -> dict:
    """Outputs by (step, operation), and the error that ended the program, if any: {"outputs", "error": (step, text)}."""
    from fakegpu.nccl_ctypes import NcclError

    comms = {"world": ctx.comms["world"]}
    outputs, error = {}, None
    for number, step in enumerate(program["steps"]):
        wrong = program["wrong"] if program["wrong"] and program["wrong"]["step"] == number else None
        mine = wrong is not None and wrong["rank"] == ctx.rank
        try:
            if "split" in step:
                _split(ctx, comms, step)
            elif mine and wrong["how"] == "missing":
                while not comms[step["comm"]].async_error():  # stays away until the others have given up
                    time.sleep(0.005)
            elif step["comm"] in comms:
                ops = step["ops"]
                if mine:
                    changed = spoiled(ops[wrong["op"]], wrong["how"], comms[step["comm"]].nranks)
                    ops = [changed if i == wrong["op"] else op for i, op in enumerate(ops)]
                for i, output in enumerate(_operations(ctx, comms[step["comm"]], ops)):
                    outputs[number, i] = output
        except NcclError as failure:
            error = (number, str(failure))
        if wrong and not error and not mine and step["comm"] in comms:
            error = (number, _later_error(comms[step["comm"]]))
        if error or wrong:
            break
    ctx.comms.update(comms)
    return {"outputs": outputs, "error": error}


def _later_error(comm) -> str:
    """Eager sends complete without their receive: such a rank hears of the mistake when the communicator fails."""
    limit = time.monotonic() + 10
    while not comm.async_error() and time.monotonic() < limit:
        time.sleep(0.005)
    return comm.last_error() if comm.async_error() else ""


def end_program(ctx, failed: bool) -> None:
    """Only when every rank has ended its program: whoever leaves early would be the others' error."""
    while ctx.comms:
        comm = ctx.comms.popitem()[1]
        comm.abort() if failed else comm.destroy()


def _split(ctx, comms: dict, step: dict) -> None:
    parent = comms.get(step["split"])
    if parent is not None:
        color = step["colors"][ctx.rank]
        child = parent.split(color, step["keys"][ctx.rank])
        if child is not None:
            comms[f"{step['name']}.{color}"] = child


def _operations(ctx, comm, ops: list[dict]) -> list[np.ndarray]:
    import nccl_bodies as bodies

    buffers, outs, calls = bodies.Buffers(ctx, ops[0]["device"]), [], []
    try:
        for op in ops:
            mine = data_of(op, comm.nranks)[comm.rank]
            count, root = op["count"], op["root"] % comm.nranks
            blocks = comm.nranks if op["kind"] in OUT_BLOCKS else 1
            out = buffers.array(blocks * count * mine.dtype.itemsize, mine.dtype)
            if op["in_place"] and op["kind"] != "ring":
                send, out = bodies.place(op["kind"], buffers, mine, out, comm.rank, root, count)
            else:
                send = buffers.array(mine.nbytes, mine.dtype)
                send[:] = mine
            outs.append(out)
            calls.append((op, send, out, root))
        if len(calls) > 1 or calls[0][0]["kind"] == "ring":
            with ctx.nccl.group():
                for call in calls:
                    _call(comm, *call)
        else:
            _call(comm, *calls[0])
        return [np.array(out) for out in outs]
    finally:
        buffers.free()


def _call(comm, op: dict, send, out, root: int) -> None:
    import nccl_bodies as bodies

    if op["kind"] == "ring":
        shift = op["root"] % comm.nranks
        comm.send(send, (comm.rank + shift) % comm.nranks, op["count"], op["dtype"])
        comm.recv(out, (comm.rank - shift) % comm.nranks, op["count"], op["dtype"])
    else:
        bodies.call(comm, op["kind"], send, out, op["dtype"], op["op"], root, op["count"])


def resources(ctx) -> dict:
    """Descriptors by what they are, and threads, of this process."""
    return process_resources()


def process_resources() -> dict:
    found = {"threads": len(os.listdir("/proc/self/task")), "python_threads": threading.active_count()}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        kind = target.split(":")[0] if not target.startswith("/") else target.split(" ")[0].rstrip("0123456789")[:24]
        found[kind] = found.get(kind, 0) + 1
    return found
