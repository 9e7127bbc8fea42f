"""`fakegpu coordinator` as a process: ready line, questions, shutdown, refusals."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FAKEGPU = [sys.executable, "-m", "fakegpu"]


def ask(*arguments: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*FAKEGPU, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Running:
    """A coordinator process; `address` once it said that it listens."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.process = subprocess.Popen(
            [*FAKEGPU, "coordinator", *arguments],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ready = self.process.stdout.readline()
        self.address = self.ready.split()[-1] if self.ready else ""

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out + err


@pytest.fixture
def start() -> Iterator:
    started: list[Running] = []

    def run(*arguments: str, **variables: str) -> Running:
        started.append(Running(*arguments, **variables))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        running.process.communicate()


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_ready_ping_status_shutdown(start, transport: str, tmp_path: Path) -> None:
    where = (
        ["--listen", "127.0.0.1:0"] if transport == "tcp" else ["--transport", "unix", "--address", str(tmp_path / "c")]
    )
    running = start(*where, "--report", str(tmp_path / "report.json"))
    assert running.ready.startswith(f"coordinator listens on {transport} ")
    assert ask("coordinator", "--ping", running.address).returncode == 0
    status = json.loads(ask("coordinator", "--status", running.address).stdout)
    assert status["transport"] == transport and status["failures"] == 0
    assert ask("coordinator", "--shutdown", running.address).returncode == 0
    code, text = running.end()
    assert code == 0 and "report.json" in text
    assert json.loads((tmp_path / "report.json").read_text())["schema_version"] == "cluster_report.v1"
    assert not (tmp_path / "c").exists()


def test_the_seeds_variables_are_honoured(start, tmp_path: Path) -> None:
    address, report = str(tmp_path / "socket"), tmp_path / "r.json"
    running = start(
        "--transport",
        "unix",
        "--address",
        address,
        FAKEGPU_DIST_MODE="simulate",
        FAKEGPU_CLUSTER_CONFIG="verification/data/cluster_valid.yaml",
        FAKEGPU_COORDINATOR_TRANSPORT="unix",
        FAKEGPU_COORDINATOR_ADDR=address,
        FAKEGPU_CLUSTER_REPORT_PATH=str(report),
        FAKEGPU_CLUSTER_REPORT_MARKDOWN_PATH=str(tmp_path / "project.md"),
    )
    assert running.address == address
    running.process.send_signal(signal.SIGTERM)
    assert running.end()[0] == 0
    assert json.loads(report.read_text())["cluster"]["world_size"] == 4
    assert (tmp_path / "project.md").exists()


def test_the_environment_alone_says_where(start, tmp_path: Path) -> None:
    running = start(FAKEGPU_COORDINATOR_TRANSPORT="unix", FAKEGPU_COORDINATOR_ADDR=str(tmp_path / "socket"))
    assert running.address == str(tmp_path / "socket")


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "no address to listen on"),
        (["--listen", "nowhere"], "nowhere"),
        (["--listen", "127.0.0.1:1", "--transport", "tcp"], "--listen and --transport"),
        (["--transport", "unix", "--address", "relative"], "relative"),
        (["--listen", "192.0.2.1:1"], "cannot listen on 192.0.2.1:1"),
        (["--listen", "127.0.0.1:0", "--cluster-config", "/no/such.yaml"], "/no/such.yaml"),
        (["--listen", "127.0.0.1:0", "--report", "/no/such/folder/r.json"], "/no/such/folder"),
        (["--ping", "/no/such/socket"], "no coordinator at /no/such/socket"),
        (["--shutdown", "127.0.0.1:1"], "no coordinator at 127.0.0.1:1"),
    ],
    ids=lambda value: None if isinstance(value, list) else value.replace("/", "_"),
)
def test_bad_usage_is_one_line(arguments: list[str], named: str) -> None:
    done = ask("coordinator", *arguments)
    assert done.returncode == 2 and named in done.stderr
    assert len(done.stderr.splitlines()) <= 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_an_address_in_use_is_refused(start, transport: str, tmp_path: Path) -> None:
    where = "127.0.0.1:0" if transport == "tcp" else str(tmp_path / "c")
    running = start("--transport", transport, "--address", where)
    done = ask("coordinator", "--transport", transport, "--address", running.address)
    assert done.returncode == 2 and f"cannot listen on {running.address}" in done.stderr
    assert ask("coordinator", "--ping", running.address).returncode == 0


def test_a_token_is_asked_for(start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    running = start("--listen", "127.0.0.1:0", "--token-file", str(tmp_path / "token"))
    refused = ask("coordinator", "--status", running.address)
    assert refused.returncode == 2 and "token" in refused.stderr
    assert ask("coordinator", "--status", running.address, FAKEGPU_TOKEN="secret").returncode == 0


def test_the_built_script_is_the_same_command() -> None:
    done = subprocess.run(
        [ROOT / "build" / "fakegpu-coordinator", "--ping", "/no/such/socket"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2 and "no coordinator at /no/such/socket" in done.stderr
