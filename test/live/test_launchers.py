"""Programs below the launchers people have: Open MPI's and MPICH's mpirun (the real ones), torchrun, a plain shell.

fgpu may stand in front of the launcher, or in front of each rank with a coordinator that somebody started.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import mpi
import pytest
import yaml

import fakegpu

FGPU = [sys.executable, "-m", "fakegpu"]
NCCL = [sys.executable, str(mpi.ROOT / "test" / "programs" / "launched_nccl.py")]
DDP = [sys.executable, str(mpi.ROOT / "test" / "programs" / "launched_ddp.py")]
LAUNCHERS = ("openmpi", "mpich")


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, env=mpi.environment(**variables), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=200, check=False)


def verdicts(done: subprocess.CompletedProcess, size: int = 4) -> None:
    """Status 0 and one OK of every rank."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(rf"rank (\d+) of {size}: OK", done.stdout)  # a launcher may join two ranks' lines
    assert sorted(map(int, found)) == list(range(size)), done.stdout + done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def report(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", LAUNCHERS)
def test_mpirun_below_fgpu(package: str, tmp_path: Path) -> None:
    """Four ranks of one host are one node, each with its own rank."""
    path = tmp_path / "report.json"
    done = run(*FGPU, "--quiet", "--report", str(path), mpi.mpirun(package), "-n", "4", *NCCL, folder=tmp_path)
    verdicts(done)
    assert report(path)["cluster"]["node_count"] == 1
    assert [(row["rank"], row["joined"]) for row in report(path)["ranks"]] == [(rank, True) for rank in range(4)]


@pytest.mark.parametrize("package", LAUNCHERS)
def test_fgpu_below_mpirun(package: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with fakegpu.Coordinator("tcp", report=path) as coordinator:
        done = run(mpi.mpirun(package), "-n", "4", *FGPU, "--quiet", "--coordinator-transport", "tcp",
                   "--coordinator-addr", str(coordinator.address), *NCCL, folder=tmp_path)  # fmt: skip
    verdicts(done)
    assert report(path)["collectives"]["all_reduce"]["calls"] == 1 and report(path)["cluster"]["world_size"] == 4


@pytest.mark.parametrize("package", [LAUNCHERS[0], pytest.param(LAUNCHERS[1], marks=pytest.mark.slow)])
def test_torch_ddp_below_mpirun(package: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(*FGPU, "--quiet", "--device-count", "4", mpi.mpirun(package), "-n", "4", *DDP, str(tmp_path / "meet"),
               folder=tmp_path)
    verdicts(done)


@pytest.mark.slow
@pytest.mark.parametrize("package", LAUNCHERS)
def test_torch_ddp_with_fgpu_below_mpirun(package: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with fakegpu.Coordinator("tcp") as coordinator:
        verdicts(run(mpi.mpirun(package), "-n", "4", *FGPU, "--quiet", "--device-count", "4", "--coordinator-transport",
                     "tcp", "--coordinator-addr", str(coordinator.address), *DDP, str(tmp_path / "meet"),
                     folder=tmp_path))  # fmt: skip


def test_a_coordinator_per_rank_is_refused(tmp_path: Path) -> None:
    """Each rank would wait alone until its time-out."""
    done = run(*FGPU, *NCCL, folder=tmp_path, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4")
    assert done.returncode == 2
    assert "this fgpu is rank 1 of 4 below Open MPI" in done.stderr and "--coordinator-addr" in done.stderr


@pytest.mark.parametrize("rendezvous", [pytest.param("static", marks=pytest.mark.slow), "c10d"])
def test_two_torchrun_nodes_on_one_machine(rendezvous: str, tmp_path: Path) -> None:
    """The agents' node numbers reach the report; with c10d it is the rendezvous that gives them."""
    pytest.importorskip("torch")
    port = free_port()
    static = f"--node-rank $node --master-addr 127.0.0.1 --master-port {port}"
    c10d = f"--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id job"
    agent = f"torchrun --nnodes 2 --nproc-per-node 2 {static if rendezvous == 'static' else c10d} {NCCL[1]} job"
    script = f"for node in 0 1; do {agent} & last=\"$last $!\"; done; for pid in $last; do wait $pid || exit 1; done"
    path = tmp_path / "report.json"
    done = run(*FGPU, "--quiet", "--report", str(path), "sh", "-c", script, folder=tmp_path)
    verdicts(done)
    assert [node["ranks"] for node in report(path)["cluster"]["nodes"]] == [[0, 1], [2, 3]]


ADVERTISED = "for r in 0 1; do RANK=$r WORLD_SIZE=2 {} {} & done; wait; echo $FAKEGPU_COORDINATOR_ADDR [$FAKEGPU_ADVERTISE]"


@pytest.mark.parametrize("host, shown", [("localhost", "localhost"), ("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_an_advertised_coordinator_is_reached_by_its_name(tmp_path: Path, host: str, shown: str) -> None:
    done = run(*FGPU, "--quiet", "--advertise", host, "sh", "-c", ADVERTISED.format(*NCCL), folder=tmp_path)
    verdicts(done, 2)
    assert re.search(rf"^{re.escape(shown)}:\d+ \[\]$", done.stdout, re.MULTILINE)
    assert done.stderr == ""  # no warning about strangers: there is a token


@pytest.mark.parametrize(
    "flags, text",
    [(("no such host",), "--advertise no such host:"), (("here", "--coordinator-addr", "/tmp/x"), "leave one of the two out")],
    ids=["unknown", "given"],
)
def test_a_wrong_advertise_is_refused(tmp_path: Path, flags: tuple, text: str) -> None:
    done = run(*FGPU, "--advertise", *flags, "true", folder=tmp_path)
    assert done.returncode == 2 and text in done.stderr


def test_a_plain_shell_sets_the_variables(tmp_path: Path) -> None:
    """What the README shows: two shells, a coordinator, RANK and WORLD_SIZE."""
    with fakegpu.Coordinator("tcp") as coordinator:
        common = [*FGPU, "--quiet", "--coordinator-transport", "tcp", "--coordinator-addr", str(coordinator.address), *NCCL]
        ranks = [subprocess.Popen(common, cwd=tmp_path, env=mpi.environment(RANK=str(rank), WORLD_SIZE="2"),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        outputs = [process.communicate(timeout=100) for process in ranks]
    assert [out for out, _ in outputs] == ["rank 0 of 2: OK\n", "rank 1 of 2: OK\n"], outputs


@pytest.mark.slow
def test_the_kubernetes_example_runs(tmp_path: Path) -> None:
    """Its own words, with this machine's addresses in place of service names; two pods are two processes."""
    documents = list(yaml.safe_load_all((mpi.ROOT / "data" / "kubernetes" / "job.yaml").read_text(encoding="utf-8")))
    job = next(document for document in documents if document["kind"] == "Job")
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["fakegpu"]
    path = tmp_path / "report.json"
    with fakegpu.Coordinator("tcp", report=path) as coordinator:
        pods = []
        port = str(free_port())
        for index in range(job["spec"]["completions"]):
            here = {"$(JOB_COMPLETION_INDEX)": str(index), "trainer-0.trainer": "127.0.0.1", "29500": port,
                    "fakegpu-coordinator:29591": str(coordinator.address), "train.py": NCCL[1]}
            command = [*FGPU, *(here.get(word, word) for word in container["args"])]
            pods.append(subprocess.Popen(command, cwd=tmp_path, env=mpi.environment(), stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True))
        outputs = [pod.communicate(timeout=200) for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert [node["ranks"] for node in report(path)["cluster"]["nodes"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.fixture
def srun() -> tuple[str, ...]:
    """Needs a Slurm that runs here (Debian: slurmctld, slurmd, munge, configured for this host alone)."""
    if not shutil.which("srun") or subprocess.run(["sinfo", "-h"], capture_output=True, check=False).returncode:
        pytest.skip("no running Slurm on this machine")
    return ("srun", "-n", "4", "--overcommit", "--export=ALL")


@pytest.mark.slow
def test_srun_below_fgpu(srun: tuple, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    verdicts(run(*FGPU, "--quiet", "--report", str(path), *srun, *NCCL, folder=tmp_path))
    assert report(path)["cluster"]["node_count"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("program", [NCCL, DDP], ids=["nccl", "ddp"])
def test_fgpu_below_srun(srun: tuple, tmp_path: Path, program: list[str]) -> None:
    pytest.importorskip("torch")
    with fakegpu.Coordinator("tcp") as coordinator:
        verdicts(run(*srun, *FGPU, "--quiet", "--device-count", "4", "--coordinator-transport", "tcp", "--coordinator-addr",
                     str(coordinator.address), *program, str(tmp_path / "meet"), folder=tmp_path))  # fmt: skip


@pytest.mark.slow
def test_a_coordinator_per_task_of_srun_is_refused(srun: tuple, tmp_path: Path) -> None:
    done = run(*srun, *FGPU, *NCCL, folder=tmp_path)
    assert done.returncode and "this fgpu is rank 3 of 4 below Slurm" in done.stderr
