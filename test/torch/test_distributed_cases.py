"""Small torchrun programs from real reports, with the outcome that is right: values, or an error that names the ranks."""

import subprocess
import sys

import pytest
from launched import Job, torchrun

pytest.importorskip("torch")
VALUES = ("uneven_all_to_all", "empty_all_gather", "strided_gather", "strided_reduce_scatter", "complex_sum",
          "bitwise_refused", "integer_average", "bfloat16_average", "wrapping_sum", "fp8_all_gather", "one_hash",
          "rank_order", "send_to_self", "coalesced", "gathered_objects")
SHORT_DUMP = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100"}  # torch's watchdog waits a minute for its dump otherwise
CLASSES = ("new_groups", "locally_synchronized_groups", "subgroups", "split_groups", "objects", "batched_pairs",
           "uneven_lists", "functional_collectives", "coalesced_gathers", "rooted", "registered_pool", "aborted_group")
REPORTED = ("static_graph_without_the_second_loss", "static_graph_with_no_sync", "with_join", "strided_shard",
            "viewed_shards", "one_microbatch_in_two_stages")
MISMATCHES = {
    "pair_sizes": ([0, 1], ("pair 0 -> 1", "rank 0 sent 2", "rank 1 expected 3")),
    "counts": ([0, 1], ("rank 0: all_reduce #0 float32 count 409600", "rank 1: all_reduce #0 float32 count 409598")),
    "kinds": ([0, 1], ("rank 0: all_reduce #0 float32 count 8", "rank 1: all_gather #0 float32 count 8")),
    "three_to_one": ([0, 1, 2, 3], ("ranks 0-1,3: all_reduce #0 float32 count 16",
                                    "rank 2: all_gather #0 float32 count 8")),
    "fp8_on_a100": ([0, 1], ("FP8 reduction support begins with sm90",)),
}


@pytest.fixture(scope="module")
def values(tmp_path_factory) -> Job:
    return torchrun("values.py", 4, tmp_path_factory.mktemp("values")).succeeded()


@pytest.mark.parametrize("name", VALUES)
def test_value(values: Job, name: str) -> None:
    assert values.ok(name) == [0, 1, 2, 3]


def test_rank_order_does_not_follow_devices(tmp_path) -> None:
    job = torchrun("values.py", 4, tmp_path, CUDA_VISIBLE_DEVICES="3,2,1,0").succeeded()
    assert job.ok("rank_order") == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def mismatches(tmp_path_factory) -> Job:
    return torchrun("mismatch.py", 4, tmp_path_factory.mktemp("mismatch"), flags=("--devices", "a100:2,h100:2"),
                    TORCH_NCCL_BLOCKING_WAIT="1", **SHORT_DUMP)


@pytest.mark.resilience
@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_named_on_every_rank(mismatches: Job, name: str) -> None:
    ranks, texts = MISMATCHES[name]
    caught = mismatches.caught(name)
    assert sorted(caught) == ranks, mismatches.output
    for text in texts:
        assert all(text in error for error in caught.values()), (text, caught)
        assert name == "fp8_on_a100" or text in mismatches.failures()


def test_fp8_reduces_on_h100(mismatches: Job) -> None:
    assert mismatches.ok("fp8_on_h100") == [2, 3]


@pytest.mark.resilience
def test_watchdog_and_coordinator_name_who_never_joined(tmp_path) -> None:
    job = torchrun("skipped.py", 2, tmp_path, **SHORT_DUMP)
    assert job.status != 0 and job.ok("first") == [0, 1], job.output
    assert "Watchdog caught collective operation timeout" in job.output
    for text in ("rank 0: all_reduce #1 float32 count 4", "never joined: rank 1"):
        assert text in job.failures(), job.report.get("resilience")
        assert text in job.output, job.output


@pytest.fixture(scope="module")
def failed_streams(tmp_path_factory) -> Job:
    return torchrun("stream_failure.py", 2, tmp_path_factory.mktemp("stream_failure"),
                    TORCH_NCCL_ASYNC_ERROR_HANDLING="0", **SHORT_DUMP)


@pytest.mark.resilience
@pytest.mark.parametrize("way", ("synchronize", "stream", "stream_query", "event", "event_query", "operator", "item",
                                 "copy", "other_stream"))
def test_a_failed_collective_is_told_to_whoever_waits(failed_streams: Job, way: str) -> None:
    caught = failed_streams.caught(way)
    assert sorted(caught) == [0, 1], failed_streams.output
    for text in ("rank 0: all_reduce #0 float32 count 8", "rank 1: all_reduce #0 float32 count 9"):
        assert all(text in error for error in caught.values()), caught


def test_streams_go_on_after_an_abort(failed_streams: Job) -> None:
    assert failed_streams.ok("afterwards") == [0, 1], failed_streams.output


def test_issuing_does_not_wait_for_a_late_peer(tmp_path) -> None:
    assert torchrun("late.py", 2, tmp_path).succeeded().ok("late") == [0, 1]


