"""Three hosts as network namespaces with real sshds: the controller's cases, a cut cable, the two-host bandwidth check.

`./ftest multihost` runs it; without root, iproute2 or openssh-server it is skipped with the reason.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import hosts
import pytest

pytestmark = pytest.mark.slow
NAMES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    reason = hosts.unavailable()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    with hosts.Hosts(folder, NAMES) as made:
        made.repos = {name: hosts.checkout(folder / name) for name in NAMES}
        yield made


def controller(world, folder: Path, *more: str) -> list[str]:
    nodes = [f"name={name};ssh={name};repo={world.repos[name]};python={sys.executable};shell=posix" for name in NAMES]
    return [sys.executable, str(world.repos["alpha"] / "verification" / "run_physical_multihost.py"), "--ssh", world.ssh,
            "--coordinator-host", world.address["alpha"], "--output-dir", str(folder), "--session", "one",
            *(word for node in nodes for word in ("--node", node)), *more]  # fmt: skip


def result(folder: Path) -> dict:
    return json.loads((folder / "one" / "result.json").read_text(encoding="utf-8"))


@pytest.mark.timeout(900)
def test_default_cases_on_three_hosts(world, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(controller(world, tmp_path), capture_output=True, text=True, timeout=850, check=False)
    found = result(tmp_path)
    assert done.returncode == 0 and found["passed"], done.stdout + done.stderr
    assert len(found["cases"]) == 10 and [node["preflight"]["host"] for node in found["nodes"]] == list(NAMES)
    assert {(pair["node_a"], pair["node_b"]) for pair in found["node_pairs"]} == {
        ("node0", "node1"), ("node0", "node2"), ("node1", "node2")}  # fmt: skip


def test_a_cut_cable_is_named_and_the_result_is_complete(world, tmp_path: Path) -> None:
    """Gamma's cable goes while its worker starts; the other hosts' ranks end, later cases are not run."""
    pytest.importorskip("torch")
    words = controller(world, tmp_path, "--case", "ddp", "--case", "mismatch", "--timeout", "120")
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        deadline = time.monotonic() + 60
        while not any("test_ddp_hybrid" in _words(pid) for pid in world.pids("gamma")) and time.monotonic() < deadline:
            assert running.poll() is None
            time.sleep(0.1)
        world.cut("gamma")
        out, _ = running.communicate(timeout=200)
    finally:
        running.kill()
    found = result(tmp_path)
    assert running.returncode == 1 and found["complete"] and not found["passed"], out
    ddp, mismatch = found["cases"]
    assert "node gamma (gamma): the ssh connection failed or broke" in ddp["error"]
    assert [rank["node"] for rank in ddp["ranks"]] == list(NAMES)
    assert mismatch["error"].startswith("not run: node gamma")


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_bandwidth_between_two_hosts(world, tmp_path: Path, family: str) -> None:
    """The two commands of the documents, each in its own host, against a coordinator that listens on all addresses."""
    everywhere, host = ("0.0.0.0", world.gateway) if family == "IPv4" else ("[::]", f"[{world.gateway6}]")
    fakegpu, report = [sys.executable, "-m", "fakegpu"], tmp_path / "cluster.json"
    serve = [*fakegpu, "coordinator", "--listen", f"{everywhere}:0", "--cluster-config",
             "verification/data/cluster_tcp_2r.yaml", "--report", str(report)]  # fmt: skip
    coordinator = subprocess.Popen(serve, cwd=hosts.ROOT, stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r":(\d+)$", coordinator.stdout.readline().strip()).group(1)
        common = [*fakegpu, "bandwidth", "--connect", f"{host}:{port}", "--world-size", "2", "--session", "test",
                  "--size", "1MiB", "--iterations", "5"]  # fmt: skip
        sides = [subprocess.Popen(world.inside(name, *common, "--ranks", str(rank), "--json", str(tmp_path / f"{rank}.json")),
                                  cwd=world.repos[name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank, name in enumerate(NAMES[:2])]  # fmt: skip
        outputs = [side.communicate(timeout=100) for side in sides]
    finally:
        coordinator.terminate()
        coordinator.communicate()
    assert [side.returncode for side in sides] == [0, 0], outputs
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert found["correct"] and found["sample"] == [3, 3, 3] and found["ranks"] == [rank]
    document = json.loads(report.read_text(encoding="utf-8"))
    pair = document["node_pairs"][0]
    assert pair["a_to_b"]["total_bytes"] and pair["b_to_a"]["total_bytes"]
    assert [row["timeouts"] for row in document["ranks"]] == [0, 0]


def test_hosts_are_nodes_and_reach_an_advertised_coordinator(world, tmp_path: Path) -> None:
    """What mpirun does over several hosts: no node numbers, fgpu in front of the launcher, its coordinator advertised."""
    program = f"{sys.executable} test/programs/launched_nccl.py"
    ranks = []
    for rank in range(4):
        name = NAMES[rank // 2]
        variables = f"OMPI_COMM_WORLD_RANK={rank} OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK={rank % 2}"
        inner = f"hostname {name}; {variables} OMPI_COMM_WORLD_NODE_RANK={rank % 2} {program}"
        ranks.append(" ".join(world.inside(name, "unshare", "--uts", "sh", "-c", shlex.quote(inner))) + " &")
    report = tmp_path / "report.json"
    fgpu = [sys.executable, "-m", "fakegpu", "--quiet", "--report", str(report), "--advertise", world.gateway]
    done = subprocess.run([*fgpu, "sh", "-c", " ".join([*ranks, "wait"])], cwd=hosts.ROOT, capture_output=True, text=True,
                          timeout=100, check=False)  # fmt: skip
    assert sorted(re.findall(r"rank (\d) of 4: OK", done.stdout)) == list("0123"), done.stdout + done.stderr
    document = json.loads(report.read_text(encoding="utf-8"))
    assert [node["ranks"] for node in document["cluster"]["nodes"]] == [[0, 1], [2, 3]]
    assert [row["host"] for row in document["ranks"]] == ["alpha", "alpha", "beta", "beta"]
