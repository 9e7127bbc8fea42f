"""Totals of links, node pairs, rank pairs, collectives and communicators, worked out from counted operations.

Each distinct operation gets one plan (its modelled time and who sends how many bytes to whom, from timing.py),
remembered and multiplied by how often it happened. Called by the recorder only, off the coordinator's hot path.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fakegpu.cluster import ClusterSpec
from fakegpu.recorder.events import (
    COLLECTIVE_KINDS,
    CommunicatorRecord,
    OperationEvent,
    RankRecord,
)
from fakegpu.timing import Estimate, Operation, TimeModel
from fakegpu.timing.restrict import Restriction

_MAX_PLANS = 4096
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


@attrs.define(slots=True)
class Plan:
    estimate: Estimate
    rank_pairs: dict[tuple[int, int], int]
    links: dict[tuple[int, int], tuple[int, int]]  # (node, node) -> (bytes, transfers)
    pairs: dict[tuple[int, int], int]  # (lower node, higher node) -> bytes both ways


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
        self._plans: dict[tuple, Plan] = {}

    def use(self, cluster: ClusterSpec) -> TimeModel:
        """Set the cluster that later operations are modelled on; its model."""
        if cluster is not self._cluster and cluster != self._cluster:
            self._cluster = cluster
            self._model = TimeModel(cluster, self._restriction)
            self._plans.clear()
        return self._model

    def add(
        self,
        bucket: Bucket,
        rank_record: Callable[[int], RankRecord],
        communicators: dict[int, CommunicatorRecord],
    ) -> None:
        event, calls = bucket.event, bucket.calls
        plan = self.plan(event)
        collective = event.kind in self.kinds
        totals = self.kinds[event.kind] if collective else self.point_to_point
        self._add_kind(totals, bucket, plan)
        if event.kind == "send":
            self.sends += calls
        self._add_links(plan, calls, collective)
        self._add_rank_pairs(plan, calls)
        for rank in event.ranks:
            _count_call(rank_record(rank), event.kind, collective, calls)
        communicator = communicators.get(event.comm_id)
        if communicator is not None:
            communicator.collective_calls += calls if collective else 0
            communicator.point_to_point_calls += 0 if collective else calls
            communicator.bytes += calls * event.logical_payload_bytes
            communicator.estimated_time_us_total += calls * plan.estimate.time_us

    def plan(self, event: OperationEvent) -> Plan:
        """Modelled time and traffic of one operation; remembered."""
        key = (event.kind, event.ranks, event.count, event.element_bytes, event.root, event.src, event.dst)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._make_plan(event)
        return plan

    def _make_plan(self, event: OperationEvent) -> Plan:
        operation = Operation(
            kind=event.kind,
            ranks=event.ranks,
            count=event.count,
            element_bytes=event.element_bytes,
            root=event.root,
            src=event.src,
            dst=event.dst,
        )
        estimate = self._model.estimate(operation)
        rank_pairs = self._model.traffic(operation, estimate)
        links: dict[tuple[int, int], tuple[int, int]] = {}
        pairs: dict[tuple[int, int], int] = {}
        node_of = self._cluster.node_index
        for (src, dst), size in rank_pairs.items():
            a, b = node_of(src), node_of(dst)
            size_before, transfers = links.get((a, b), (0, 0))
            links[a, b] = (size_before + size, transfers + 1)
            if a != b:
                low_high = (a, b) if a < b else (b, a)
                pairs[low_high] = pairs.get(low_high, 0) + size
        return Plan(estimate, rank_pairs, links, pairs)

    @staticmethod
    def _add_kind(totals: KindTotals, bucket: Bucket, plan: Plan) -> None:
        totals.calls += bucket.calls
        totals.bytes += bucket.calls * bucket.event.logical_payload_bytes
        totals.estimated_time_us_total += bucket.calls * plan.estimate.time_us
        totals.contention_penalty_us_total += bucket.calls * plan.estimate.contention_us
        totals.execution_time_us_total += bucket.execution_time_us
        totals.rendezvous_wait_us_total += bucket.rendezvous_wait_us

    def _add_links(self, plan: Plan, calls: int, collective: bool) -> None:
        time, penalty = plan.estimate.time_us, plan.estimate.contention_us
        for key, (size, transfers) in plan.links.items():
            link = self.links.get(key)
            if link is None:
                link = self.links[key] = LinkTotals()
            link.samples += calls * transfers
            link.bytes += calls * size
            link.peak_bytes_per_operation = max(link.peak_bytes_per_operation, size)
            _add_operation(link, calls, collective, size, time, penalty if key[0] != key[1] else 0.0)
        for key, size in plan.pairs.items():
            pair = self.node_pairs.get(key)
            if pair is None:
                pair = self.node_pairs[key] = PairTotals()
            pair.peak_combined_bytes_per_operation = max(pair.peak_combined_bytes_per_operation, size)
            _add_operation(pair, calls, collective, size, time, penalty)

    def _add_rank_pairs(self, plan: Plan, calls: int) -> None:
        for key, size in plan.rank_pairs.items():
            pair = self.rank_pairs.get(key)
            if pair is None:
                if len(self.rank_pairs) >= MAX_RANK_PAIRS:
                    self.rank_pairs_omitted += calls
                    continue
                pair = self.rank_pairs[key] = RankPairTotals()
            pair.transfers += calls
            pair.bytes += calls * size


def _add_operation(
    totals: LinkTotals | PairTotals, calls: int, collective: bool, size: int, time_us: float, penalty_us: float
) -> None:
    if collective:
        totals.collective_operations += calls
    else:
        totals.point_to_point_operations += calls
    totals.estimated_time_us_total += calls * time_us
    totals.contention_penalty_us_total += calls * penalty_us
    if time_us > 0:
        totals.peak_bytes_per_us = max(totals.peak_bytes_per_us, size / time_us)


def _count_call(record: RankRecord, kind: str, collective: bool, calls: int) -> None:
    if kind == "barrier":
        record.barrier_calls += calls
    if collective:
        record.collective_calls += calls
    else:
        record.point_to_point_calls += calls
