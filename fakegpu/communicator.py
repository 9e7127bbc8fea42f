"""One communicator: its ranks, the matching of what they submit, deadlines, abort, death. A state machine.

No sockets and no clock: times (CLOCK_MONOTONIC, ns) come in as arguments, effects go out as a list of tuples whose
first item is one of the codes below. Collectives match by sequence number over all members; sends and receives match
first in, first out per pair of ranks. A failure is permanent: it is reported once, to every member. The coordinator
is the only caller. `submit` and `done` are the hot path.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from fakegpu import diagnosis, onesided
from fakegpu.dtypes import ONE_SIDED, SIZES, Kind
from fakegpu.errors import Status
from fakegpu.operations import (
    OP_EAGER,
    OP_SOCKET,
    OP_STAGED,
    ROOTED_KINDS,
    Collective,
    Exchange,
    Failure,
    Half,
    collective_event,
    exchange_event,
    same,
)
from fakegpu.wording import operation_name, rank_list

GO = 1  # (GO, rank, opid, flags, peer, count, peer_opid, buffer): these operations matched
COMPLETE = 2  # (COMPLETE, rank, opid, status): a send was received
START = 3  # (START, operation): a Collective or Exchange whose payload moves through sockets
FINISHED = 4  # (FINISHED, OperationEvent)
FAILED = 5  # (FAILED, Failure): tell every member, once
REFUSED = 6  # (REFUSED, rank, opid, status, text): this operation only
REPLY = 7  # (REPLY, rank, request, status, text): answer to a request, status OK = acknowledged

_MAX_SHM_OUTSTANDING = 64  # FG_CONTROL_SLOTS
_MAX_OUTSTANDING = 65536  # collectives, or sends of one pair: bounds the memory
NEVER = 1 << 63
_GRACE_NS = 1_000_000_000  # after a mismatch: time for the other ranks' submissions to arrive and be named
_SHM_STALL_NS = 60_000_000_000  # shared memory shows no progress: a running operation gets this long on top
_NS_PER_BYTE = 10  # ... and this much per byte, 100 MB/s
_HANDLE_BITS = 17  # rank + 1 fits
_SEND, _RECV = int(Kind.SEND), int(Kind.RECV)
_ONE_SIDED = frozenset(map(int, ONE_SIDED))


class Communicator:
    """State of one communicator; see the module's text."""

    __slots__ = (
        "_flushed", "_open", "_seq", "deadline", "excluded", "failure", "finalized", "global_ranks", "halves", "id",
        "last", "left", "max_outstanding", "members", "name", "nranks", "pending", "revoked", "running", "shm", "signals",
        "wait_ns",
    )  # fmt: skip

    def __init__(self, comm_id: int, name: str, global_ranks: tuple[int, ...], shm: bool = False) -> None:
        self.id, self.name, self.global_ranks, self.shm = comm_id, name, global_ranks, shm
        self.nranks = len(global_ranks)
        self.members: list = [None] * self.nranks  # the coordinator's: who is reached how
        self.failure: Failure | None = None
        self.revoked = False
        self.deadline = NEVER  # when `expire` has to be called, or earlier
        self.left: dict[int, str] = {}  # rank: how it left (destroyed, finished, died)
        self.wait_ns = [0] * self.nranks  # time spent waiting for the last member, taken by the coordinator
        self._seq = [0] * self.nranks  # next collective of each rank
        self.pending: dict[int, Collective] = {}
        self.halves: dict[tuple, deque[Half]] = {}  # (src, dst): all sends or all receives; (src, dst, signal): waits
        self.running: list[dict[int, Collective | Exchange]] = [{} for _ in range(self.nranks)]
        self.signals: dict[tuple[int, int, int], int] = {}  # (from, to, index and context): signals not waited for
        self.max_outstanding = _MAX_SHM_OUTSTANDING if shm else _MAX_OUTSTANDING
        self._open = [0] * self.nranks  # collectives of each rank that it is not done with
        self.last: list = [None] * self.nranks
        self.finalized: dict[int, tuple[int, int]] = {}  # rank: (request, deadline), until it is answered
        self._flushed: set[int] = set()  # ranks that were answered
        self.excluded: set[int] = set()  # a shrink left them out: nobody waits for them to finalize

    # ---- operations ----

    def submit(self, rank: int, ops: Iterable, timeout_ns: int, now: int) -> list:
        """Take one job's operations of a rank; a failed communicator takes none (its members were told)."""
        effects: list = []
        for op in ops:
            if self.failure is not None or rank in self.left:
                break
            kind = op.kind
            self.last[rank] = op
            if kind == _SEND or kind == _RECV:
                self._submit_half(rank, op, kind == _SEND, timeout_ns, now, effects)
            elif kind in _ONE_SIDED:
                wrong = onesided.submit(self, rank, op, timeout_ns, now, effects)
                if wrong is not None:
                    self._fail(wrong, effects)
            else:
                self._submit_collective(rank, op, kind, timeout_ns, now, effects)
        return effects

    def _submit_collective(self, rank: int, op, kind: int, timeout_ns: int, now: int, effects: list) -> None:
        seq = op.seq
        item = self.pending.get(seq)
        if seq != self._seq[rank]:
            self._fail(diagnosis.misuse(self, rank, op, f"expected collective #{self._seq[rank]}"), effects)
            return
        if self._open[rank] == self.max_outstanding:
            expected = f"expected at most {self.max_outstanding} unfinished collectives"
            self._fail(diagnosis.misuse(self, rank, op, expected), effects)
            return
        if kind in ROOTED_KINDS and not 0 <= op.root < self.nranks:
            self._fail(diagnosis.misuse(self, rank, op, f"root {op.root}, expected 0 to {self.nranks - 1}"), effects)
            return
        self._seq[rank] = seq + 1
        self._open[rank] += 1
        if item is None:
            item = self.pending[seq] = Collective(op, self.nranks, now, timeout_ns)
        else:
            if not same(item, op, kind):
                item.differs = True
                item.deadline = min(item.deadline, now + _GRACE_NS)
            elif timeout_ns > item.timeout_ns and not item.differs:
                item.timeout_ns, item.deadline = timeout_ns, item.first_ns + timeout_ns
            item.last_ns = now
        item.flags |= op.flags
        item.ops[rank] = op
        item.arrival_ns[rank] = now
        item.missing -= 1
        if item.missing == 0:
            del self.pending[seq]
            if item.differs:
                self._fail(diagnosis.mismatch(self, item), effects)
            else:
                self._match(item, now, effects)
            return
        if item.deadline < self.deadline:
            self.deadline = item.deadline
        if self.left:
            self._fail(diagnosis.needed(self, item.submitted()), effects)

    def _match(self, item: Collective, now: int, effects: list) -> None:
        """Everybody is there and agrees: let them move the payload."""
        flags = item.flags & OP_STAGED if self.shm else OP_SOCKET
        running, wait_ns, count = self.running, self.wait_ns, item.count
        rank = 0
        for op in item.ops:
            opid = op.opid
            running[rank][opid] = item
            wait_ns[rank] += now - item.arrival_ns[rank]
            effects.append((GO, rank, opid, flags, -1, count, 0, None))
            rank += 1
        item.missing = self.nranks  # from here on: members that are not done
        if self.shm:
            payload = count * SIZES[item.dtype] * self.nranks
            item.deadline = now + item.timeout_ns + _SHM_STALL_NS + payload * _NS_PER_BYTE
        else:
            item.deadline = now + item.timeout_ns
            effects.append((START, item))
        if item.deadline < self.deadline:
            self.deadline = item.deadline

    def _submit_half(self, rank: int, op, sends: bool, timeout_ns: int, now: int, effects: list) -> None:
        peer = op.root
        if not 0 <= peer < self.nranks:
            self._fail(diagnosis.misuse(self, rank, op, f"peer {peer}, expected 0 to {self.nranks - 1}"), effects)
            return
        pair = (rank, peer) if sends else (peer, rank)
        half = Half(op, rank, now, timeout_ns)
        queue = self.halves.get(pair)
        if not queue or (queue[0].op.kind == _SEND) == sends:
            if queue is None:
                queue = self.halves[pair] = deque()
            if len(queue) == _MAX_OUTSTANDING:
                self._fail(
                    diagnosis.misuse(self, rank, op, f"expected at most {_MAX_OUTSTANDING} unmatched ones of the pair"),
                    effects,
                )
                return
            queue.append(half)
            if half.deadline < self.deadline:
                self.deadline = half.deadline
            if peer in self.left:
                self._fail(diagnosis.needed(self, {rank: op}), effects)
            return
        other = queue.popleft()
        send, recv = (half, other) if sends else (other, half)
        if send.op.count != recv.op.count or send.op.dtype != recv.op.dtype:
            self._fail(diagnosis.pair(self, send, recv), effects)
            return
        self._meet(Exchange(send, recv, now), other, now, effects)

    def _meet(self, item: Exchange, earlier: Half, now: int, effects: list) -> None:
        send, recv = item.send, item.recv
        self.wait_ns[earlier.rank] += now - earlier.first_ns
        self.running[item.dst][recv.opid] = item
        if not send.flags & OP_EAGER:  # an eager sender's part is over
            self.running[item.src][send.opid] = item
        if self.shm:
            item.deadline += _SHM_STALL_NS + send.count * SIZES[send.dtype] * _NS_PER_BYTE
            effects.append(
                (GO, item.dst, recv.opid, send.flags & OP_STAGED, item.src, send.count, send.opid, send.buffer)
            )
        else:
            effects.append((GO, item.dst, recv.opid, OP_SOCKET, item.src, send.count, send.opid, None))
            if not send.flags & OP_EAGER:
                effects.append((GO, item.src, send.opid, OP_SOCKET, item.dst, send.count, recv.opid, None))
            effects.append((START, item))
        if item.deadline < self.deadline:
            self.deadline = item.deadline

    def done(self, rank: int, opid: int, status: int, exec_ns: int, now: int) -> list:
        """A member's part of an operation ended."""
        effects: list = []
        item = self.running[rank].pop(opid, None)
        if status and self.failure is None:
            op = self.last[rank] if item is None else item.ops[rank] if type(item) is Collective else item.recv
            name = operation_name(op) if op is not None else f"operation {opid}"
            code = Status(status) if status in Status._value2member_map_ else Status.INTERNAL
            text = f"{self.title}: {name}: rank {rank} reported {code.name.lower()}"
            self._fail(Failure(code, text, "client", rank=rank, operation=name), effects)
        elif item is None:
            pass  # an eager sender's part, already over when its receiver is done
        elif type(item) is Collective:
            item.missing -= 1
            self._open[rank] -= 1
            if exec_ns > item.exec_ns:
                item.exec_ns = exec_ns
            if item.missing == 0:
                effects.append((FINISHED, collective_event(self, item, now)))
        elif rank == item.dst and opid == item.recv.opid:
            self.running[item.src].pop(item.send.opid, None)
            if self.shm:
                effects.append((COMPLETE, item.src, item.send.opid, Status.OK))
            effects.append((FINISHED, exchange_event(self, item, now)))
        return effects

    # ---- the end, orderly and not ----

    def finalize(self, rank: int, request: int, timeout_ns: int, now: int) -> list:
        """A rank will submit no more; acknowledged when every member said so or is gone."""
        if self.failure is not None:
            return [(REPLY, rank, request, self.failure.status, self.failure.text)]
        self.finalized[rank] = (request, now + timeout_ns)
        self.deadline = min(self.deadline, now + timeout_ns)
        effects: list = []
        self._settle_finalize(effects)
        return effects

    def _settle_finalize(self, effects: list) -> None:
        """Answer when every process has finalized one of its ranks: a thread may finalize its devices one by one."""
        said = self.finalized.keys() | self.left.keys() | self._flushed | self.excluded
        processes = {self._process(rank) for rank in said}
        if self.finalized and all(self._process(rank) in processes for rank in range(self.nranks)):
            effects += [(REPLY, rank, request, Status.OK, "") for rank, (request, _) in self.finalized.items()]
            self._flushed.update(self.finalized)
            self.finalized.clear()

    def _process(self, rank: int):
        """What tells whether two ranks live in one process; a rank that is gone counts for itself."""
        member = self.members[rank]
        return rank if member is None else member.process

    def leave(self, rank: int, how: str) -> list:
        """A rank destroyed its handle or ended in order; an error for the others if they still need it."""
        effects: list = []
        if rank in self.left:
            return effects
        self.finalized.pop(rank, None)
        self.left[rank] = how
        if self.failure is None:
            if self.pending or self._takes_part(rank) or any(self._needs(rank, q) for q in self.halves.values()):
                self._fail(diagnosis.needed(self, diagnosis.first_waiting(self)), effects)
            else:
                self._settle_finalize(effects)
        return effects

    @property
    def idle(self) -> bool:
        """Nobody waits for anybody and nothing is under way."""
        return not self.pending and not any(self.running) and not any(self.halves.values())

    def _takes_part(self, rank: int) -> bool:
        """Whether something under way still needs a rank; a send does not once its whole payload went through."""
        return any(
            type(item) is Collective
            or opid != item.send.opid
            or item.sent < item.send.count * SIZES[item.send.dtype]
            for opid, item in self.running[rank].items()
        )

    @staticmethod
    def _needs(rank: int, queue: deque[Half]) -> bool:
        """Whether unmatched sends or receives still need a rank; its own eager sends are complete without it."""
        if not queue or rank not in (queue[0].rank, queue[0].op.root):
            return False
        return any(h.rank != rank or not (h.op.kind == _SEND and h.op.flags & OP_EAGER) for h in queue)

    def die(self, rank: int, how: str, edges: Callable[[], dict] = dict) -> list:
        """A rank's process is gone; everybody learns which, and what was going on."""
        self.left.setdefault(rank, how)
        return self.fail(diagnosis.death(self, rank, how, edges())) if self.failure is None else []

    def abort(self, rank: int, status: Status, why: str, edges: Callable[[], dict] = dict) -> list:
        """A rank ends the communicator for everybody, itself included."""
        self.left.setdefault(rank, "aborted")
        if self.failure is not None:
            return []
        what = f"aborted by rank {rank}: {why}" if why else f"aborted by rank {rank}"
        return self.fail(diagnosis.ended(self, rank, status, "abort", what, edges()))

    def revoke(self, rank: int, edges: Callable[[], dict] = dict) -> list:
        """A rank ends the operations; the members stay, for shrink and split."""
        self.revoked = True
        if self.failure is not None:
            return []
        return self.fail(diagnosis.ended(self, rank, Status.ABORTED, "revoke", f"revoked by rank {rank}", edges()))

    def fail(self, failure: Failure) -> list:
        """End the communicator for a reason found elsewhere (an injected fault, a protocol error)."""
        effects: list = []
        if self.failure is None:
            self._fail(failure, effects)
        return effects

    def _fail(self, failure: Failure, effects: list) -> None:
        self.failure = failure
        self.deadline = NEVER
        effects += [
            (REPLY, rank, request, failure.status, failure.text) for rank, (request, _) in self.finalized.items()
        ]
        self.finalized.clear()
        self.pending.clear()
        self.halves.clear()
        for running in self.running:
            running.clear()
        effects.append((FAILED, failure))

    # ---- time ----

    def expire(self, now: int, edges: Callable[[], dict]) -> list:
        """Called at `deadline`: fail what is overdue, or find the next deadline.

        edges: who waits for whom over all communicators, global rank -> {global rank: text} (see `waits`).
        """
        effects: list = []
        if self.failure is not None or now < self.deadline:
            return effects
        waiting = min(self.pending.values(), key=_deadline, default=None)
        half = min((h for q in self.halves.values() for h in q), key=_deadline, default=None)
        running = min((i for r in self.running for i in r.values()), key=_deadline, default=None)
        ends = min((deadline for _, deadline in self.finalized.values()), default=NEVER)
        self.deadline = min([ends, *(i.deadline for i in (waiting, half, running) if i is not None)])
        if self.deadline > now:
            return effects
        if waiting is not None and waiting.deadline <= now:
            if waiting.differs:
                self._fail(diagnosis.mismatch(self, waiting), effects)
            else:
                self._fail(diagnosis.missing(self, waiting, edges()), effects)
        elif half is not None and half.deadline <= now:
            self._fail(diagnosis.alone(self, half, edges()), effects)
        elif running is not None and running.deadline <= now:
            self._fail(diagnosis.stalled(self, running), effects)
        else:
            self._fail(diagnosis.unfinalized(self), effects)
        return effects

    def waits(self) -> Iterable[tuple[int, int, str]]:
        """(global rank, global rank it waits for, what for) of everything unmatched."""
        ranks = self.global_ranks
        for item in self.pending.values():
            absent = [rank for rank, op in enumerate(item.ops) if op is None]
            for rank, op in item.submitted().items():
                for other in absent:
                    yield ranks[rank], ranks[other], f"{operation_name(op)} of {self.title}"
        for queue in self.halves.values():
            for half in queue:
                if not (half.op.kind == _SEND and half.op.flags & OP_EAGER):
                    yield ranks[half.rank], ranks[half.op.root], f"{operation_name(half.op)} of {self.title}"

    @property
    def waiting(self) -> int:
        """Submissions that wait for another rank."""
        return sum(i.nranks - i.missing for i in self.pending.values()) + sum(map(len, self.halves.values()))

    # ---- names ----

    def handle(self, rank: int) -> int:
        """The member handle that frames carry: unique in a coordinator's life, never 0."""
        return (self.id << _HANDLE_BITS) + rank + 1

    @property
    def title(self) -> str:
        """The communicator as texts name it, with global ranks where they differ from its own."""
        name = f"communicator '{self.name}'"
        if self.global_ranks == tuple(range(self.nranks)):
            return name
        if list(self.global_ranks) == sorted(self.global_ranks):
            return f"{name} (global {rank_list(self.global_ranks)})"
        return f"{name} (global ranks {','.join(map(str, self.global_ranks[:16]))})"


def _deadline(item) -> int:
    return item.deadline
