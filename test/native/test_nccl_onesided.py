"""Windows, puts and signals of libnccl.so.2: data where it belongs, peers' pointers, refusals, waits in vain."""

from __future__ import annotations

import nccl_bodies as bodies
import pytest
from nccl_world import Failed, make_world

INVALID_ARGUMENT, INVALID_USAGE, TIMEOUT = 4, 5, 8


@pytest.fixture(scope="module")
def trio():
    with make_world(3, "shm", timeout_ms=15_000) as world:
        yield world
        world.run(bodies.destroy)


@pytest.mark.parametrize("count", [1, 1000, 200_000])
def test_puts_and_signals_around_a_ring(trio, count):
    assert trio.run(bodies.put_ring, count, 5) == [True] * 3


def test_peers_windows_are_plain_pointers(trio):
    assert trio.run(bodies.peer_pointers) == [[40, 41, 42]] * 3


def test_a_put_outside_of_the_window_is_refused(trio):
    for result, text in trio.run(bodies.put_beyond, True, 48):
        assert result == INVALID_ARGUMENT and "32 bytes at peerWinOffset 48" in text and "has 64" in text


def test_a_put_into_memory_that_cannot_be_mapped_is_refused(trio):
    for result, text in trio.run(bodies.put_beyond, False, 0):
        assert result == INVALID_USAGE and "ncclPutSignal" in text and "device memory" in text


def test_over_sockets_puts_are_refused_and_pointers_are_null():
    with make_world(2, "tcp") as world:
        assert world.run(bodies.peer_pointers) == [[40, None], [None, 41]]
        assert [result for result, _ in world.run(bodies.put_beyond, True, 0)] == [INVALID_USAGE] * 2
        world.run(bodies.destroy)


def test_a_signal_that_never_comes_ends_with_the_time_out():
    with make_world(2, "shm", timeout_ms=600) as world:
        for failed in world.run(bodies.wait_in_vain, allow_failures=True):
            assert isinstance(failed, Failed) and failed.result == TIMEOUT
            assert "wait_signal from rank" in failed.text and "2 signals" in failed.text
        world.run(bodies.abort)
