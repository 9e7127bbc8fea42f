"""The registry of processes and communicators, and a table {frame type: handler}. No sockets, no clock of its own.

The server gives it decoded frames and the time; it answers through each process's `send`. What ranks submit goes to
communicator.py, requests to make communicators to membership.py, payloads to relay.py, and what happened to the
recorder. Own policies hang in as hooks: callables that are told and may raise a StatusError to refuse (on_join,
on_operation). Layer 4.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from fakegpu import admission, formation
from fakegpu._core import wire
from fakegpu._core.staging import ControlSegment
from fakegpu.communicator import COMPLETE, FAILED, FINISHED, GO, NEVER, OP_EAGER, REFUSED, REPLY, START, Communicator
from fakegpu.dtypes import KIND_LABELS, SIZES, Kind
from fakegpu.errors import Status, StatusError, error_for
from fakegpu.injection import Injector
from fakegpu.membership import Membership
from fakegpu.operations import Failure
from fakegpu.pace import Pacer
from fakegpu.peers import Hooks, Limits, Process, boot_identity, reply
from fakegpu.recorder import FailureEvent, Recorder
from fakegpu.relay import Relay
from fakegpu.wording import operation_text

log = logging.getLogger("fakegpu.coordinator")
_MS = 1_000_000
_SEND = int(Kind.SEND)
# how much later the peers of a rank that aborts hear of it: on hardware they would not at all, so a time-out of their
# own that is due at the same moment (torch gives all ranks the same) must be able to come first
ABORT_NOTICE_NS = 500 * _MS


class Registry:
    """All processes and communicators of one coordinator; see the module's text."""

    def __init__(
        self,
        recorder: Recorder,
        in_thread: Callable,
        *,
        transport: str = "unix",
        world_size: int = 0,
        cluster_name: str = "",
        chunk_bytes: int = 1 << 20,
        window: int = 4,
        eager_bytes: int = 1 << 20,
        token: str = "",
        limits: Limits | None = None,
        hooks: Hooks | None = None,
        pacer: Pacer | None = None,
        injector: Injector | None = None,
        same_host_shm: bool = False,
    ) -> None:
        self.pacer, self.injector = pacer, injector
        self._notices: list[tuple[int, Communicator, Failure, int]] = []  # (due, whom an abort is still to be told)
        self.recorder, self.limits, self.hooks = recorder, limits or Limits(), hooks or Hooks()
        self.job = secrets.randbits(63) | 1
        self.transport = transport
        self.shared = transport == "unix" or same_host_shm  # some of its communicators may use shared memory
        self.world_size, self.cluster_name, self.token = world_size, cluster_name, token
        self.chunk_bytes, self.window, self.eager_bytes = chunk_bytes, window, eager_bytes
        self.membership = Membership(self.job, self.shared, boot_identity() if transport == "tcp" else None)
        self.relay = Relay(chunk_bytes, window, self.limits.buffered_bytes, in_thread)
        self.processes: set[Process] = set()
        self.hosts: dict[str, int] = {}  # node numbers of ranks whose launcher gave none
        self.communicators: dict[int, Communicator] = {}
        self.controls: dict[int, ControlSegment] = {}
        self.deadline = NEVER  # when `expire` has to be called, or earlier
        self._now = 0  # time of the frame being handled
        self.operations = self.failures = 0
        self._abandoned: dict[int, set[int]] = {}  # failed communicator: global ranks that ended without cleaning it up
        self._excused: set[int] = set()  # failed communicators that need no cleaning up: shrunk, or nobody was waiting
        self.stopping = False
        self._handlers = {**admission.HANDLERS, **formation.HANDLERS, wire.T_SUBMIT: _submit, wire.T_DONE: _done}

    # ---- called by the server ----

    def handle(self, process: Process, frame, body, now: int) -> None:
        """Act on one frame (not DATA). A StatusError: the process broke the protocol and has to go."""
        self._now = now
        handler = self._handlers.get(frame.type)
        if handler is None:
            raise error_for(Status.PROTOCOL, f"{wire.FRAME_NAMES[frame.type]}: only the coordinator sends this frame")
        if process.state != "ready" and not admission.allowed_early(self, process, frame.type):
            name = wire.FRAME_NAMES[frame.type]
            want = "AUTH" if process.state == "challenged" else "HELLO"
            raise error_for(Status.AUTH if want == "AUTH" else Status.PROTOCOL, f"{name}: expected {want} first")
        handler(self, process, frame, body, now)

    def reserve(self, process: Process, handle: int, opid: int, number: int, size: int):
        """Where a DATA frame's payload goes, or None to skip it."""
        entry = process.members.get(handle)
        if entry is None:
            if handle in process.former:
                return None
            raise error_for(Status.PROTOCOL, f"DATA: member {handle}: this process has no such handle")
        comm, rank = entry
        if comm.failure is not None:
            return None
        try:
            return self.relay.reserve(comm, rank, handle, opid, number, size)
        except StatusError as error:
            self.apply(comm, comm.fail(Failure(error.status, error.text, "protocol", rank=rank)))
            return None

    def gone(self, process: Process, how: str, now: int) -> None:
        """A process ended without BYE: its ranks are dead."""
        if process.state == "ended":
            return
        process.state = "ended"
        self.processes.discard(process)
        members, process.members = process.members, {}
        for comm, rank in members.values():
            if control := self.controls.get(comm.id):
                control.set_dead(rank)
            comm.members[rank] = None
        for comm, rank in members.values():
            if comm.failure is None and comm.idle:
                self._excused.add(comm.id)
            text = f"rank {rank} (global rank {comm.global_ranks[rank]}, {process.where}) died: {how}"
            self.apply(comm, comm.die(rank, text, self.edges))
            self.abandon(comm, rank)
            self.forget_empty(comm)
        formation.carry_out(self, self.membership.leave(process, f"{process.where}: {how}"), now)

    def abandon(self, comm: Communicator, rank: int) -> None:
        """A process ended while it held a handle of a failed communicator: it did not deal with the error."""
        if comm.failure is not None and comm.id not in self._excused:
            self._abandoned.setdefault(comm.id, set()).add(comm.global_ranks[rank])

    def excuse(self, comm: Communicator) -> None:
        """A failed communicator was dealt with: shrunk."""
        self._excused.add(comm.id)
        self._abandoned.pop(comm.id, None)

    def restarted(self, rank: int) -> None:
        """A global rank is there again after an elastic restart: it gets another chance."""
        for ranks in self._abandoned.values():
            ranks.discard(rank)

    @property
    def unhandled(self) -> int:
        """Failed communicators that some rank ended without destroying, aborting or shrinking, and did not restart."""
        return sum(bool(ranks) for ranks in self._abandoned.values())

    def expire(self, now: int) -> None:
        """Fail what is overdue; called at `deadline`."""
        self._now = now
        connected = sum(process.role == wire.ROLE_RANK for process in self.processes)
        formation.carry_out(self, self.membership.expire(now, connected), now)
        for comm in list(self.communicators.values()):
            if comm.deadline <= now:
                self.apply(comm, comm.expire(now, self.edges))
        comms = (c.deadline for c in self.communicators.values())
        self.deadline = min(self.membership.deadline, min(comms, default=NEVER))
        if self.injector is not None:
            for comm, effects in self.injector.due(now):
                self._pace(comm, effects)
                self.watch(comm)
            self.deadline = min(self.deadline, self.injector.deadline)
        if self.pacer is not None:
            for comm, effects in self.pacer.due(now):
                self._carry_out(comm, effects)
            self.deadline = min(self.deadline, self.pacer.deadline)
        notices, self._notices = self._notices, []
        for due, comm, failure, rank in notices:
            self._notify(comm, failure, rank, due if now < due else 0)

    def close(self) -> None:
        """Give shared memory back; the loop has ended."""
        for control in self.controls.values():
            control.close()
        self.controls.clear()

    def flush_waits(self) -> None:
        """Hand the time that ranks spent waiting to the recorder."""
        for comm in self.communicators.values():
            self._flush_waits(comm)

    def status(self) -> dict:
        """What --status shows."""
        ranks = sorted(p.rank for p in self.processes if p.role == wire.ROLE_RANK and p.rank >= 0)
        return {
            "job": f"{self.job:016x}",
            "transport": self.transport,
            "cluster": self.cluster_name or None,
            "world_size": self.world_size or None,
            "connections": len(self.processes),
            "ranks": ranks,
            "communicators": [
                {
                    "id": comm.id,
                    "name": comm.name,
                    "global_ranks": list(comm.global_ranks),
                    "failure": comm.failure.text if comm.failure else None,
                    "waiting": comm.waiting,
                }
                for comm in self.communicators.values()
            ],
            "gathering": self.membership.waiting,
            "operations": self.operations,
            "failures": self.failures,
            "unhandled_failures": self.unhandled,
            "buffered_bytes": self.relay.pool.used_bytes,
        }

    # ---- communicators ----

    def member(self, process: Process, frame) -> tuple[Communicator, int] | None:
        """The communicator and rank of a frame's handle; None when the process gave it up before."""
        entry = process.members.get(frame.member)
        if entry is None and frame.member not in process.former:
            name = wire.FRAME_NAMES[frame.type]
            raise error_for(Status.PROTOCOL, f"{name}: member {frame.member}: this process has no such handle")
        return entry

    def watch(self, comm: Communicator) -> None:
        """A communicator's deadline may have come nearer."""
        if comm.deadline < self.deadline:
            self.deadline = comm.deadline

    def apply(self, comm: Communicator, effects: list) -> None:
        """Carry a communicator's effects out, but for what an injected fault keeps back."""
        if self.injector is not None:
            effects = self.injector.hold(comm, effects, self._now)
            self.deadline = min(self.deadline, self.injector.deadline)
        self._pace(comm, effects)

    def _pace(self, comm: Communicator, effects: list) -> None:
        """With pacing, what starts an operation waits until it is due."""
        if self.pacer is not None:
            effects = self.pacer.hold(comm, effects)
            self.deadline = min(self.deadline, self.pacer.deadline)
        self._carry_out(comm, effects)

    def _carry_out(self, comm: Communicator, effects: list) -> None:
        """GO frames first, one per rank, then the rest in order."""
        goes: dict[int, list] = {}
        go = None
        for effect in effects:
            if effect[0] == GO:
                _, rank, opid, flags, peer, count, peer_opid, buffer = effect
                if peer >= 0:
                    go = wire.Go(opid=opid, flags=flags, peer=peer, count=count, peer_opid=peer_opid, buffer=buffer)
                elif go is None or go.opid != opid or go.flags != flags or go.count != count:
                    go = wire.Go(opid=opid, flags=flags, count=count)  # a collective's ranks mostly share it
                if rank in goes:
                    goes[rank].append(go)
                else:
                    goes[rank] = [go]
        for rank, records in goes.items():
            if (member := comm.members[rank]) is not None:
                member.process.send(wire.encode_go(records, member=member.handle))
        for effect in effects:
            code = effect[0]
            if code == START:
                self.relay.start(comm, effect[1])
            elif code == FINISHED:
                self._finished(effect[1])
            elif code != GO:
                self._apply_rare(comm, effect)

    def _apply_rare(self, comm: Communicator, effect: tuple) -> None:
        if effect[0] == FAILED:
            self._failed(comm, effect[1])
            return
        member = comm.members[effect[1]]
        if member is None:
            return
        if effect[0] == COMPLETE:
            record = wire.Complete(opid=effect[2], status=effect[3])
            member.process.send(wire.encode_complete([record], member=member.handle))
        elif effect[0] == REFUSED:
            _, _, opid, status, text = effect
            member.process.send(wire.encode_error(status=status, opid=opid, text=text, member=member.handle))
        elif effect[0] == REPLY:
            _, _, request, status, text = effect
            reply(member.process, request, status, text, member.handle)

    def _finished(self, event) -> None:
        self.operations += 1
        self.recorder.operation(event)
        if self.hooks.on_finished is not None:
            self.hooks.told("on_finished", event)

    def _failed(self, comm: Communicator, failure: Failure) -> None:
        """Tell every member and the recorder, once."""
        self.failures += 1
        self.relay.drop(comm)
        if control := self.controls.get(comm.id):
            control.set_abort(failure.status)
        later = self._now + ABORT_NOTICE_NS if failure.source == "abort" else 0
        for rank in range(comm.nranks):
            self._notify(comm, failure, rank, 0 if rank == failure.rank else later)
        ranks = comm.global_ranks
        for rank in failure.waiting:
            self.recorder.timeout(ranks[rank])
        self.recorder.failure(
            FailureEvent(
                comm_id=comm.id,
                seqno=failure.seq,
                local_rank=failure.rank,
                global_rank=None if failure.rank is None else ranks[failure.rank],
                source="abort" if failure.source == "revoke" else failure.source,
                operation=failure.operation,
                error_code=int(failure.status),
                error_detail=failure.text,
                observed_ranks=tuple(ranks[rank] for rank in failure.observed),
                attempted_payload_bytes=failure.payload_bytes,
            )
        )
        log.warning("%s", failure.text)
        self.hooks.told("on_failure", comm, failure)
        formation.carry_out(self, self.membership.parent_failed(comm), 0)

    def _notify(self, comm: Communicator, failure: Failure, rank: int, due: int) -> None:
        """Send a member the failure, at `due` (monotonic ns) or at once (0)."""
        member = comm.members[rank]
        if member is None:
            return
        if due:
            self._notices.append((due, comm, failure, rank))
            self.deadline = min(self.deadline, due)
        else:
            member.process.send(wire.encode_error(status=failure.status, text=failure.text, member=member.handle))

    def edges(self) -> dict[int, dict[int, str]]:
        """Who waits for whom, over all communicators: global rank -> {global rank: text}."""
        edges: dict[int, dict[int, str]] = {}
        for comm in self.communicators.values():
            for rank, other, text in comm.waits():
                edges.setdefault(rank, {}).setdefault(other, text)
        return edges

    def forget_empty(self, comm: Communicator) -> None:
        """Drop a communicator that nobody holds a handle of."""
        if any(comm.members) or comm.id not in self.communicators:
            return
        del self.communicators[comm.id]
        self._flush_waits(comm)
        self.relay.drop(comm)
        self.membership.forget(comm)
        if control := self.controls.pop(comm.id, None):
            control.close()

    def _flush_waits(self, comm: Communicator) -> None:
        for rank, waited in enumerate(comm.wait_ns):
            if waited:
                self.recorder.wait(comm.global_ranks[rank], waited / _MS)
                comm.wait_ns[rank] = 0


