"""Failures under torchrun: a killed rank and the restarted group, a stale unique id."""

import re
import time
from pathlib import Path

import pytest
from launched import Job, torchrun

pytest.importorskip("torch")
pytestmark = pytest.mark.resilience
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # a store of its own for every generation
RESTART = ("--standalone", "--max-restarts", "1", "--monitor-interval", "0.1")


def finals(job: Job) -> dict[str, str]:
    """rank: hash of its parameters and random numbers at the end."""
    return dict(re.findall(r"^ok (\d+) final (\w+)$", job.output, re.MULTILINE))


def elastic(folder: Path, *arguments: str, **variables: str) -> Job:
    folder.mkdir()
    return torchrun("elastic.py", 2, folder, str(folder / "checkpoint"), *arguments, launch=RESTART, **variables)


def test_a_restarted_training_ends_as_an_undisturbed_one(tmp_path) -> None:
    calm = elastic(tmp_path / "calm", **OWN_STORE).succeeded()
    job = elastic(tmp_path / "disturbed", "--die-at", "3", **OWN_STORE).succeeded()
    assert job.ok("generation 0 from step 0") == [0, 1]
    assert job.ok("generation 1 from step 3") == [0, 1]
    assert sorted(finals(calm)) == ["0", "1"] and finals(job) == finals(calm)
    deaths = [event for event in job.report["resilience"]["failure_events"] if event["source"] == "dead_rank"]
    assert [event["global_rank"] for event in deaths] == [1], job.failures()
    assert " died: its " in deaths[0]["error_detail"]


@pytest.mark.slow
def test_a_stale_unique_id_is_refused_by_name_at_once(tmp_path) -> None:
    """With the store that torchrun shares, the new generation finds the first one's unique id - unless its rank 0 has
    stored the new one before the others ask: then the restart succeeds."""
    started = time.monotonic()
    job = elastic(tmp_path / "shared", "--die-at", "3")
    restarted = job.ok("generation 1 from step 3")
    if job.status == 0:
        assert restarted == job.ok("generation 0 from step 0"), job.output
    else:
        assert restarted == [], job.output
        assert re.search("the unique id (was used before|belongs to another job generation)", job.output), job.output
    assert time.monotonic() - started < 120


@pytest.mark.slow
@pytest.mark.parametrize("who", ["all", "first"])
def test_meshes_end_cleanly_or_are_reported(who, tmp_path) -> None:
    """Sums along a flat and a square mesh; then every rank destroys its groups, or rank 0 alone: nobody waits for ever."""
    job = torchrun("mesh.py", 4, tmp_path, who, seconds=120).succeeded()
    assert job.ok("meshes") == job.ok("end") == [0, 1, 2, 3]
    assert not job.report["resilience"]["failure_count"], job.failures()
