"""Counters and the bounded timeline of one coordinator's life.

The coordinator calls `operation` once per finished operation on its hot path, so that call only counts; links,
node pairs and modelled times are worked out from the counters when a report asks (see accounting.py). Not
thread-safe: the coordinator is one event loop. Reads no clock, writes no file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from fakegpu import settings
from fakegpu.cluster import ClusterSpec
from fakegpu.recorder.accounting import Accounting, Bucket
from fakegpu.recorder.events import (
    COLLECTIVE_KINDS,
    POINT_TO_POINT_KINDS,
    CommunicatorRecord,
    FailureEvent,
    InjectedFault,
    Note,
    OperationEvent,
    RankRecord,
    RecoveryEvent,
)
from fakegpu.recorder.simulate import simulate
from fakegpu.recorder.snapshot import Snapshot
from fakegpu.timing import TimeModel
from fakegpu.timing.restrict import Restriction
from fakegpu.timing.shapes import logical_payload_bytes

__all__ = [
    "COLLECTIVE_KINDS",
    "POINT_TO_POINT_KINDS",
    "FailureEvent",
    "InjectedFault",
    "OperationEvent",
    "Recorder",
    "RecoveryEvent",
    "Snapshot",
    "logical_payload_bytes",
]

DEFAULT_MAX_OPERATIONS = 4096
_MAX_BUCKETS = 4096  # distinct (communicator, kind, size, peers) before they are folded: bounds the memory
_MAX_EVENTS = 1024  # failures, recoveries and notes kept; all are counted


class Recorder:
    """Takes events; `snapshot` gives everything a report needs."""

    def __init__(
        self,
        cluster: ClusterSpec | None = None,
        max_operations: int = DEFAULT_MAX_OPERATIONS,
        transport: str = "unix",
        *,
        mode: str = "simulate",
        restriction: Restriction | None = None,
    ) -> None:
        if max_operations < 0:
            raise ValueError(f"max_operations: found {max_operations}, expected 0 or more")
        self.cluster = cluster
        self.transport = transport
        self.mode = mode
        self.max_operations = max_operations
        self._timeline: deque[OperationEvent] = deque(maxlen=max_operations)
        self._operations = 0
        self._buckets: dict[tuple, Bucket] = {}
        if restriction is None:
            restriction = Restriction.parse(*settings.nccl_restriction())
        self._accounting = Accounting(restriction)
        self._ranks: dict[int, RankRecord] = {}
        self._derived: ClusterSpec | None = None  # cluster that the ranks seen define
        self._communicators: dict[int, CommunicatorRecord] = {}
        self._failures: deque[FailureEvent] = deque(maxlen=_MAX_EVENTS)
        self._recoveries: deque[RecoveryEvent] = deque(maxlen=_MAX_EVENTS)
        self._notes: deque[Note] = deque(maxlen=_MAX_EVENTS)
        self._injected: deque[InjectedFault] = deque(maxlen=_MAX_EVENTS)
        self._failure_count = self._recovery_count = self._injected_count = 0

    def rank_joined(self, global_rank: int, host: str = "", pid: int = 0, node: int = -1, device: int = -1) -> None:
        """A rank said hello; a later call for the same rank (a restart) replaces where it runs."""
        record = self._rank(global_rank)
        record.host, record.pid, record.node, record.device = host, pid, node, device
        self._derived = None

    def communicator_created(
        self, comm_id: int, name: str, global_ranks: Sequence[int], parent: int | None = None
    ) -> None:
        self._communicators[comm_id] = CommunicatorRecord(comm_id, name, tuple(global_ranks), parent)
        for rank in global_ranks:
            self._rank(rank).communicator_inits += 1

    def operation(self, event: OperationEvent) -> None:
        """Hot path: count the operation and keep it in the timeline."""
        key = _key(event)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._fold()
            bucket = self._buckets[key] = Bucket(event)
            for rank in event.ranks:
                self._rank(rank)
        bucket.calls += 1
        bucket.execution_time_us += event.execution_time_us
        bucket.rendezvous_wait_us += event.rendezvous_wait_us
        if event.execution_time_us < bucket.least_execution_us:
            bucket.least_execution_us = event.execution_time_us
        self._operations += 1
        self._timeline.append(event)

    def group_prepared(self, global_rank: int) -> None:
        """A rank submitted a group of more than one operation."""
        self._rank(global_rank).group_prepares += 1

    def wait(self, global_rank: int, ms: float) -> None:
        """Time a rank spent between its submission and the last member's."""
        self._rank(global_rank).wait_time_ms += ms

    def timeout(self, global_rank: int) -> None:
        self._rank(global_rank).timeouts += 1

    def failure(self, event: FailureEvent) -> None:
        self._failure_count += 1
        self._failures.append(event)

    def recovery(self, event: RecoveryEvent) -> None:
        self._recovery_count += 1
        self._recoveries.append(event)

    def injected(self, event: InjectedFault) -> None:
        self._injected_count += 1
        self._injected.append(event)

    def note(self, text: str, global_rank: int | None = None, status: int = 0) -> None:
        self._notes.append(Note(text, global_rank, status))

    def model(self) -> TimeModel:
        """The time model of the cluster as it is known now."""
        return self._accounting.use(self._effective_cluster())

    def modeled_time_us(self, event: OperationEvent) -> float:
        """Modelled time of one operation; remembered, so that pacing can ask for each."""
        self.model()
        return self._accounting.estimate(event).time_us

    def least_execution_us(self, event: OperationEvent) -> float:
        """Shortest measured time of earlier operations equal to this one; 0 without any."""
        bucket = self._buckets.get(_key(event))
        return bucket.least_execution_us if bucket else 0.0

    def ranks_of(self, comm_id: int) -> tuple[int, ...]:
        """Global ranks of a communicator, in its order; KeyError for an unknown one."""
        return self._communicators[comm_id].ranks

    def simulate(self, request: dict) -> dict:
        """Answer of a QUERY that asks for a group's modelled time (see simulate.py)."""
        return simulate(self, request)

    def snapshot(self) -> Snapshot:
        """Everything so far, with links and modelled times worked out. Cheap when little happened since the last."""
        cluster = self._effective_cluster()
        self._fold(cluster)
        return Snapshot(
            cluster=cluster,
            configured=self.cluster is not None,
            transport=self.transport,
            mode=self.mode,
            ranks=sorted(self._ranks.values(), key=lambda r: r.rank),
            communicators=list(self._communicators.values()),
            accounting=self._accounting,
            failures=list(self._failures),
            failure_count=self._failure_count,
            recoveries=list(self._recoveries),
            recovery_count=self._recovery_count,
            injected=list(self._injected),
            injected_count=self._injected_count,
            notes=list(self._notes),
            timeline=list(self._timeline),
            dropped_operations=self._operations - len(self._timeline),
        )

    def _rank(self, rank: int) -> RankRecord:
        record = self._ranks.get(rank)
        if record is None:
            record = self._ranks[rank] = RankRecord(rank)
            self._derived = None
        return record

    def _fold(self, cluster: ClusterSpec | None = None) -> None:
        """Move the buckets' counts into the totals of links, ranks and communicators."""
        if not self._buckets:
            return
        self._accounting.use(cluster or self._effective_cluster())
        self._accounting.add(self._buckets.values(), self._rank, self._communicators)
        self._buckets.clear()

    def _effective_cluster(self) -> ClusterSpec:
        """The cluster file's, or one that the ranks seen so far define."""
        if self.cluster is not None:
            return self.cluster
        if self._derived is None:
            top = max(self._ranks, default=0)
            nodes = [self._ranks[r].node if r in self._ranks else -1 for r in range(top + 1)]
            self._derived = ClusterSpec.from_placement(nodes)
        return self._derived


def _key(event: OperationEvent) -> tuple:
    """Operations with equal keys are counted together."""
    return event.comm_id, event.kind, event.count, event.element_bytes, event.root, event.src, event.dst
