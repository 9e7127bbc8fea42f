"""Faults through libnccl.so.2 on one host: errors that last, missing peers, deaths at rest and at work, what the report keeps."""

from __future__ import annotations

import json
import time

import nccl_bodies as bodies
import pytest
from nccl_world import World

pytestmark = pytest.mark.resilience
REMOTE, TIMEOUT, MISMATCH = 6, 8, 5
TRANSPORTS = ["shm", "socket", "tcp", "tcpshm"]


@pytest.fixture
def make(tmp_path):
    """World(...) with a communicator and a report; `document` ends it and reads the report."""
    worlds = []

    def begin(nranks: int, transport: str, timeout_ms: int = 20_000, **options) -> World:
        world = World(nranks, transport, timeout_ms, {"report": str(tmp_path / "report.json"), **options})
        worlds.append(world)
        world.run(bodies.init, world.finish(world.start(bodies.unique_id, ranks=[0]))[0])
        return world

    yield begin
    for world in worlds:
        world.close()


def document(world: World) -> dict:
    world.close()
    return world.coordinator.document


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_mismatched_reduction_lasts_and_reads_the_same_everywhere(make, transport) -> None:
    world = make(3, transport)
    failed = world.run(bodies.submit_with, [7, 7, 7], [0, 0, 2], None, allow_failures=True)
    assert {f.result for f in failed} == {MISMATCH}
    answers = world.run(bodies.lasting_error)
    for first, second, used, after in answers:
        assert first == second == after and first[0] == MISMATCH
        assert used[0] == MISMATCH
        for text in (first[1], used[1]):
            assert "ranks 0-1: all_reduce #0 float32 count 4 sum" in text and "rank 2: all_reduce #0" in text
    assert len({answer[0][1] for answer in answers}) == 1, "one text on every rank"
    resilience = document(world)["resilience"]
    assert resilience["failure_count"] == 1
    (event,) = resilience["failure_events"]
    assert (event["source"], event["seqno"], event["attempted_payload_bytes"]) == ("mismatch", 0, 16)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_missing_peer_is_in_the_report(make, transport) -> None:
    world = make(3, transport, timeout_ms=700)
    failed = world.run(bodies.skip_last_rank, allow_failures=True)
    assert [f.result for f in failed[:2]] == [TIMEOUT] * 2 and "never joined: rank 2" in failed[0].text
    found = document(world)
    (event,) = found["resilience"]["failure_events"]
    assert (event["source"], event["observed_ranks"], event["attempted_payload_bytes"]) == ("timeout", [0, 1], 16)
    assert [rank["timeouts"] for rank in found["ranks"]] == [1, 1, 0]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_at_rest_is_an_asynchronous_error(make, transport) -> None:
    world = make(3, transport)
    world.run(bodies.submit, [("all_reduce", 8)] * 3)
    waiting = world.start(bodies.wait_for_error, 10.0, ranks=[0, 2])
    world.start(bodies.exit_now, ranks=[1])
    for status, text, seconds in world.finish(waiting):
        assert status == REMOTE and seconds < 5
        assert "rank 1 (global rank 1" in text and "last operation: all_reduce #0 float32 count 8 sum, finished" in text
    (event,) = document(world)["resilience"]["failure_events"]
    assert (event["source"], event["global_rank"], event["attempted_payload_bytes"]) == ("dead_rank", 1, 0)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_death_at_work_tells_what_was_attempted_and_the_others_go_on(make, transport) -> None:
    world = make(3, transport)
    waiting = world.start(bodies.submit, [("all_reduce", 800)] * 3, ranks=[0, 1])
    until = time.monotonic() + 20
    while world.coordinator.status()["communicators"][0]["waiting"] < 2:
        assert time.monotonic() < until, world.coordinator.status()
    world.start(bodies.exit_now, ranks=[2])
    assert [f.result for f in world.finish(waiting, 15, allow_failures=True)] == [REMOTE] * 2
    assert world.finish(world.start(bodies.shrink, [2], True, ranks=[0, 1])) == [(2, 0, 3), (2, 1, 3)]
    resilience = document(world)["resilience"]
    assert (resilience["failure_count"], resilience["recovery_count"]) == (1, 1)
    event, recovery = resilience["failure_events"][0], resilience["recovery_events"][0]
    assert (event["source"], event["observed_ranks"], event["attempted_payload_bytes"]) == ("dead_rank", [0, 1], 3200)
    assert (recovery["excluded_ranks"], recovery["surviving_ranks"], recovery["abort_parent"]) == ([2], [0, 1], True)


@pytest.mark.parametrize("kept", [0, 10])
def test_the_report_keeps_as_many_operations_as_asked(make, kept) -> None:
    world = make(2, "shm", max_operations=kept)
    assert world.run(bodies.small_messages, 40) == [[], []]
    found = document(world)
    timeline = found["operation_timeline"]
    assert (timeline["retained_entries"], timeline["dropped_entries"]) == (kept, 50 - kept)
    assert len(timeline["entries"]) == kept
    assert found["collectives"]["all_reduce"]["calls"] == 10 and found["point_to_point"]["sends"] == 20
    json.dumps(found)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_small_messages_by_the_thousand(make, transport) -> None:
    world = make(4, transport)
    assert world.run(bodies.small_messages, 1000, timeout=120) == [[]] * 4
    found = document(world)
    assert found["resilience"]["failure_count"] == 0
    assert [found["collectives"][kind]["calls"] for kind in ("all_reduce", "all_gather", "broadcast")] == [250] * 3


@pytest.mark.parametrize("transport, used", [("shm", "shared_memory"), ("socket", "socket_payload"), ("tcp", "socket_payload"),
                                             ("tcpshm", "shared_memory")])
def test_the_report_says_what_moved_the_payload(make, transport, used) -> None:
    world = make(2, transport)
    world.run(bodies.submit, [("all_reduce", 8)] * 2)
    found = document(world)
    assert {operation["buffer_transport"] for operation in found["operation_timeline"]["entries"]} == {used}
    assert found["cluster"]["coordinator_transport"] == ("tcp" if transport.startswith("tcp") else "unix")
