"""What a report is rendered from: plain data, taken from a recorder at one moment."""

from __future__ import annotations

import attrs

from fakegpu.cluster import ClusterSpec
from fakegpu.recorder.accounting import Accounting
from fakegpu.recorder.events import (
    CommunicatorRecord,
    FailureEvent,
    InjectedFault,
    Note,
    OperationEvent,
    RankRecord,
    RecoveryEvent,
)


@attrs.define
class Snapshot:
    cluster: ClusterSpec
    configured: bool  # a cluster file or --nodes gave the cluster; False: the first world did
    transport: str
    mode: str
    ranks: list[RankRecord]
    communicators: list[CommunicatorRecord]
    accounting: Accounting
    failures: list[FailureEvent]
    failure_count: int
    recoveries: list[RecoveryEvent]
    recovery_count: int
    injected: list[InjectedFault]
    injected_count: int
    notes: list[Note]
    timeline: list[OperationEvent]
    dropped_operations: int
