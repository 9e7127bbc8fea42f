"""Injects the faults of a plan: the registry asks it about every submission and every matched operation.

Faults of a rank are decided when the rank submits, in the order in which its operations come, so that a plan hits the
same operation in every run. What has to happen on the rank's side (crash, flipped bit, device failure) travels as a
flag of the operation's GO. Every fault that was injected is told to the recorder. Layer 4; reads no clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

from fakegpu._core import wire
from fakegpu.communicator import GO, NEVER, START, Communicator
from fakegpu.dtypes import KIND_LABELS
from fakegpu.errors import Status
from fakegpu.faults import LINK_KINDS, Fault
from fakegpu.operations import Collective, Exchange, Failure, collective_event, exchange_event
from fakegpu.pace import started_item
from fakegpu.recorder import InjectedFault, Recorder

_NS = 1_000_000_000


class Injector:
    """The plan's faults and how often each was seen; operations that are held back."""

    def __init__(self, faults: tuple[Fault, ...], recorder: Recorder) -> None:
        self._recorder = recorder
        self._ranks = [fault for fault in faults if fault.kind not in LINK_KINDS and fault.kind != "out_of_memory"]
        self._links = [fault for fault in faults if fault.kind in LINK_KINDS]
        self._seen = {fault.number: 0 for fault in faults}
        self._answers: dict[tuple[int, int, int], Fault] = {}  # (communicator, rank, opid): what its GO is to carry
        self._stalled: dict[tuple[int, int], deque] = {}  # (communicator, rank): submissions not taken yet
        self._due: list[tuple[int, int, Communicator, Callable[[int], list]]] = []
        self._count = 0

    @property
    def deadline(self) -> int:
        """When the next thing held back is due, or NEVER."""
        return self._due[0][0] if self._due else NEVER

    # ---- submissions ----

    def submitted(self, comm: Communicator, rank: int, body, now: int, take: Callable) -> list | None:
        """Effects of a submission that a fault hit; None: it goes its normal way.

        take(comm, rank, body, now): the normal way, for what is taken later.
        """
        queue = self._stalled.get((comm.id, rank))
        if queue is not None:
            queue.append(body)
            return []
        if comm.failure is not None:
            return None
        for op in body.ops:
            for fault in self._hits(self._ranks, comm, op, lambda f: f.rank == comm.global_ranks[rank]):
                name = f"{KIND_LABELS[op.kind]} #{op.seq}"
                self._tell(fault, comm, rank, op)
                if fault.kind == "fail":
                    text = f"{comm.title}: injected fault: {name} of rank {rank} failed"
                    return comm.fail(Failure(Status.INJECTED, text, "injected", op.seq, name, rank, (rank,)))
                if fault.kind == "stall":
                    self._stalled[comm.id, rank] = deque([body])
                    self._later(now + int(fault.seconds * _NS), comm, lambda t: self._go_on(comm, rank, t, take))
                    return []
                if fault.kind == "crash" and fault.when == "submitted":
                    self._send_crash(comm, rank, op)
                    return []  # nobody else hears of the submission
                self._answers[comm.id, rank, op.opid] = fault
        return None

    def _send_crash(self, comm: Communicator, rank: int, op) -> None:
        member = comm.members[rank]
        if member is not None:
            go = wire.Go(opid=op.opid, flags=wire.OP_CRASH, count=op.count)
            member.process.send(wire.encode_go([go], member=member.handle))

    def _go_on(self, comm: Communicator, rank: int, now: int, take: Callable) -> list:
        """A stall is over: the submission that met it, and those behind it, are taken."""
        queue = self._stalled.pop((comm.id, rank))
        effects = take(comm, rank, queue.popleft(), now)
        while queue:
            body = queue.popleft()
            more = self.submitted(comm, rank, body, now, take)
            effects += take(comm, rank, body, now) if more is None else more
            if (comm.id, rank) in self._stalled:
                self._stalled[comm.id, rank].extend(queue)
                break
        return effects

    # ---- matched operations ----

    def hold(self, comm: Communicator, effects: list, now: int) -> list:
        """What is to be carried out now; the rest is kept back, changed or dropped."""
        kept, links = [], {}
        for effect in effects:
            item = started_item(comm, effect)
            if item is not None and self._links:
                if id(item) not in links:
                    links[id(item)] = (item, self._link(comm, item), [])
                if links[id(item)][1] is not None:
                    links[id(item)][2].append(effect)
                    continue
            if effect[0] == GO:
                kept += self._answer(comm, effect, now)
            else:
                kept.append(effect)
        for item, fault, parts in links.values():
            if fault is not None:
                self._hold_link(comm, item, fault, parts, now)
        return kept

    def _answer(self, comm: Communicator, effect: tuple, now: int) -> list:
        code, rank, opid, flags, *rest = effect
        fault = self._answers.pop((comm.id, rank, opid), None)
        if fault is None:
            return [effect]
        if fault.kind == "drop_response":
            return []
        if fault.kind == "delay_response":
            self._later(now + int(fault.seconds * _NS), comm, lambda _: [effect])
            return []
        flag = {
            "crash": wire.OP_CRASH,
            "corrupt": wire.OP_CORRUPT | fault.bit << wire.OP_BIT_SHIFT,
            "device_error": wire.OP_DEVICE_ERROR,
        }[fault.kind]
        return [(code, rank, opid, flags | flag, *rest)]

    def _link(self, comm: Communicator, item: Collective | Exchange) -> Fault | None:
        """The link fault that hits an operation, if its ranks lie on both ends."""
        collective = isinstance(item, Collective)
        ranks = comm.global_ranks if collective else (comm.global_ranks[item.src], comm.global_ranks[item.dst])
        cluster = self._recorder.model().cluster
        ids = {cluster.nodes[cluster.node_index(rank)].id for rank in ranks}
        op = item if collective else item.send
        hits = self._hits(self._links, comm, op, lambda f: ids.issuperset(f.nodes))
        fault = next(hits, None)
        if fault is not None:
            self._tell(fault, comm, None, op)
        return fault

    def _hold_link(self, comm, item, fault: Fault, parts: list, now: int) -> None:
        collective = isinstance(item, Collective)
        event = (collective_event if collective else exchange_event)(comm, item, item.last_ns)
        if fault.kind == "slow_link":
            delay = int(self._recorder.modeled_time_us(event) * (fault.factor - 1) * 1000)
            item.deadline += delay
            self._later(now + delay, comm, lambda _: parts)
            return
        op = item if collective else item.send
        name = f"{KIND_LABELS[op.kind]} #{op.seq}"
        text = (
            f"{comm.title}: injected fault: the link {' - '.join(fault.nodes)} is cut: {name} did not get through within "
            f"{item.timeout_ns / 1e6:g} ms"
        )
        failure = Failure(
            Status.TIMEOUT, text, "injected", op.seq, name, None, tuple(range(comm.nranks)), event.logical_payload_bytes,
            tuple(range(comm.nranks)),
        )  # fmt: skip
        self._later(now + item.timeout_ns, comm, lambda _: comm.fail(failure))

    # ---- time ----

    def _later(self, due: int, comm: Communicator, act: Callable[[int], list]) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, comm, act))

    def due(self, now: int) -> Iterator[tuple[Communicator, list]]:
        """Effects that may be carried out; those of a communicator that failed meanwhile never are."""
        while self._due and self._due[0][0] <= now:
            _, _, comm, act = heapq.heappop(self._due)
            if comm.failure is None:
                yield comm, act(now)

    # ---- which ----

    def _hits(self, faults: list[Fault], comm: Communicator, op, concerned: Callable[[Fault], bool]) -> Iterator[Fault]:
        for fault in faults:
            if concerned(fault) and fault.matches(comm.name, KIND_LABELS[op.kind], op.seq):
                seen = self._seen[fault.number]
                self._seen[fault.number] = seen + 1
                if seen >= fault.skip and (fault.times == 0 or seen < fault.skip + fault.times):
                    yield fault

    def _tell(self, fault: Fault, comm: Communicator, rank: int | None, op) -> None:
        self._recorder.injected(
            InjectedFault(
                kind=fault.kind,
                detail=str(fault),
                comm_id=comm.id,
                seqno=op.seq,
                operation=KIND_LABELS[op.kind],
                global_rank=None if rank is None else comm.global_ranks[rank],
                nodes=fault.nodes,
            )
        )