def test_a_compiled_ddp_model_trains_and_one_line_says_what_ran(tmp_path) -> None:
    job = torchrun("compile.py", 2, tmp_path).succeeded()
    assert job.ok("compiled") == [0, 1]
    assert job.output.count("runs eagerly on fake devices") == 1, job.output


def test_collectives_inside_a_cuda_graph(tmp_path) -> None:
    job = torchrun("graph_collective.py", 2, tmp_path).succeeded()
    assert job.ok("launches") == [0, 1]
    assert job.report["collectives"]["all_reduce"]["calls"] == 4  # two before the capture, none in it, two launches


@pytest.fixture(scope="module", params=["0", "1"], ids=["blocking", "nonblocking"])
def classes(request, tmp_path_factory) -> Job:
    """With communicators made eagerly (device_id), as blocking and as non-blocking ones."""
    folder = tmp_path_factory.mktemp("classes")
    return torchrun("classes.py", 4, folder, TORCH_NCCL_USE_COMM_NONBLOCKING=request.param).succeeded()


@pytest.mark.parametrize("name", CLASSES)
def test_class_of_use(classes: Job, name: str) -> None:
    assert classes.ok(name) == [0, 1, 2, 3]


@pytest.mark.resilience
@pytest.mark.parametrize(("how", "steps"), [
    pytest.param("pairs", ("0 waits in send #1 to rank 1", "1 waits in send #1 to rank 0"), id="case-32-pairs"),
    pytest.param("mixed", ("0 waits in all_reduce #1", "1 waits in recv #1 from rank 0"), id="collective-and-receive"),
])
def test_circle_is_printed_though_the_watchdog_comes_first(tmp_path, how: str, steps: tuple[str, ...]) -> None:
    job = torchrun("deadlock.py", 2, tmp_path, how, **SHORT_DUMP)
    assert job.status != 0 and job.ok("grouped") == [0, 1], job.output
    for text in ("circular wait of global ranks 0 -> 1 -> 0", *steps):
        assert text in job.failures() and text in job.output, job.output


@pytest.mark.resilience
def test_gather_of_the_main_process_only(tmp_path) -> None:
    """Case 52: those who never joined are named, by us and by torch's reader of the flight recorder's dumps."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    job = torchrun("main_only.py", 3, tmp_path, TORCH_FR_BUFFER_SIZE="100", TORCH_NCCL_DUMP_ON_TIMEOUT="1",
                   TORCH_FR_DUMP_TEMP_FILE=str(dumps / "rank"), TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="1000")
    assert job.status != 0 and job.ok("first") == [0, 1, 2], job.output
    assert "never joined: ranks 1-2" in job.failures() and "never joined: ranks 1-2" in job.output, job.output
    reader = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(dumps), "-p", "rank"]
    read = subprocess.run(reader, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert "missing ranks: {1, 2}" in read.stdout and "nccl:gather" in read.stdout, read.stdout


@pytest.mark.resilience
def test_a_group_shrinks_while_the_excluded_rank_lives_on(tmp_path) -> None:
    assert torchrun("shrink.py", 4, tmp_path, seconds=60).succeeded().ok("shrink") == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def reported(tmp_path_factory) -> Job:
    return torchrun("reported.py", 2, tmp_path_factory.mktemp("reported"), *REPORTED).succeeded()


@pytest.mark.parametrize("name", REPORTED)
def test_reported_program(reported: Job, name: str) -> None:
    """Cases 50 and 52."""
    assert reported.ok(name) == [0, 1]


@pytest.mark.resilience
def test_a_rank_with_one_batch_fewer_is_named(tmp_path) -> None:
    """Case 50 c without join()."""
    job = torchrun("reported.py", 2, tmp_path, "without_join", **SHORT_DUMP)
    assert job.status != 0, job.output  # torch aborts: the waiting rank may come out of its wait before it is ended
    assert "never joined: rank 1" in job.failures() and "never joined: rank 1" in job.output, job.output


def test_ranks_share_a_device_unless_told_to_refuse(tmp_path) -> None:
    """Case 43 without set_device."""
    assert torchrun("reported.py", 2, tmp_path, "without_set_device").succeeded().ok("without_set_device") == [0, 1]
    job = torchrun("reported.py", 2, tmp_path, "without_set_device", FAKEGPU_DUPLICATE_GPU="error")
    assert job.status != 0 and "Duplicate GPU detected" in job.output, job.output


SYMMETRIC = ("signals", "peers", "all_reduces", "reduce_scatters", "fused", "in_a_graph", "issuing_does_not_wait")


@pytest.fixture(scope="module")
def symmetric(tmp_path_factory) -> Job:
    return torchrun("symmetric.py", 4, tmp_path_factory.mktemp("symmetric")).succeeded()


@pytest.mark.parametrize("name", SYMMETRIC)
def test_symmetric_memory(symmetric: Job, name: str) -> None:
    assert symmetric.ok(name) == [0, 1, 2, 3]


def test_a_signal_that_does_not_come_in_time_is_named(symmetric: Job) -> None:
    text = "symmetric memory: wait_signal: rank 0 waits for rank 1 on channel 0: nothing in 200 ms"
    assert text in symmetric.caught("late")[0]
