"""Handlers of the frames that make and end communicators: id, init, split, shrink, grow, finalize, destroy, abort, revoke.

Each takes (registry, process, frame, body, now). What is allowed and who belongs together is decided in
membership.py; this file carries it out: members, handles, control segments, answers, report. Layer 4.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fakegpu._core import wire
from fakegpu._core.staging import ControlSegment
from fakegpu.communicator import Communicator
from fakegpu.errors import Status
from fakegpu.membership import FAIL_PARENT, NO_COLOR, READY, REFUSE, Gathering, Joiner
from fakegpu.operations import Failure
from fakegpu.peers import Member, Process, reply
from fakegpu.recorder import FailureEvent, InjectedFault, RecoveryEvent

if TYPE_CHECKING:
    from fakegpu.coordinator import Registry

log = logging.getLogger("fakegpu.coordinator")
_MS = 1_000_000


# ---- making ----


def unique_id(registry: Registry, process: Process, frame, body, now: int) -> None:
    process.send(wire.encode_unique_id(bytes=registry.membership.new_id(), request=frame.request))


def init(registry: Registry, process: Process, frame, body, now: int) -> None:
    if problem := _world_problem(registry, process, body.nranks):
        reply(process, frame.request, Status.WORLD, problem)
        return
    joiner = Joiner(process, frame.request, body.rank, body.timeout_ms * _MS, body.flags, body.device, body.name)
    carry_out(registry, registry.membership.init(joiner, body.unique_id, body.nranks, now), now)


def _world_problem(registry: Registry, process: Process, nranks: int) -> str:
    if nranks > registry.limits.ranks:
        return f"init: nranks {nranks}, limit {registry.limits.ranks}"
    world = registry.world_size
    first = process.world_size < 0 and not process.members and not process.former
    if world and (nranks > world or (first and nranks != world)):
        return f"init: a world of {nranks} ranks does not fit {registry.cluster_name}, which lists {world} ranks"
    return ""


def split(registry: Registry, process: Process, frame, body, now: int) -> None:
    if (entry := _parent(registry, process, frame)) is not None:
        comm, joiner = entry
        joiner.color, joiner.key = body.color, body.key
        _describe(joiner, body)
        carry_out(registry, registry.membership.split(comm, joiner, now), now)


def shrink(registry: Registry, process: Process, frame, body, now: int) -> None:
    if (entry := _parent(registry, process, frame)) is not None:
        comm, joiner = entry
        _describe(joiner, body)
        carry_out(registry, registry.membership.shrink(comm, joiner, body.exclude, now), now)


def grow(registry: Registry, process: Process, frame, body, now: int) -> None:
    parent = None
    if body.flags & wire.COMM_GROW_NEW:
        joiner = Joiner(process, frame.request, body.rank, 0, device=body.device)
    elif (entry := _parent(registry, process, frame)) is not None:
        parent, joiner = entry
    else:
        return
    if body.nranks > registry.limits.ranks:
        reply(process, frame.request, Status.WORLD, f"grow: nranks {body.nranks}, limit {registry.limits.ranks}")
        return
    _describe(joiner, body)
    carry_out(registry, registry.membership.grow(parent, joiner, body.unique_id, body.nranks, now), now)


def _parent(registry: Registry, process: Process, frame) -> tuple[Communicator, Joiner] | None:
    entry = registry.member(process, frame)
    if entry is None:
        name = wire.FRAME_NAMES[frame.type]
        reply(process, frame.request, Status.INVALID_USAGE, f"{name}: the parent communicator was destroyed")
        return None
    comm, rank = entry
    return comm, Joiner(process, frame.request, rank, 0, device=comm.members[rank].device)


def _describe(joiner: Joiner, body) -> None:
    joiner.timeout_ns, joiner.flags, joiner.name = body.timeout_ms * _MS, body.flags, body.name


def carry_out(registry: Registry, effects: list, now: int) -> None:
    """Do what membership decided."""
    for effect in effects:
        if effect[0] == READY:
            _made(registry, *effect[1:], now)
        elif effect[0] == REFUSE:
            _, joiner, status, text = effect
            reply(joiner.process, joiner.request, status, text)
            if status not in (Status.INVALID_ARGUMENT, Status.ABORTED):
                _record_refusal(registry, joiner, status, text)
        elif effect[0] == NO_COLOR:
            joiner = effect[1]
            joiner.process.send(wire.encode_comm_ready(request=joiner.request, rank=-1, members=[]))
        elif effect[0] == FAIL_PARENT:
            registry.apply(effect[1], effect[1].fail(effect[2]))
    if registry.membership.deadline < registry.deadline:
        registry.deadline = registry.membership.deadline


_SOURCES = {Status.MISSING_RANK: "timeout", Status.DEAD_RANK: "dead_rank", Status.MISMATCH: "mismatch"}


def _record_refusal(registry: Registry, joiner: Joiner, status: Status, text: str) -> None:
    source = _SOURCES.get(status, "client")
    rank = joiner.process.rank if joiner.process.rank >= 0 else joiner.rank
    if source == "timeout":
        registry.recorder.timeout(rank)
    registry.recorder.failure(FailureEvent(None, None, joiner.rank, rank, source, "init", int(status), text))
    log.warning("rank %d: %s", joiner.rank, text)


def _made(registry: Registry, comm: Communicator, joiners: list[Joiner], gathering: Gathering, now: int) -> None:
    """Register a communicator and tell its members."""
    registry.communicators[comm.id] = comm
    control = None
    if comm.shm:
        control = registry.controls[comm.id] = ControlSegment.create(comm.nranks, comm.id)
    beside = control if registry.transport == "unix" else None  # a descriptor does not travel over TCP: a path does
    named = wire.BufferRef(pid=os.getpid(), fd=control.fd, inode=control.inode, bytes=control.bytes) if control and not beside else None
    records = []
    for rank, joiner in enumerate(joiners):
        process, handle, global_rank = joiner.process, comm.handle(rank), comm.global_ranks[rank]
        comm.members[rank] = Member(process, handle, joiner.device)
        process.members[handle] = (comm, rank)
        records.append(wire.Member(global_rank=global_rank, node=process.node, device=joiner.device, pid=process.pid))
        registry.recorder.rank_joined(global_rank, process.host, process.pid, process.node, joiner.device)
    parent = gathering.parent
    registry.recorder.communicator_created(comm.id, comm.name, comm.global_ranks, parent.id if parent else None)
    if gathering.kind == "shrink":
        _recovered(registry, comm, gathering, now)
    for rank, joiner in enumerate(joiners):
        frame = wire.encode_comm_ready(
            request=joiner.request, comm=comm.id, member=comm.handle(rank), flags=wire.COMM_SHM if comm.shm else 0,
            nranks=comm.nranks, rank=rank, control_slots=comm.max_outstanding, name=comm.name, members=records,
            control=named,
        )  # fmt: skip
        joiner.process.send(frame, beside.fd if beside else None)
    registry.hooks.told("on_communicator", comm)


def _recovered(registry: Registry, comm: Communicator, gathering: Gathering, now: int) -> None:
    parent = gathering.parent
    registry.excuse(parent)
    parent.excluded |= gathering.excluded
    registry.recorder.recovery(
        RecoveryEvent(
            parent_comm_id=parent.id,
            new_comm_id=comm.id,
            seqno=parent.failure.seq if parent.failure else None,
            abort_parent=gathering.abort,
            excluded_ranks=tuple(parent.global_ranks[rank] for rank in sorted(gathering.excluded)),
            surviving_ranks=comm.global_ranks,
            recovery_time_us=(now - gathering.first_ns) / 1000,
        )
    )


# ---- ending ----


def finalize(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = registry.member(process, frame)
    if entry is None:
        reply(process, frame.request, Status.OK)
        return
    comm, rank = entry
    registry.apply(comm, comm.finalize(rank, frame.request, process.timeout_ns, now))
    registry.watch(comm)


def destroy(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = _take(registry, process, frame)
    if entry is not None:
        comm, rank = entry
        registry.apply(comm, comm.leave(rank, "destroyed its handle"))
        registry.forget_empty(comm)
    reply(process, frame.request, Status.OK)


def abort(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = _take(registry, process, frame)
    if entry is not None:
        comm, rank = entry
        known = body.status in Status._value2member_map_ and body.status >= Status.MISMATCH
        if body.status == Status.INJECTED:
            comm.left.setdefault(rank, "aborted")
            registry.recorder.injected(
                InjectedFault("fail", body.text, comm.id, global_rank=comm.global_ranks[rank])
            )
            failure = Failure(Status.INJECTED, f"{comm.title}: {body.text}", "injected", rank=rank)
            registry.apply(comm, comm.fail(failure))
        else:
            status = Status(body.status) if known else Status.ABORTED
            registry.apply(comm, comm.abort(rank, status, body.text, registry.edges))
        registry.forget_empty(comm)
    reply(process, frame.request, Status.OK)


def revoke(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = registry.member(process, frame)
    if entry is not None:
        comm, rank = entry
        registry.apply(comm, comm.revoke(rank, registry.edges))
    reply(process, frame.request, Status.OK)


def _take(registry: Registry, process: Process, frame) -> tuple[Communicator, int] | None:
    """Give a member's handle up."""
    entry = registry.member(process, frame)
    if entry is not None:
        del process.members[frame.member]
        process.former.add(frame.member)
        entry[0].members[entry[1]] = None
    return entry


HANDLERS = {
    wire.T_UNIQUE_ID: unique_id,
    wire.T_COMM_INIT: init,
    wire.T_COMM_SPLIT: split,
    wire.T_COMM_SHRINK: shrink,
    wire.T_COMM_GROW: grow,
    wire.T_COMM_FINALIZE: finalize,
    wire.T_COMM_DESTROY: destroy,
    wire.T_COMM_ABORT: abort,
    wire.T_COMM_REVOKE: revoke,
}
