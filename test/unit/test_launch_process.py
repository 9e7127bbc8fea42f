"""fakegpu.launch.process: exit statuses, signals and strays, each in a launcher process of its own."""

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fakegpu.launch.process import CommandError, find_program

PYTHON = sys.executable
LAUNCH = """
import os, sys
from fakegpu.launch.process import Process, find_program
process = Process(find_program(sys.argv[1], os.environ["PATH"]), sys.argv[1:])
process.release(os.environ)
status = process.wait()
print("status", status, "strays", process.strays, flush=True)
"""


def launch(*command: str, **kwargs) -> subprocess.Popen:
    """A launcher (its own session, so that signals sent to it reach only it) running `command`."""
    return subprocess.Popen(
        [PYTHON, "-c", LAUNCH, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **kwargs,
    )


def outcome(*command: str) -> str:
    process = launch(*command)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip().splitlines()[-1]


def alive(pid: int) -> bool:
    """True if a process runs; a zombie has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_exit_status_is_the_commands(script: str, status: int) -> None:
    assert outcome("sh", "-c", script) == f"status {status} strays 0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT], ids=lambda n: n.name)
def test_signal_to_the_launcher_reaches_the_command(number: signal.Signals) -> None:
    body = (
        f"import signal; signal.signal({int(number)}, lambda *a: exit(40)); print('ready', flush=True); signal.pause()"
    )
    process = launch(PYTHON, "-c", body)
    assert process.stdout.readline().strip() == "ready"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.strip() == "status 40 strays 0", err


def test_command_starts_with_default_signals() -> None:
    body = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), open('/proc/self/status').read())"
    process = launch(PYTHON, "-c", body)
    out, _ = process.communicate(timeout=60)
    assert out.startswith("set()")
    ignored = int(next(line for line in out.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    # Python itself ignores SIGPIPE and SIGXFSZ; nothing else may be inherited
    assert ignored & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1) == 0


def test_sigpipe_is_not_ignored_in_the_command() -> None:
    assert outcome("sh", "-c", "kill -PIPE $$") == f"status {128 + signal.SIGPIPE} strays 0"


def test_what_the_command_leaves_running_is_ended(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    # double fork through setsid: no parent, another session, SIGTERM ignored
    write = f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))"
    inner = f"import os, signal; signal.signal(15, signal.SIG_IGN); {write}; signal.pause()"
    script = f'setsid {PYTHON} -c "{inner}" & while [ ! -s {pid_file} ]; do :; done'
    assert outcome("sh", "-c", script) == "status 0 strays 1"
    assert not alive(int(pid_file.read_text()))


def test_command_ends_when_the_launcher_is_killed() -> None:
    process = launch(PYTHON, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()")
    command = os.pidfd_open(int(process.stdout.readline()))
    try:
        process.kill()
        process.communicate(timeout=60)
        assert select.select([command], [], [], 60)[0], "the command still runs"
    finally:
        os.close(command)


def test_cancelled_command_never_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    body = textwrap.dedent(f"""
        from fakegpu.launch.process import Process
        Process("/usr/bin/touch", ["touch", {str(mark)!r}]).cancel()
    """)
    subprocess.run([PYTHON, "-c", body], check=True, timeout=60)
    assert not mark.exists()


def test_script_without_interpreter_line_runs_in_sh(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("exit 5\n")
    script.chmod(0o755)
    assert outcome(str(script)) == "status 5 strays 0"


def test_missing_program_is_127_with_its_name() -> None:
    with pytest.raises(CommandError, match="no-such-program: command not found") as caught:
        find_program("no-such-program", os.environ["PATH"])
    assert caught.value.status == 127


def test_unexecutable_file_is_126(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(CommandError, match="is not executable") as caught:
        find_program(str(tmp_path / "train.py"), os.environ["PATH"])
    assert caught.value.status == 126
    assert "fgpu python3" in caught.value.hint
