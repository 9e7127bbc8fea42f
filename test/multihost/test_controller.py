"""The ssh controller with a stand-in for ssh (local_ssh.py): every node is a checkout of its own on this machine.

What the connection itself does is tested in test_namespaces.py, with real sshds. The cases here need no torch.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import hosts
import pytest

if not (hosts.ROOT / ".git").exists():
    pytest.skip("this is no git checkout", allow_module_level=True)
SSH = f"{sys.executable} {hosts.ROOT / 'test' / 'multihost' / 'local_ssh.py'}"


def ports() -> tuple[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return str(one.getsockname()[1]), str(two.getsockname()[1])


@pytest.fixture(scope="module")
def repo(tmp_path_factory) -> Path:
    return hosts.checkout(tmp_path_factory.mktemp("hosts") / "repo")


def command(repo: Path, folder: Path, *more: str, ssh: tuple[str, ...] = ("a", "b"), other: Path | None = None) -> list[str]:
    coordinator, master = ports()
    found = [sys.executable, str(repo / "verification" / "run_physical_multihost.py"), "--ssh", SSH, "--coordinator-host",
             "127.0.0.1", "--coordinator-port", coordinator, "--master-port", master, "--output-dir", str(folder),
             "--session", "one", *more]  # fmt: skip
    for index, destination in enumerate(ssh):
        place = other if other and index else repo
        found += ["--node", f"name=n{index};ssh={destination};repo={place};python={sys.executable};shell=posix"]
    return found


def run(words: list[str], folder: Path) -> tuple[subprocess.CompletedProcess, dict]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=250, check=False)
    path = folder / "one" / "result.json"
    return done, json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def test_failures_between_hosts_are_named(repo: Path, tmp_path: Path) -> None:
    done, result = run(command(repo, tmp_path, "--case", "mismatch", "--case", "missing_peer"), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert result["complete"] and result["passed"] and [case["name"] for case in result["cases"]] == ["mismatch", "missing_peer"]
    assert [failure["source"] for failure in result["failures"]] == ["mismatch", "timeout"]
    assert result["node_pairs"][0]["a_to_b_bytes"] == result["node_pairs"][0]["b_to_a_bytes"] == 32
    files = {path.name for path in (tmp_path / "one" / "mismatch").iterdir()}
    assert files >= {"cluster.json", "cluster.md", "rank0.json", "rank1.json", "n0.txt", "n1.txt"}


@pytest.mark.parametrize(
    "flags, text",
    [
        (("--coordinator-port", "5000", "--master-port", "5000"), "expected two different ports"),
        (("--session", "../x"), "--session ../x: expected letters"),
        (("--node", "name=c;ssh=c"), "no repo, python"),
        (("--node", "name=c;ssh=c;repo=/r;python=p;shell=cmd"), "shell=cmd, expected posix or wsl"),
        (("--node", "name=n0;ssh=c;repo=/r;python=p"), "two nodes have the same name"),
    ],
    ids=["ports", "session", "node", "shell", "names"],
)
def test_bad_flags_are_refused(repo: Path, tmp_path: Path, flags: tuple, text: str) -> None:
    done, result = run(command(repo, tmp_path, *flags), tmp_path)
    assert (done.returncode, result) == (2, {}) and text in done.stderr


def test_a_host_that_does_not_answer_is_named(repo: Path, tmp_path: Path) -> None:
    done, result = run(command(repo, tmp_path, "--case", "mismatch", ssh=("a", "unreachable")), tmp_path)
    assert done.returncode == 1 and result["cases"] == [] and not result["complete"]
    assert "node n1 (unreachable): the ssh connection failed or broke: ssh: connect to host" in result["error"]


def test_another_commit_and_a_missing_build_are_named(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "clone", "-q", "--shared", str(hosts.ROOT), str(other)], check=True)
    author = ("-c", "user.name=t", "-c", "user.email=t@t.example")
    subprocess.run(["git", *author, "commit", "-q", "--allow-empty", "-m", "other"], cwd=other, check=True)
    (other / "LICENSE").write_text("changed")
    done, result = run(command(repo, tmp_path, "--case", "mismatch", other=other), tmp_path)
    assert done.returncode == 1 and result["cases"] == []
    for text in ("expected this checkout's", "tracked files are changed: LICENSE", "not built: fakegpu/lib/libfakegpu_rt.so"):
        assert f"node n1: {text}" in result["error"] or text in result["error"]


def test_an_interrupted_run_stops_what_it_started(repo: Path, tmp_path: Path) -> None:
    """The signal comes while the ranks of the last host wait for those that never come."""
    words = command(repo, tmp_path, "--case", "mismatch", "--case", "missing_peer")
    controller = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert controller.stdout.readline() == "mismatch: OK\n"
        controller.send_signal(signal.SIGINT)
        out, _ = controller.communicate(timeout=100)
    finally:
        controller.kill()
    result = json.loads((tmp_path / "one" / "result.json").read_text(encoding="utf-8"))
    assert controller.returncode == 130 and result["error"] == "interrupted by SIGINT", out
    assert result["finished"] and not result["complete"] and not result["passed"]
    assert result["cases"][0]["passed"]
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and _runs_in(pid, repo)]
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


def _runs_in(pid: str, repo: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")) == repo
    except OSError:
        return False