# ---- the hot path: what ranks submit, and that they are done ----


def _submit(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = registry.member(process, frame)
    if entry is None:
        return
    comm, rank = entry
    ops = body.ops
    if registry.hooks.on_operation is not None and _refused_by_hook(registry, comm, rank, ops):
        return
    if registry.limits.operation_bytes and _too_large(registry, comm, rank, ops):
        return
    if registry.injector is not None:
        hit = registry.injector.submitted(comm, rank, body, now, lambda *taken: _take(registry, *taken))
        if hit is not None:
            registry.apply(comm, hit)
            return
    effects = _take(registry, comm, rank, body, now)
    if effects:
        registry.apply(comm, effects)
    registry.watch(comm)


def _take(registry: Registry, comm: Communicator, rank: int, body, now: int) -> list:
    """Effects of a submission that nothing keeps back."""
    ops = body.ops
    if len(ops) > 1:
        registry.recorder.group_prepared(comm.global_ranks[rank])
    if not comm.shm and comm.failure is None:
        for op in ops:
            if op.kind == _SEND and op.flags & OP_EAGER and 0 <= op.root < comm.nranks:
                registry.relay.eager(comm, rank, op)
    return comm.submit(rank, ops, body.timeout_ms * _MS, now)


def _refused_by_hook(registry: Registry, comm: Communicator, rank: int, ops: list) -> bool:
    try:
        registry.hooks.on_operation(comm, rank, ops)
    except StatusError as error:
        text = f"{comm.title}: rank {rank}: {error.text}"
        registry.apply(comm, comm.fail(Failure(error.status, text, "injected", rank=rank)))
        return True
    return False


def _too_large(registry: Registry, comm: Communicator, rank: int, ops: list) -> bool:
    limit = registry.limits.operation_bytes
    for op in ops:
        size = op.count * SIZES[op.dtype]
        if size > limit and comm.failure is None:
            text = f"{comm.title}: rank {rank} submitted {operation_text(op)}, {size} bytes; the operation's limit is {limit}"
            failure = Failure(Status.LIMIT, text, "client", op.seq, KIND_LABELS[op.kind], rank, payload_bytes=size)
            registry.apply(comm, comm.fail(failure))
            return True
    return False


def _done(registry: Registry, process: Process, frame, body, now: int) -> None:
    entry = registry.member(process, frame)
    if entry is None:
        return
    comm, rank = entry
    for done in body:
        effects = comm.done(rank, done.opid, done.status, done.exec_ns, now)
        if effects:
            registry.apply(comm, effects)
