import time

import pytest
from fakegpu.cluster import ClusterSpec
from fakegpu.recorder import FailureEvent, OperationEvent, Recorder, logical_payload_bytes


def event(kind="all_reduce", ranks=(0, 1, 2, 3), count=100, comm_id=1, seqno=0, **more):
    size = logical_payload_bytes(kind, len(ranks), count, 4)
    return OperationEvent(comm_id, seqno, kind, "float32", "sum", "shared_memory", ranks, count, 4, size, **more)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("all_reduce", 400), ("all_gather", 1600), ("reduce_scatter", 1600), ("all_to_all", 1600), ("broadcast", 400),
     ("barrier", 0), ("send", 400)],
)
def test_payload_is_the_larger_buffer(kind, expected):
    assert logical_payload_bytes(kind, 4, 100, 4) == expected


def test_a_split_counts_for_its_members_nodes_only():
    recorder = Recorder(ClusterSpec.default(3, 2, "h100"))
    recorder.communicator_created(1, "world", range(6))
    recorder.communicator_created(2, "split", (2, 3, 4, 5), parent=1)
    recorder.operation(event(ranks=(2, 3, 4, 5), comm_id=2))
    snapshot = recorder.snapshot()
    touched = {node for link in snapshot.accounting.links for node in link}
    assert touched == {1, 2}
    calls = {record.rank: record.collective_calls for record in snapshot.ranks}
    assert calls == {0: 0, 1: 0, 2: 1, 3: 1, 4: 1, 5: 1}
    assert [record.communicator_inits for record in snapshot.ranks] == [1, 1, 2, 2, 2, 2]


def test_timeline_rolls_and_counts_what_it_dropped():
    recorder = Recorder(max_operations=3)
    for seqno in range(10):
        recorder.operation(event(seqno=seqno))
    snapshot = recorder.snapshot()
    assert [entry.seqno for entry in snapshot.timeline] == [7, 8, 9]
    assert snapshot.dropped_operations == 7
    assert snapshot.accounting.kinds["all_reduce"].calls == 10


def test_no_timeline_at_all():
    recorder = Recorder(max_operations=0)
    recorder.operation(event())
    snapshot = recorder.snapshot()
    assert (snapshot.timeline, snapshot.dropped_operations) == ([], 1)
    with pytest.raises(ValueError, match="-1"):
        Recorder(max_operations=-1)


def test_snapshots_do_not_count_twice():
    recorder = Recorder()
    recorder.operation(event())
    recorder.snapshot()
    recorder.operation(event())
    assert recorder.snapshot().accounting.kinds["all_reduce"].calls == 2
    assert recorder.snapshot().accounting.kinds["all_reduce"].bytes == 800


def test_many_distinct_operations_stay_bounded_and_exact():
    recorder = Recorder(ClusterSpec.default(2, 1), max_operations=10)
    sizes = range(1, 9001)
    for size in sizes:
        recorder.operation(event("send", (0, 1), size, src=0, dst=1))
    assert len(recorder._buckets) <= 4096
    accounting = recorder.snapshot().accounting
    assert accounting.point_to_point.bytes == accounting.links[0, 1].bytes == 4 * sum(sizes)
    assert accounting.links[0, 1].peak_bytes_per_operation == 36000


def test_failures_are_all_counted_and_the_newest_kept():
    recorder = Recorder()
    for seqno in range(1500):
        recorder.failure(FailureEvent(1, seqno, 0, 0, "timeout", "all_reduce", 8, "late"))
    snapshot = recorder.snapshot()
    assert snapshot.failure_count == 1500
    assert snapshot.failures[-1].seqno == 1499
    assert len(snapshot.failures) < 1500


def test_operation_is_cheap_enough_for_the_coordinator():
    recorder = Recorder()
    one = event()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(2000):
            recorder.operation(one)
        best = min(best, (time.perf_counter() - start) / 2000)
    assert best < 5e-6, f"{best * 1e6:.1f} us"


def simulated(recorder, *operations):
    keys = ("comm", "rank", "kind", "root", "count")
    rows = [dict(zip(keys, row, strict=True), dtype=7, redop=0) for row in operations]
    return recorder.simulate({"query": "simulate", "operations": rows})["time_us"]


def test_a_group_is_simulated_on_the_cluster():
    recorder = Recorder(ClusterSpec.default(2, 2, "h100"))
    recorder.communicator_created(5, "half", (2, 1))
    recorder.communicator_created(6, "same node", (2, 3))
    send, recv, all_reduce = 8, 9, 0
    across = simulated(recorder, (5, 0, send, 1, 1 << 20))
    assert simulated(recorder, (5, 1, recv, 0, 1 << 20)) == across
    assert 0 < simulated(recorder, (6, 0, send, 1, 1 << 20)) < across
    assert simulated(recorder, (6, 0, all_reduce, -1, 1 << 20)) > 0
    assert simulated(recorder) == 0


@pytest.mark.parametrize("row", [(9, 0, 0, -1, 1), (5, 0, 99, -1, 1), (5, 0, 8, 7, 1), (5, 0, 0, -1, -1)], ids=str)
def test_a_group_that_cannot_be_simulated_is_refused_by_name(row):
    recorder = Recorder(ClusterSpec.default(2, 2, "h100"))
    recorder.communicator_created(5, "half", (2, 1))
    with pytest.raises(ValueError, match=r"operations\[0\]"):
        simulated(recorder, row)
