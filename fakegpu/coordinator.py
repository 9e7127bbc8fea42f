"""The registry of processes and communicators, and a table {frame type: handler}. No sockets, no clock of its own.

The server gives it decoded frames and the time; it answers through each process's `send`. What ranks submit goes to
communicator.py, requests to make communicators to membership.py, payloads to relay.py, and what happened to the
recorder. Own policies hang in as hooks: callables that are told and may raise a StatusError to refuse (on_join,
on_operation). Layer 4.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Callable

import attrs

from fakegpu._core import wire
from fakegpu._core.staging import ControlSegment
from fakegpu.communicator import COMPLETE, FAILED, FINISHED, GO, NEVER, OP_EAGER, REFUSED, REPLY, START, Communicator
from fakegpu.dtypes import Kind
from fakegpu.errors import Status, StatusError, error_for
from fakegpu.membership import FAIL_PARENT, NO_COLOR, READY, REFUSE, Joiner, Membership
from fakegpu.operations import Failure
from fakegpu.recorder import FailureEvent, Recorder, RecoveryEvent
from fakegpu.relay import Relay

log = logging.getLogger("fakegpu.coordinator")
_MS = 1_000_000
_SEND = int(Kind.SEND)
_MAX_TIMEOUT_MS = 0xFFFFFFFF


@attrs.frozen
class Limits:
    """What one coordinator accepts."""

    connections: int = 4096
    ranks: int = wire.MAX_RANKS
    buffered_bytes: int = 4 << 30  # payload held for all operations together
    output_bytes: int = 256 << 20  # control frames queued for one process that does not read


@attrs.frozen
class Hooks:
    """Own policies, called in the event loop's thread; a StatusError from the first two refuses."""

    on_join: Callable | None = None  # (Process): a rank said hello
    on_operation: Callable | None = None  # (Communicator, rank, [Op]): a rank submitted; an error fails the communicator
    on_communicator: Callable | None = None  # (Communicator): made
    on_finished: Callable | None = None  # (OperationEvent)
    on_failure: Callable | None = None  # (Communicator, Failure)


@attrs.define(eq=False)
class Member:
    """How a communicator's rank is reached."""

    process: Process
    handle: int
    device: int


