"""`fgpu COMMAND` as a process: exit status, environment, refusals, last words, nothing left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = str(ROOT / "test" / "programs" / "two_ranks.py")
PYTHON = sys.executable


@pytest.fixture
def fgpu(tmp_path: Path):
    """Run `fakegpu ARGS` with a private TMPDIR; checks that only reports are left in it."""

    def run(*arguments: str, keep_report: bool = False, **variables: str) -> subprocess.CompletedProcess:
        temporary = tmp_path / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary), **variables}
        done = subprocess.run(
            [PYTHON, "-m", "fakegpu", *arguments],
            cwd=tmp_path,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            check=False,
        )
        left = [path.name for path in temporary.rglob("*") if path.is_file() or path.is_socket()]
        assert all(name.startswith("report.") for name in left) if keep_report else left == []
        return done

    return run


def one_error(done: subprocess.CompletedProcess, status: int = 2) -> str:
    """The error line of a refused run: one line and at most one hint."""
    assert done.returncode == status, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("fakegpu: error: ") and len(lines) <= 2, done.stderr
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 42", 42), ("kill -TERM $$", 143)])
def test_the_commands_status_passes_through(fgpu, script: str, status: int) -> None:
    done = fgpu("sh", "-c", script)
    assert (done.returncode, done.stderr) == (status, "")


def test_flags_after_the_command_are_the_commands(fgpu) -> None:
    done = fgpu("--nodes", "2", "--", "echo", "--nodes", "3", "--", "x")
    assert done.stdout == "--nodes 3 -- x\n"


def test_the_environment_of_the_command(fgpu) -> None:
    body = "import os, json, sys; print(json.dumps(dict(os.environ)))"
    done = fgpu(
        "--device-count", "3", "--profile", "h100", PYTHON, "-c", body, LD_PRELOAD="libc.so.6", PYTHONPATH="/mine"
    )
    found = json.loads(done.stdout)
    preload = found["LD_PRELOAD"].split(":")
    assert [Path(entry).name for entry in preload] == [
        "libcudart.so.13",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        "libnccl.so.2",
        "libc.so.6",
    ]
    assert found["LD_LIBRARY_PATH"].split(":")[0] == str(Path(preload[0]).parent)
    assert found["PYTHONPATH"].split(":")[-1] == "/mine" and "torchhost/hook" in found["PYTHONPATH"]
    assert (found["FAKEGPU_DEVICE_COUNT"], found["FAKEGPU_PROFILE"]) == ("3", "h100")
    assert found["FAKEGPU_COORDINATOR_TRANSPORT"] == "unix" and found["FAKEGPU_COORDINATOR_ADDR"].startswith("/")
    assert found["FAKEGPU_COORDINATOR_TIMEOUT_MS"] == "600000"
    assert found["TRITON_INTERPRET"] == "1"


def test_what_the_user_set_stays(fgpu) -> None:
    done = fgpu(
        "sh",
        "-c",
        "echo $FAKEGPU_COORDINATOR_TIMEOUT_MS $TRITON_INTERPRET $FAKEGPU_DEVICE_COUNT",
        FAKEGPU_COORDINATOR_TIMEOUT_MS="5000",
        TRITON_INTERPRET="0",
        FAKEGPU_DEVICE_COUNT="5",
    )
    assert done.stdout.split() == ["5000", "0", "5"]


def test_a_flag_beats_the_environment(fgpu) -> None:
    assert (
        fgpu("--device-count", "2", "sh", "-c", "echo $FAKEGPU_DEVICE_COUNT", FAKEGPU_DEVICE_COUNT="7").stdout == "2\n"
    )


def test_the_cluster_file_gives_the_devices(fgpu) -> None:
    cluster = str(ROOT / "verification" / "data" / "cluster_valid.yaml")
    done = fgpu("--cluster-config", cluster, "sh", "-c", "echo $FAKEGPU_DEVICE_COUNT $FAKEGPU_PROFILES")
    assert done.stdout.split() == ["4", "a100:1,a100:1,h100:1,h100:1"]


def test_hands_off_preloads_nothing_and_an_unbuilt_mode_is_refused(fgpu) -> None:
    refused = fgpu("--mode", "hybrid", "true")
    assert refused.returncode == 2 and "--mode" in refused.stderr and "'hybrid'" in refused.stderr
    assert fgpu("--mode", "passthrough", "--dist-mode", "passthrough", "sh", "-c", "echo $LD_PRELOAD").stdout == "\n"


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "no command given"),
        (["--no-such-flag", "true"], "unknown flag --no-such-flag"),
        (["--nodes", "zero", "true"], "--nodes=zero"),
        (["--mode", "real", "true"], "--mode=real"),
        (["--cluster-config", "/no/such/file.yaml", "true"], "/no/such/file.yaml"),
        (["--cluster-config", PROGRAM, "true"], "two_ranks.py"),
        (["--devices", "a100:x", "true"], "--devices a100:x"),
        (["--devices", "a100:2", "--device-count", "3", "true"], "--device-count 3"),
        (["--profile", "b9000", "true"], "b9000"),
        (["--profile", "b9000", "--gpus-per-node", "2", "true"], "b9000"),
        (["--report", "/no/such/folder/r.json", "true"], "--report /no/such/folder/r.json"),
        (["--lib-dir", "/no/such/folder", "true"], "libfakegpu_rt.so is missing in /no/such/folder"),
        (["--coordinator-addr", "relative/path", "true"], "relative/path"),
        (["--coordinator-addr", "/no/such/socket", "true"], "no coordinator at /no/such/socket"),
        (["--nodes", "3", "--cluster-config", str(ROOT / "verification/data/cluster_valid.yaml"), "true"], "--nodes 3"),
    ],
    ids=lambda value: None if isinstance(value, list) else value.replace("/", "_"),
)
def test_bad_input_is_one_line(fgpu, arguments: list[str], named: str) -> None:
    assert named in one_error(fgpu(*arguments))


def test_a_bad_variable_is_one_line(fgpu) -> None:
    assert "FAKEGPU_DEVICE_COUNT=many" in one_error(fgpu("true", FAKEGPU_DEVICE_COUNT="many"))


def test_command_not_found_is_127(fgpu) -> None:
    assert "no-such-program: command not found" in one_error(fgpu("no-such-program"), 127)


def test_a_script_that_is_not_executable_is_126(fgpu, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert "fgpu python3 SCRIPT" in one_error(fgpu("./train.py"), 126)


def test_something_else_at_the_coordinators_address(fgpu) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        where = f"127.0.0.1:{other.getsockname()[1]}"
        other.settimeout(60)
        process = subprocess.Popen(
            [PYTHON, "-m", "fakegpu", "--coordinator-transport", "tcp", "--coordinator-addr", where, "true"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        peer, _ = other.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64))
            out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "no fakegpu coordinator" in err, err


def test_ranks_meet_and_the_report_is_named(fgpu) -> None:
    done = fgpu("--nodes", "2", PYTHON, PROGRAM, "good", keep_report=True)
    assert done.returncode == 0, done.stderr
    path = Path(done.stderr.strip().rpartition("report: ")[2])
    report = json.loads(path.read_text())
    assert report["collectives"]["all_reduce"]["calls"] == 2
    assert report["cluster"]["node_count"] == 2
    assert path.with_suffix(".md").exists()


def test_the_report_goes_where_it_is_wanted(fgpu, tmp_path: Path) -> None:
    done = fgpu("--report", "mine.json", PYTHON, PROGRAM, "good")
    assert str(tmp_path / "mine.json") in done.stderr
    assert json.loads((tmp_path / "mine.json").read_text())["cluster"]["world_size"] == 2


def test_over_tcp(fgpu) -> None:
    done = fgpu("--coordinator-transport", "tcp", PYTHON, PROGRAM, "good", keep_report=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.resilience
@pytest.mark.parametrize(
    "scenario, strict, status",
    [
        ("ignored", False, 3),
        ("handled", False, 0),
        ("handled", True, 3),
        ("killed", False, 3),
        ("shrunk", False, 0),
        ("shrunk", True, 3),
        ("good", True, 0),
    ],
)
def test_unhandled_communication_errors_are_status_3(fgpu, scenario: str, strict: bool, status: int) -> None:
    done = fgpu(*["--strict"][: int(strict)], PYTHON, PROGRAM, scenario, keep_report=True)
    assert done.returncode == status, done.stderr
    if scenario == "ignored":
        last = done.stderr.splitlines()[-3:]
        assert last[0].startswith("fakegpu: communicator") and "count 4" in last[0] and "count 2" in last[0]
        assert last[2].startswith("fakegpu: exit status 3")


@pytest.fixture
def coordinator(tmp_path: Path):
    """A coordinator of its own, over TCP."""
    process = subprocess.Popen(
        [PYTHON, "-m", "fakegpu", "coordinator", "--listen", "127.0.0.1:0", "--report", str(tmp_path / "theirs.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    yield process.stdout.readline().split()[-1]
    process.terminate()
    process.communicate()


@pytest.mark.parametrize("scenario, status", [("good", 0), ("ignored", 3), ("handled", 0)])
def test_a_given_coordinator_is_used_and_asked(fgpu, coordinator: str, scenario: str, status: int) -> None:
    done = fgpu(
        "--coordinator-transport",
        "tcp",
        "--coordinator-addr",
        coordinator,
        "--timeout-ms",
        "60000",
        PYTHON,
        PROGRAM,
        scenario,
    )
    assert done.returncode == status, done.stderr
    assert ("see the coordinator's report" in done.stderr) == (scenario != "good")


def test_a_cluster_that_does_not_fit_the_given_coordinator(fgpu, tmp_path: Path) -> None:
    data = ROOT / "verification" / "data"
    process = subprocess.Popen(
        [
            PYTHON,
            "-m",
            "fakegpu",
            "coordinator",
            "--transport",
            "unix",
            "--address",
            str(tmp_path / "c"),
            "--cluster-config",
            str(data / "cluster_valid.yaml"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        process.stdout.readline()
        done = fgpu(
            "--coordinator-addr", str(tmp_path / "c"), "--cluster-config", str(data / "cluster_tcp_2r.yaml"), "true"
        )
    finally:
        process.terminate()
        process.communicate()
    assert "cluster_tcp_2r.yaml describes 2 ranks, the coordinator" in one_error(done)


def test_a_world_that_does_not_fit_the_cluster(fgpu) -> None:
    cluster = str(ROOT / "verification" / "data" / "cluster_valid.yaml")
    done = fgpu("--cluster-config", cluster, PYTHON, PROGRAM, "good", keep_report=True)
    assert "world size 2 does not fit" in done.stderr


def test_a_signal_ends_job_and_coordinator(tmp_path: Path) -> None:
    body = "import os, signal; print(os.environ['FAKEGPU_COORDINATOR_ADDR'], flush=True); signal.pause()"
    process = subprocess.Popen(
        [PYTHON, "-m", "fakegpu", PYTHON, "-c", body],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    address = process.stdout.readline().strip()
    assert Path(address).is_socket()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert not Path(address).exists() and not list(tmp_path.iterdir())
    process.stdout.close()


def test_a_deep_temporary_folder_has_no_room_for_a_socket(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    base = {key: value for key, value in os.environ.items() if not key.startswith("FAKEGPU_")}
    done = subprocess.run([sys.executable, "-m", "fakegpu", "true"], env=base | {"TMPDIR": str(deep)}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert list(deep.iterdir()) == []
