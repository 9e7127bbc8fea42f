"""`--pace model`: an operation takes at least its modelled time, and one that is slow by itself hardly longer."""

import time
from pathlib import Path

import fakegpu
import numpy as np
import pytest
from worlds import run_ranks, values

CLUSTER = Path(__file__).resolve().parents[2] / "verification/data/cluster_tcp_2r.yaml"  # 10 Gbit/s, 100 us


def timed(comm) -> list[float]:
    """Seconds of each of five all-reduces of a MiB, of a send and its receive, and of an empty barrier."""
    data, took = np.ones(1 << 18, np.float32), []
    for _ in range(5):
        start = time.perf_counter()
        comm.all_reduce(data, data)
        took.append(time.perf_counter() - start)
    start = time.perf_counter()
    if comm.rank == 0:
        comm.send(data, 1)
    else:
        comm.recv(data, 0)
    took.append(time.perf_counter() - start)
    return took


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_operations_take_their_modelled_time(transport):
    with fakegpu.Coordinator(transport, cluster=CLUSTER, pace="model", eager_bytes=0) as coordinator:
        took = values(run_ranks(coordinator.address, 2, timed))
        entries = list(coordinator.recorder.snapshot().timeline)
        modelled = [coordinator.recorder.modeled_time_us(event) / 1e6 for event in entries]
    assert modelled[0] > 1e-3, "the model is slow enough to be seen"
    for rank_times in took:
        first, send = rank_times[0], rank_times[5]
        assert first >= 0.95 * modelled[0]
        assert send >= 0.95 * modelled[5]
    assert all(event.coordinator_duration_us >= 0.9e6 * modelled[0] for event in entries[:1])


def test_a_failed_communicator_starts_nothing_later():
    def body(comm):
        if comm.rank == 1:
            comm.abort("on purpose")
            return None
        with pytest.raises(fakegpu.FakeGPUError):
            for _ in range(100):
                comm.all_reduce(np.ones(1 << 16, np.float32))
        return True

    with fakegpu.Coordinator(cluster=CLUSTER, pace="model") as coordinator:
        values(run_ranks(coordinator.address, 2, body))


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="expected none or model"):
        fakegpu.Coordinator(pace="fast")
