"""Groups and point-to-point of libnccl.so.2: rings, self sends, many operations, several communicators, errors at the end."""

from __future__ import annotations

import nccl_bodies as bodies
import numpy as np
import pytest
from nccl_world import Failed, make_world
from test_nccl_collectives import SMALL_CHUNK

INVALID_ARGUMENT, INVALID_USAGE = 4, 5


@pytest.fixture(scope="module", params=["2-shm", "3-shm", "3-socket", "2-tcp", "2-tcpshm"])
def world(request):
    nranks, transport = request.param.split("-")
    with make_world(int(nranks), transport, options=SMALL_CHUNK) as made:
        yield made
        made.run(bodies.destroy)


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
@pytest.mark.parametrize("count", [0, 1, 1000, 60_000])
def test_a_ring_of_grouped_sends_and_receives(world, count, device):
    found = world.run(bodies.ring, count, device)
    for rank, output in enumerate(found):
        left = (rank - 1) % world.nranks
        np.testing.assert_array_equal(output, np.arange(count, dtype=np.int32) + left * 1000)


def test_small_sends_complete_before_their_receives(world):
    assert world.run(bodies.send_then_receive, 100) == [True] * world.nranks


@pytest.mark.parametrize("count", [5, 60_000])
def test_a_send_to_self_inside_a_group(world, count):
    assert all(world.run(bodies.self_send, count))


def test_sends_and_receives_match_in_order(world):
    found = world.run(bodies.ordered_pairs, 20)
    assert found[-1] == list(range(20))


def test_a_group_of_many_operations(world):
    """More collectives than may be outstanding, mixed with point-to-point, in one group."""
    found = world.run(bodies.many_operations, 150)
    total = sum(range(world.nranks)) + 0
    for output, received in found:
        np.testing.assert_array_equal(output, [total + world.nranks * i for i in range(150)])
        assert received is True


def test_two_communicators_in_one_group_run_concurrently(world):
    """The ranks name the communicators in opposite order, which only works when neither waits for the other."""
    assert all(world.run(bodies.two_communicators))


def test_groups_nest(world):
    assert all(world.run(bodies.nested_group))


def test_an_error_in_a_group_surfaces_at_its_end_and_issues_nothing(world):
    inside, at_end = zip(*world.run(bodies.error_in_group))
    assert set(inside) == set(at_end) == {INVALID_ARGUMENT}
    assert all(world.run(bodies.nested_group))  # the communicator is untouched


def test_a_group_end_without_start_is_refused(world):
    found = world.run(bodies.lonely_group_end, allow_failures=True)
    assert all(isinstance(f, Failed) and f.result == INVALID_USAGE for f in found)


def test_all_ranks_of_one_process():
    """ncclCommInitAll: four communicators of one thread, one device each, operated in one group."""
    with make_world(1, "shm", FAKEGPU_DEVICE_COUNT="4") as world:
        assert world.run(bodies.init_all, 4) == [[6.0, 6.0, 6.0, 6.0]]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_rank_may_destroy_right_after_its_part(transport):
    """The peer may still be receiving what was sent."""
    with make_world(2, transport) as world:
        for _ in range(15):
            uid = world.finish(world.start(bodies.unique_id, ranks=[0]))[0]
            assert world.run(bodies.exchange_and_destroy, uid, 400_000) == [True, True]
