"""Totals of links, node pairs, rank pairs, collectives and communicators, worked out from counted operations.

Each distinct operation gets one modelled time, remembered, and operations that differ in their size only share the
pattern of who sends to whom (timing/traffic.py): an all-to-all of 512 ranks has 261,632 edges. Called by the recorder only, off the coordinator's hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from fakegpu.cluster import ClusterSpec
from fakegpu.recorder.events import (
    COLLECTIVE_KINDS,
    CommunicatorRecord,
    OperationEvent,
    RankRecord,
)
from fakegpu.timing import Estimate, Operation, TimeModel, traffic
from fakegpu.timing.restrict import Restriction

_MAX_ESTIMATES = 4096
# Rank pairs in use that are kept apart; beyond it the pair's bytes count for links and nodes only.
MAX_RANK_PAIRS = 16384


class Bucket:
    """Equal operations: the first one, how many there were, and their measured times."""

    __slots__ = ("calls", "event", "execution_time_us", "least_execution_us", "rendezvous_wait_us")

    def __init__(self, event: OperationEvent) -> None:
        self.event = event
        self.calls = 0
        self.execution_time_us = 0.0
        self.least_execution_us = event.execution_time_us
        self.rendezvous_wait_us = 0.0


@attrs.define(slots=True)
class KindTotals:
    calls: int = 0
    bytes: int = 0
    estimated_time_us_total: float = 0.0
    contention_penalty_us_total: float = 0.0
    execution_time_us_total: float = 0.0
    rendezvous_wait_us_total: float = 0.0


@attrs.define(slots=True)
class LinkTotals:
    """Traffic in one direction between two nodes, or within one (src == dst)."""

    samples: int = 0  # rank-to-rank transfers
    collective_operations: int = 0
    point_to_point_operations: int = 0
    bytes: int = 0
    peak_bytes_per_operation: int = 0
    estimated_time_us_total: float = 0.0
    contention_penalty_us_total: float = 0.0
    peak_bytes_per_us: float = 0.0


@attrs.define(slots=True)
class PairTotals:
    """Both directions between two different nodes, per operation."""

    collective_operations: int = 0
    point_to_point_operations: int = 0
    peak_combined_bytes_per_operation: int = 0
    estimated_time_us_total: float = 0.0
    contention_penalty_us_total: float = 0.0
    peak_bytes_per_us: float = 0.0


@attrs.define(slots=True)
class RankPairTotals:
    transfers: int = 0
    bytes: int = 0


@attrs.frozen
class Pattern:
    """Who sends to whom in a unit operation (timing/traffic.py), per rank, per link and per pair of nodes."""

    rank_pairs: dict[tuple[int, int], int]
    links: dict[tuple[int, int], tuple[int, int]]  # (node, node) -> (units, transfers)
    pairs: dict[tuple[int, int], int]  # (lower node, higher node) -> units both ways


@attrs.define(slots=True)
class PatternTotals:
    """Operations of one pattern since the last fold: what the links add up, before it is spread over them."""

    kind: str
    calls: int = 0
    factor: int = 0  # sum of the factors; times a link's units gives its bytes
    peak_factor: int = 0
    time_us: float = 0.0
    contention_us: float = 0.0
    peak_rate: float = 0.0  # largest factor per microsecond


class Accounting:
    def __init__(self, restriction: Restriction | None = None) -> None:
        self._restriction = restriction
        self.kinds: dict[str, KindTotals] = {kind: KindTotals() for kind in COLLECTIVE_KINDS}
        self.point_to_point = KindTotals()
        self.sends = 0
        self.links: dict[tuple[int, int], LinkTotals] = {}
        self.node_pairs: dict[tuple[int, int], PairTotals] = {}
        self.rank_pairs: dict[tuple[int, int], RankPairTotals] = {}
        self.rank_pairs_omitted = 0
        self._cluster: ClusterSpec | None = None
        self._model: TimeModel | None = None
        self._estimates: dict[tuple, Estimate] = {}

    def use(self, cluster: ClusterSpec) -> TimeModel:
        """Set the cluster that later operations are modelled on; its model."""
        if cluster is not self._cluster and cluster != self._cluster:
            self._cluster = cluster
            self._model = TimeModel(cluster, self._restriction)
            self._estimates.clear()
        return self._model

    def add(
        self,
        buckets: Iterable[Bucket],
        rank_record: Callable[[int], RankRecord],
        communicators: dict[int, CommunicatorRecord],
    ) -> None:
        """Count these operations. Equal patterns are spread over links and ranks once, not once per size."""
        patterns: dict[tuple, tuple[Operation, PatternTotals]] = {}
        for bucket in buckets:
            event, calls = bucket.event, bucket.calls
            estimate = self.estimate(event)
            collective = event.kind in self.kinds
            self._add_kind(self.kinds[event.kind] if collective else self.point_to_point, bucket, estimate)
            if event.kind == "send":
                self.sends += calls
            _add_pattern(patterns, bucket, estimate)
            for rank in event.ranks:
                _count_call(rank_record(rank), event.kind, collective, calls)
            communicator = communicators.get(event.comm_id)
            if communicator is not None:
                communicator.collective_calls += calls if collective else 0
                communicator.point_to_point_calls += 0 if collective else calls
                communicator.bytes += calls * event.logical_payload_bytes
                communicator.estimated_time_us_total += calls * estimate.time_us
        for (*_, algorithm), (operation, totals) in patterns.items():
            self._spread(self._pattern(operation, algorithm), totals)

    def estimate(self, event: OperationEvent) -> Estimate:
        """Modelled time of one operation; remembered."""
        key = (event.kind, event.ranks, event.count, event.element_bytes, event.root, event.src, event.dst)
        estimate = self._estimates.get(key)
        if estimate is None:
            if len(self._estimates) >= _MAX_ESTIMATES:
                self._estimates.clear()
            estimate = self._estimates[key] = self._model.estimate(_operation(event))
        return estimate

    def _pattern(self, operation: Operation, algorithm: str) -> Pattern:
        rank_pairs = self._model.traffic(operation, algorithm)
        links: dict[tuple[int, int], tuple[int, int]] = {}
        pairs: dict[tuple[int, int], int] = {}
        nodes = {rank: self._cluster.node_index(rank) for rank in operation.ranks}
        for (src, dst), units in rank_pairs.items():
            a, b = nodes[src], nodes[dst]
            before, transfers = links.get((a, b), (0, 0))
            links[a, b] = (before + units, transfers + 1)
            if a != b:
                low_high = (a, b) if a < b else (b, a)
                pairs[low_high] = pairs.get(low_high, 0) + units
        return Pattern(rank_pairs, links, pairs)

    @staticmethod
    def _add_kind(totals: KindTotals, bucket: Bucket, estimate: Estimate) -> None:
        totals.calls += bucket.calls
        totals.bytes += bucket.calls * bucket.event.logical_payload_bytes
        totals.estimated_time_us_total += bucket.calls * estimate.time_us
        totals.contention_penalty_us_total += bucket.calls * estimate.contention_us
        totals.execution_time_us_total += bucket.execution_time_us
        totals.rendezvous_wait_us_total += bucket.rendezvous_wait_us

    def _spread(self, pattern: Pattern, totals: PatternTotals) -> None:
        for key, (units, transfers) in pattern.links.items():
            link = self.links.get(key)
            if link is None:
                link = self.links[key] = LinkTotals()
            link.samples += totals.calls * transfers
            link.bytes += totals.factor * units
            link.peak_bytes_per_operation = max(link.peak_bytes_per_operation, totals.peak_factor * units)
            self._add_operations(link, totals, units, totals.contention_us if key[0] != key[1] else 0.0)
        for key, units in pattern.pairs.items():
            pair = self.node_pairs.get(key)
            if pair is None:
                pair = self.node_pairs[key] = PairTotals()
            peak = pair.peak_combined_bytes_per_operation
            pair.peak_combined_bytes_per_operation = max(peak, totals.peak_factor * units)
            self._add_operations(pair, totals, units, totals.contention_us)
        for key, units in pattern.rank_pairs.items():
            row = self.rank_pairs.get(key)
            if row is None:
                if len(self.rank_pairs) >= MAX_RANK_PAIRS:
                    self.rank_pairs_omitted += totals.calls
                    continue
                row = self.rank_pairs[key] = RankPairTotals()
            row.transfers += totals.calls
            row.bytes += totals.factor * units

    def _add_operations(
        self, totals: LinkTotals | PairTotals, added: PatternTotals, units: int, contention_us: float
    ) -> None:
        if added.kind in self.kinds:
            totals.collective_operations += added.calls
        else:
            totals.point_to_point_operations += added.calls
        totals.estimated_time_us_total += added.time_us
        totals.contention_penalty_us_total += contention_us
        totals.peak_bytes_per_us = max(totals.peak_bytes_per_us, added.peak_rate * units)


def _operation(event: OperationEvent) -> Operation:
    return Operation(
        kind=event.kind,
        ranks=event.ranks,
        count=event.count,
        element_bytes=event.element_bytes,
        root=event.root,
        src=event.src,
        dst=event.dst,
    )


def _add_pattern(
    patterns: dict[tuple, tuple[Operation, PatternTotals]], bucket: Bucket, estimate: Estimate
) -> None:
    event, calls = bucket.event, bucket.calls
    operation, factor = traffic.unit(_operation(event))
    if not factor:
        return
    key = (event.kind, event.ranks, operation.count, event.root, event.src, event.dst, estimate.algorithm)
    _, totals = patterns.setdefault(key, (operation, PatternTotals(event.kind)))
    totals.calls += calls
    totals.factor += calls * factor
    totals.peak_factor = max(totals.peak_factor, factor)
    totals.time_us += calls * estimate.time_us
    totals.contention_us += calls * estimate.contention_us
    if estimate.time_us > 0:
        totals.peak_rate = max(totals.peak_rate, factor / estimate.time_us)


def _count_call(record: RankRecord, kind: str, collective: bool, calls: int) -> None:
    if kind == "barrier":
        record.barrier_calls += calls
    if collective:
        record.collective_calls += calls
    else:
        record.point_to_point_calls += calls