class Process:
    """One connected process: what it said in HELLO and the members it holds."""

    def __init__(self, send: Callable, send_data: Callable, peer: str = "", privileged: bool = True) -> None:
        self.send = send  # (frame: bytes, fd: int | None = None)
        self.send_data = send_data  # ([buffers], owner): owner.release() when all bytes have left
        self.peer, self.privileged = peer, privileged
        self.state = "new"  # new, challenged, ready, ended
        self.role = self.pid = self.timeout_ns = 0
        self.rank = self.world_size = self.node = self.generation = -1
        self.host = self.boot_id = self.session = self.program = ""
        self.challenge = b""
        self.members: dict[int, tuple[Communicator, int]] = {}
        self.former: set[int] = set()  # handles it had: frames on their way are ignored
        self.rank_of_device: dict[int, int] = {}

    @property
    def where(self) -> str:
        """ "pid 123 on host"."""
        return f"pid {self.pid} on {self.host or self.peer or 'an unknown host'}"


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
    ) -> None:
        self.recorder, self.limits, self.hooks = recorder, limits or Limits(), hooks or Hooks()
        self.job = secrets.randbits(63) | 1
        self.shared = transport == "unix"
        self.world_size, self.cluster_name, self.token = world_size, cluster_name, token
        self.chunk_bytes, self.window, self.eager_bytes = chunk_bytes, window, eager_bytes
        self.membership = Membership(self.job, self.shared)
        self.relay = Relay(chunk_bytes, window, self.limits.buffered_bytes, in_thread)
        self.processes: set[Process] = set()
        self.communicators: dict[int, Communicator] = {}
        self.controls: dict[int, ControlSegment] = {}
        self.deadline = NEVER  # when `expire` has to be called, or earlier
        self.operations = self.failures = 0
        self._abandoned: dict[int, set[int]] = {}  # failed communicator: global ranks that ended without cleaning it up
        self._excused: set[int] = set()  # failed communicators that need no cleaning up: shrunk, or nobody was waiting
        self.stopping = False
        self._handlers = {
            wire.T_SUBMIT: self._submit,
            wire.T_DONE: self._done,
            wire.T_HELLO: self._hello,
            wire.T_AUTH: self._auth,
            wire.T_UNIQUE_ID: self._unique_id,
            wire.T_COMM_INIT: self._init,
            wire.T_COMM_SPLIT: self._split,
            wire.T_COMM_SHRINK: self._shrink,
            wire.T_COMM_GROW: self._grow,
            wire.T_COMM_FINALIZE: self._finalize,
            wire.T_COMM_DESTROY: self._destroy,
            wire.T_COMM_ABORT: self._abort,
            wire.T_COMM_REVOKE: self._revoke,
            wire.T_PING: self._ping,
            wire.T_STATUS: self._status,
            wire.T_SHUTDOWN: self._shutdown,
            wire.T_BYE: self._bye,
            wire.T_NOTE: self._note,
            wire.T_QUERY: self._query,
        }

    # ---- called by the server ----

    def handle(self, process: Process, frame, body, now: int) -> None:
        """Act on one frame (not DATA). A StatusError: the process broke the protocol and has to go."""
        handler = self._handlers.get(frame.type)
        if handler is None:
            raise error_for(Status.PROTOCOL, f"{wire.FRAME_NAMES[frame.type]}: only the coordinator sends this frame")
        if process.state != "ready" and not self._allowed_early(process, frame.type):
            name = wire.FRAME_NAMES[frame.type]
            want = "AUTH" if process.state == "challenged" else "HELLO"
            raise error_for(Status.AUTH if want == "AUTH" else Status.PROTOCOL, f"{name}: expected {want} first")
        handler(process, frame, body, now)

    def _allowed_early(self, process: Process, kind: int) -> bool:
        if kind == wire.T_PING:
            return True
        if process.state == "challenged":
            return kind == wire.T_AUTH
        return kind == wire.T_HELLO or (not self.token and kind in (wire.T_STATUS, wire.T_SHUTDOWN, wire.T_BYE))

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
            self._apply(comm, comm.fail(Failure(error.status, error.text, "protocol", rank=rank)))
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
            self._apply(comm, comm.die(rank, text))
            self._abandon(comm, rank)
            self._forget_empty(comm)
        self._outcome(self.membership.leave(process, f"{process.where}: {how}"), now)

    def _abandon(self, comm: Communicator, rank: int) -> None:
        """A process ended while it held a handle of a failed communicator: it did not deal with the error."""
        if comm.failure is not None and comm.id not in self._excused:
            self._abandoned.setdefault(comm.id, set()).add(comm.global_ranks[rank])

    @property
    def unhandled(self) -> int:
        """Failed communicators that some rank ended without destroying, aborting or shrinking, and did not restart."""
        return sum(bool(ranks) for ranks in self._abandoned.values())

    def expire(self, now: int) -> None:
        """Fail what is overdue; called at `deadline`."""
        self._outcome(self.membership.expire(now, sum(p.role == wire.ROLE_RANK for p in self.processes)), now)
        for comm in list(self.communicators.values()):
            if comm.deadline <= now:
                self._apply(comm, comm.expire(now, self._edges))
        comms = (c.deadline for c in self.communicators.values())
        self.deadline = min(self.membership.deadline, min(comms, default=NEVER))

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
            "transport": "unix" if self.shared else "tcp",
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
                }
                for comm in self.communicators.values()
            ],
            "operations": self.operations,
            "failures": self.failures,
            "unhandled_failures": self.unhandled,
            "buffered_bytes": self.relay.pool.used_bytes,
        }

    # ---- operations ----

    def _member(self, process: Process, frame) -> tuple[Communicator, int] | None:
        entry = process.members.get(frame.member)
        if entry is None and frame.member not in process.former:
            name = wire.FRAME_NAMES[frame.type]
            raise error_for(Status.PROTOCOL, f"{name}: member {frame.member}: this process has no such handle")
        return entry

    def _submit(self, process: Process, frame, body, now: int) -> None:
        entry = self._member(process, frame)
        if entry is None:
            return
        comm, rank = entry
        ops = body.ops
        if self.hooks.on_operation is not None and self._refused_by_hook(comm, rank, ops):
            return
        if len(ops) > 1:
            self.recorder.group_prepared(comm.global_ranks[rank])
        if not comm.shm and comm.failure is None:
            for op in ops:
                if op.kind == _SEND and op.flags & OP_EAGER and 0 <= op.root < comm.nranks:
                    self.relay.eager(comm, rank, op)
        effects = comm.submit(rank, ops, body.timeout_ms * _MS, now)
        if effects:
            self._apply(comm, effects)
        if comm.deadline < self.deadline:
            self.deadline = comm.deadline

    def _refused_by_hook(self, comm: Communicator, rank: int, ops: list) -> bool:
        try:
            self.hooks.on_operation(comm, rank, ops)
        except StatusError as error:
            failure = Failure(error.status, f"{comm.title}: rank {rank}: {error.text}", "injected", rank=rank)
            self._apply(comm, comm.fail(failure))
            return True
        return False

    def _done(self, process: Process, frame, body, now: int) -> None:
        entry = self._member(process, frame)
        if entry is None:
            return
        comm, rank = entry
        for done in body:
            effects = comm.done(rank, done.opid, done.status, done.exec_ns, now)
            if effects:
                self._apply(comm, effects)

    def _apply(self, comm: Communicator, effects: list) -> None:
        """Carry a communicator's effects out: GO frames first, one per rank, then the rest in order."""
        goes: dict[int, list] = {}
        for effect in effects:
            if effect[0] == GO:
                _, rank, opid, flags, peer, count, peer_opid, buffer = effect
                go = wire.Go(opid=opid, flags=flags, peer=peer, count=count, peer_opid=peer_opid, buffer=buffer)
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
            self._reply(member.process, request, status, text, member.handle)

    @staticmethod
    def _reply(process: Process, request: int, status: int, text: str = "", member: int = 0) -> None:
        if status == Status.OK:
            process.send(wire.encode_ack(request=request, member=member))
        else:
            process.send(wire.encode_error(status=status, text=text, request=request, member=member))

    def _finished(self, event) -> None:
        self.operations += 1
        self.recorder.operation(event)
        if self.hooks.on_finished is not None:
            self.hooks.on_finished(event)

    def _failed(self, comm: Communicator, failure: Failure) -> None:
        """Tell every member and the recorder, once."""
        self.failures += 1
        self.relay.drop(comm)
        if control := self.controls.get(comm.id):
            control.set_abort(failure.status)
        for member in comm.members:
            if member is not None:
                frame = wire.encode_error(status=failure.status, text=failure.text, member=member.handle)
                member.process.send(frame)
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
        if self.hooks.on_failure is not None:
            self.hooks.on_failure(comm, failure)
        self._outcome(self.membership.parent_failed(comm), 0)

    def _edges(self) -> dict[int, dict[int, str]]:
        """Who waits for whom, over all communicators: global rank -> {global rank: text}."""
        edges: dict[int, dict[int, str]] = {}
        for comm in self.communicators.values():
            for rank, other, text in comm.waits():
                edges.setdefault(rank, {}).setdefault(other, text)
        return edges

    # ---- making communicators ----

    def _unique_id(self, process: Process, frame, body, now: int) -> None:
        process.send(wire.encode_unique_id(bytes=self.membership.new_id(), request=frame.request))

    def _init(self, process: Process, frame, body, now: int) -> None:
        joiner = Joiner(process, frame.request, body.rank, body.timeout_ms * _MS, body.flags, body.device, body.name)
        if problem := self._world_problem(process, body.nranks):
            self._reply(process, frame.request, Status.WORLD, problem)
            return
        self._outcome(self.membership.init(joiner, body.unique_id, body.nranks, now), now)

    def _world_problem(self, process: Process, nranks: int) -> str:
        if nranks > self.limits.ranks:
            return f"init: nranks {nranks}, limit {self.limits.ranks}"
        first = process.world_size < 0 and not process.members and not process.former
        if self.world_size and (nranks > self.world_size or (first and nranks != self.world_size)):
            return f"init: a world of {nranks} ranks does not fit {self.cluster_name}, which lists {self.world_size} ranks"
        return ""

    def _split(self, process: Process, frame, body, now: int) -> None:
        if (entry := self._parent(process, frame)) is None:
            return
        comm, rank = entry
        device = comm.members[rank].device
        joiner = Joiner(
            process, frame.request, rank, body.timeout_ms * _MS, body.flags, device, body.name, body.color, body.key
        )
        self._outcome(self.membership.split(comm, joiner, now), now)

    def _shrink(self, process: Process, frame, body, now: int) -> None:
        if (entry := self._parent(process, frame)) is None:
            return
        comm, rank = entry
        device = comm.members[rank].device
        joiner = Joiner(process, frame.request, rank, body.timeout_ms * _MS, body.flags, device, body.name)
        self._outcome(self.membership.shrink(comm, joiner, body.exclude, now), now)

    def _grow(self, process: Process, frame, body, now: int) -> None:
        text = "ncclCommGrow: not supported yet; make a new communicator with ncclCommInitRank"
        self._reply(process, frame.request, Status.NOT_SUPPORTED, text)

    def _parent(self, process: Process, frame) -> tuple[Communicator, int] | None:
        entry = self._member(process, frame)
        if entry is None:
            name = wire.FRAME_NAMES[frame.type]
            self._reply(process, frame.request, Status.INVALID_USAGE, f"{name}: the parent communicator was destroyed")
        return entry

    def _outcome(self, effects: list, now: int) -> None:
        """Carry out what membership decided."""
        for effect in effects:
            if effect[0] == READY:
                self._made(*effect[1:], now)
            elif effect[0] == REFUSE:
                _, joiner, status, text = effect
                self._reply(joiner.process, joiner.request, status, text)
                if status not in (Status.INVALID_ARGUMENT, Status.ABORTED):
                    self._init_failed(joiner, status, text)
            elif effect[0] == NO_COLOR:
                joiner = effect[1]
                joiner.process.send(wire.encode_comm_ready(request=joiner.request, rank=-1, members=[]))
            elif effect[0] == FAIL_PARENT:
                self._apply(effect[1], effect[1].fail(effect[2]))
        if self.membership.deadline < self.deadline:
            self.deadline = self.membership.deadline

    def _init_failed(self, joiner: Joiner, status: int, text: str) -> None:
        source = "timeout" if status in (Status.MISSING_RANK, Status.TIMEOUT) else "client"
        source = "dead_rank" if status == Status.DEAD_RANK else "mismatch" if status == Status.MISMATCH else source
        rank = joiner.process.rank if joiner.process.rank >= 0 else joiner.rank
        if source == "timeout":
            self.recorder.timeout(rank)
        self.recorder.failure(FailureEvent(None, None, joiner.rank, rank, source, "init", int(status), text))
        log.warning("rank %d: %s", joiner.rank, text)

    def _made(self, comm: Communicator, joiners: list[Joiner], gathering, now: int) -> None:
        """Register a communicator and tell its members."""
        self.communicators[comm.id] = comm
        control = None
        if comm.shm:
            control = self.controls[comm.id] = ControlSegment.create(comm.nranks, comm.id)
        records = []
        for rank, joiner in enumerate(joiners):
            process, handle = joiner.process, comm.handle(rank)
            comm.members[rank] = Member(process, handle, joiner.device)
            process.members[handle] = (comm, rank)
            global_rank = comm.global_ranks[rank]
            records.append(
                wire.Member(global_rank=global_rank, node=process.node, device=joiner.device, pid=process.pid)
            )
            self.recorder.rank_joined(global_rank, process.host, process.pid, process.node, joiner.device)
        parent = gathering.parent
        self.recorder.communicator_created(comm.id, comm.name, comm.global_ranks, parent.id if parent else None)
        if gathering.kind == "shrink":
            self._recovered(comm, gathering, now)
        for rank, joiner in enumerate(joiners):
            frame = wire.encode_comm_ready(
                request=joiner.request, comm=comm.id, member=comm.handle(rank), flags=wire.COMM_SHM if comm.shm else 0,
                nranks=comm.nranks, rank=rank, control_slots=comm.max_outstanding, name=comm.name, members=records,
            )  # fmt: skip
            joiner.process.send(frame, control.fd if control else None)
        if self.hooks.on_communicator is not None:
            self.hooks.on_communicator(comm)

    def _recovered(self, comm: Communicator, gathering, now: int) -> None:
        parent = gathering.parent
        self._excused.add(parent.id)
        self._abandoned.pop(parent.id, None)
        self.recorder.recovery(
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

    # ---- ending communicators ----

    def _finalize(self, process: Process, frame, body, now: int) -> None:
        entry = self._member(process, frame)
        if entry is None:
            self._reply(process, frame.request, Status.OK)
            return
        comm, rank = entry
        self._apply(comm, comm.finalize(rank, frame.request, process.timeout_ns, now))
        if comm.deadline < self.deadline:
            self.deadline = comm.deadline

    def _destroy(self, process: Process, frame, body, now: int) -> None:
        entry = self._take(process, frame)
        if entry is not None:
            self._apply(entry[0], entry[0].leave(entry[1], "destroyed its handle"))
            self._forget_empty(entry[0])
        self._reply(process, frame.request, Status.OK)

    def _abort(self, process: Process, frame, body, now: int) -> None:
        entry = self._take(process, frame)
        if entry is not None:
            comm, rank = entry
            status = Status(body.status) if body.status in Status._value2member_map_ and body.status else Status.ABORTED
            self._apply(comm, comm.abort(rank, Status.ABORTED if status < 100 else status, body.text))
            comm.left.setdefault(rank, "aborted")
            self._forget_empty(comm)
        self._reply(process, frame.request, Status.OK)

    def _revoke(self, process: Process, frame, body, now: int) -> None:
        entry = self._member(process, frame)
        if entry is not None:
            comm, rank = entry
            self._apply(comm, comm.revoke(rank))
        self._reply(process, frame.request, Status.OK)

    def _take(self, process: Process, frame) -> tuple[Communicator, int] | None:
        """Give a member's handle up."""
        entry = self._member(process, frame)
        if entry is not None:
            del process.members[frame.member]
            process.former.add(frame.member)
            entry[0].members[entry[1]] = None
        return entry

    def _forget_empty(self, comm: Communicator) -> None:
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

    # ---- processes and tools ----

    def _hello(self, process: Process, frame, hello, now: int) -> None:
        if process.state != "new":
            raise error_for(Status.PROTOCOL, "HELLO: sent twice")
        if hello.version_major != wire.WIRE_VERSION_MAJOR:
            ours = f"{wire.WIRE_VERSION_MAJOR}.{wire.WIRE_VERSION_MINOR}"
            text = f"protocol version {hello.version_major}.{hello.version_minor}, expected {ours}"
            raise error_for(Status.VERSION, text)
        process.pid, process.role, process.rank = hello.pid, hello.role, hello.rank
        process.world_size, process.node, process.generation = hello.world_size, hello.node, hello.generation
        process.host, process.boot_id, process.session = hello.host, hello.boot_id, hello.session
        process.program = hello.program
        process.timeout_ns = (hello.timeout_ms or _MAX_TIMEOUT_MS) * _MS
        if hello.role == wire.ROLE_RANK:
            self._check_world(hello)
            if hello.generation > 0:  # an elastic restart: the rank gets another chance
                for ranks in self._abandoned.values():
                    ranks.discard(hello.rank)
            if self.hooks.on_join is not None:
                self.hooks.on_join(process)
        if self.token:
            process.state, process.challenge = "challenged", secrets.token_bytes(32)
        else:
            self._welcome_in(process)
        process.send(
            wire.encode_welcome(
                request=frame.request,
                features=(wire.FEATURE_SHM if self.shared else 0) | (wire.FEATURE_TOKEN if self.token else 0),
                job=self.job,
                chunk_bytes=self.chunk_bytes,
                window=self.window,
                max_payload_frame=wire.MAX_DATA_BYTES,
                eager_bytes=self.eager_bytes,
                world_size=self.world_size,
                challenge=process.challenge or bytes(32),
            )
        )

    def _check_world(self, hello) -> None:
        size = self.world_size
        if not size:
            return
        if hello.world_size >= 0 and hello.world_size != size:
            text = f"world size {hello.world_size} does not fit {self.cluster_name}, which lists {size} ranks"
            raise error_for(Status.WORLD, text)
        if hello.rank >= size:
            text = f"rank {hello.rank} does not fit {self.cluster_name}, which lists ranks 0 to {size - 1}"
            raise error_for(Status.WORLD, text)

    def _welcome_in(self, process: Process) -> None:
        process.state = "ready"
        self.processes.add(process)
        if process.role == wire.ROLE_RANK and process.rank >= 0:
            self.recorder.rank_joined(process.rank, process.host, process.pid, process.node)

    def _auth(self, process: Process, frame, body, now: int) -> None:
        if process.state != "challenged":
            raise error_for(Status.PROTOCOL, "AUTH: not asked for")
        expected = hmac.digest(self.token.encode(), process.challenge, "sha256")
        if not hmac.compare_digest(expected, body.digest):
            raise error_for(Status.AUTH, "the shared token differs from the coordinator's")
        self._welcome_in(process)
        self._reply(process, frame.request, Status.OK)

    def _bye(self, process: Process, frame, body, now: int) -> None:
        process.state = "ended"
        self.processes.discard(process)
        members, process.members = process.members, {}
        for comm, rank in members.values():
            comm.members[rank] = None
            self._abandon(comm, rank)
            how = f"(global rank {comm.global_ranks[rank]}, {process.where}) ended"
            self._apply(comm, comm.leave(rank, how))
            self._forget_empty(comm)
        self._outcome(self.membership.leave(process, f"{process.where} ended"), now)

    def _ping(self, process: Process, frame, body, now: int) -> None:
        self._reply(process, frame.request, Status.OK)

    def _status(self, process: Process, frame, body, now: int) -> None:
        process.send(wire.encode_status(text=json.dumps(self.status()), request=frame.request))

    def _shutdown(self, process: Process, frame, body, now: int) -> None:
        if not process.privileged and not self.token:
            text = f"SHUTDOWN from {process.peer}: allowed from the coordinator's own host only; use a token"
            self._reply(process, frame.request, Status.AUTH, text)
            return
        self._reply(process, frame.request, Status.OK)
        self.stopping = True

    def _note(self, process: Process, frame, body, now: int) -> None:
        rank = process.rank if process.rank >= 0 else None
        self.recorder.note(body.text, rank, body.status)

    def _query(self, process: Process, frame, body, now: int) -> None:
        text = f"QUERY: {body[:80]!r}: not supported yet"
        self._reply(process, frame.request, Status.NOT_SUPPORTED, text)
