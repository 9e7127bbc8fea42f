"""libnccl.so.2 on the streams of libcudart.so.13: issuing does not wait for peers, order holds, abort drains."""

from __future__ import annotations

import nccl_bodies as bodies
import pytest
from fakegpu.nccl_ctypes import library_path
from nccl_world import make_world

pytestmark = pytest.mark.skipif(
    not (library_path().parent / "libcudart.so.13").exists(), reason="libcudart.so.13 is not built"
)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("count", [1, 500_000])
def test_issuing_returns_at_once_while_the_peer_is_late(transport, count):
    with make_world(2, transport) as world:
        ((seconds, query),) = world.finish(world.start(bodies.issue_async, count, ranks=[0]))
        assert query == bodies.Cuda.NOT_READY  # the peer has not issued its part
        assert seconds < 2
        world.finish(world.start(bodies.issue_async, count, ranks=[1]))
        assert world.run(bodies.finish_async) == [3.0, 3.0]
        world.run(bodies.destroy)


def test_one_communicator_on_several_streams():
    with make_world(2, "shm") as world:
        # rank sums 1, 3, 5; the group adds the two ranks' results of the first two streams once more
        assert world.run(bodies.several_streams, 10_000) == [[2.0, 6.0, 5.0]] * 2
        world.run(bodies.destroy)


def test_an_abort_drains_the_stream():
    with make_world(2, "shm", timeout_ms=60_000) as world:
        ((seconds, query),) = world.finish(world.start(bodies.abort_pending, ranks=[0]), timeout=20)
        assert seconds < 5 and query == 0
        world.finish(world.start(bodies.abort, ranks=[1]))
