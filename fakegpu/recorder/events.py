"""Records that the coordinator hands to the recorder, one per thing that happened.

Ranks are global ranks everywhere. Times are what the coordinator measured; nothing here is modelled.
"""

from __future__ import annotations

import attrs

COLLECTIVE_KINDS = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "gather",
    "scatter",
)
POINT_TO_POINT_KINDS = ("send", "put_signal", "signal")


@attrs.define(slots=True)
class OperationEvent:
    """One finished collective, or one matched send and receive (kind "send", with src and dst)."""

    comm_id: int
    seqno: int
    kind: str
    data_type: str
    reduce_op: str | None
    buffer_transport: str  # shared_memory | socket_payload | proxy_only | control
    ranks: tuple[int, ...]  # global, in communicator order; point to point: (src, dst)
    count: int  # elements, as the NCCL call of that kind defines it
    element_bytes: int
    logical_payload_bytes: int
    root: int | None = None
    src: int | None = None
    dst: int | None = None
    socket_request_payload_bytes: int = 0
    socket_response_payload_bytes: int = 0
    rendezvous_wait_us: float = 0.0  # first submission to last
    execution_time_us: float = 0.0  # last submission to the last member's DONE
    coordinator_duration_us: float = 0.0
    start_ns: int = 0  # CLOCK_MONOTONIC at the first submission


@attrs.define(slots=True)
class FailureEvent:
    """A communicator's error, once per failure, not once per member that was told."""

    comm_id: int | None
    seqno: int | None
    local_rank: int | None  # rank in the communicator that caused it; None = no single one
    global_rank: int | None
    source: str  # mismatch | timeout | dead_rank | abort | injected | client | protocol
    operation: str | None
    error_code: int
    error_detail: str
    observed_ranks: tuple[int, ...] = ()  # global ranks that had submitted the operation
    attempted_payload_bytes: int = 0


@attrs.define(slots=True)
class RecoveryEvent:
    """A communicator made from the survivors of another (shrink)."""

    parent_comm_id: int
    new_comm_id: int
    seqno: int | None
    abort_parent: bool
    excluded_ranks: tuple[int, ...]
    surviving_ranks: tuple[int, ...]
    recovery_time_us: float = 0.0


@attrs.define(slots=True)
class InjectedFault:
    """A fault that was injected, and where: at which operation of which rank or link, or in which process."""

    kind: str
    detail: str
    comm_id: int | None = None
    seqno: int | None = None
    operation: str | None = None
    global_rank: int | None = None
    nodes: tuple[str, ...] = ()


@attrs.define(slots=True)
class RankRecord:
    """What is known and counted about one global rank."""

    rank: int
    host: str = ""
    pid: int = 0
    node: int = -1
    device: int = -1
    wait_time_ms: float = 0.0
    timeouts: int = 0
    communicator_inits: int = 0
    collective_calls: int = 0
    point_to_point_calls: int = 0
    barrier_calls: int = 0
    group_prepares: int = 0


@attrs.define(slots=True)
class CommunicatorRecord:
    comm_id: int
    name: str
    ranks: tuple[int, ...]
    parent: int | None = None
    collective_calls: int = 0
    point_to_point_calls: int = 0
    bytes: int = 0
    estimated_time_us_total: float = 0.0


@attrs.define(slots=True)
class Note:
    """A text that a client or the coordinator wants in the report."""

    text: str
    global_rank: int | None = None
    status: int = 0
