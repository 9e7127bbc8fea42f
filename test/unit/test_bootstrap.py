"""fakegpu.bootstrap: when it builds and when not, and what it says when something is missing."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fakegpu import bootstrap

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two sources, whose steps are written down instead of done."""
    (tmp_path / "fakegpu" / "_core").mkdir(parents=True)
    (tmp_path / "setup.py").write_text("one")
    (tmp_path / "fakegpu" / "_core" / "wire.pyx").write_text("two")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []
    monkeypatch.setattr(bootstrap, "run_step", lambda text, command, hint: done.append(text))
    monkeypatch.setattr(bootstrap, "build_torch_kernels", lambda: done.append("kernels"))
    return done


def test_builds_once_and_then_compares_times_only(checkout: Path, steps: list[str], monkeypatch) -> None:
    bootstrap.build_in_place(False)
    assert [step.split()[0] for step in steps] == ["building", "kernels"]
    monkeypatch.setattr(
        bootstrap, "content_digest", lambda paths: pytest.fail("read the sources though no time changed")
    )
    bootstrap.build_in_place(False)
    assert len(steps) == 2


def test_a_changed_time_with_the_same_bytes_builds_nothing(checkout: Path, steps: list[str]) -> None:
    bootstrap.build_in_place(False)
    os.utime(checkout / "setup.py", ns=(1, 1))
    bootstrap.build_in_place(False)
    assert len(steps) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "setup.py").write_text("1"),
        lambda root: (root / "fakegpu" / "_core" / "new.pyx").write_text(""),
        lambda root: (root / "fakegpu" / "_core" / "wire.pyx").unlink(),
    ],
    ids=["changed", "added", "removed"],
)
def test_a_changed_source_builds_again(checkout: Path, steps: list[str], change) -> None:
    bootstrap.build_in_place(False)
    change(checkout)
    bootstrap.build_in_place(False)
    assert len(steps) == 4


def test_what_a_build_writes_is_no_source(checkout: Path, steps: list[str]) -> None:
    bootstrap.build_in_place(False)
    (checkout / "fakegpu" / "_core" / "wire.c").write_text("generated")
    (checkout / "fakegpu" / "_core" / "wire.so").write_text("generated")
    bootstrap.build_in_place(False)
    assert len(steps) == 2


def test_a_failed_build_is_tried_again(checkout: Path, monkeypatch) -> None:
    def fail(*_args) -> None:
        raise bootstrap.Stop("no")

    monkeypatch.setattr(bootstrap, "run_step", fail)
    for _ in range(2):
        with pytest.raises(bootstrap.Stop):
            bootstrap.build_in_place(False)


def test_a_missing_compiler_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(bootstrap.Stop, match="no C compiler found; install one .*apt-get install gcc"):
        bootstrap.check_tools()


def test_missing_headers_say_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(bootstrap.sysconfig, "get_path", lambda name: "/nonexistent")
    with pytest.raises(bootstrap.Stop, match=r"apt-get install python3\.\d+-dev"):
        bootstrap.check_tools()


def test_an_old_python_looks_for_a_newer_one(monkeypatch) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 8, 0))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    with pytest.raises(bootstrap.Stop, match="Python 3.10 or newer is needed"):
        bootstrap.base_python()
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/opt/{name}" if name == "python3.12" else None)
    assert bootstrap.base_python() == "/opt/python3.12"


def test_a_failing_step_shows_the_end_of_its_output(capfd) -> None:
    body = "print('\\n'.join(f'line {i}' for i in range(30))); raise SystemExit(4)"
    with pytest.raises(bootstrap.Stop, match="trying failed .exit status 4.: look above"):
        bootstrap.run_step("trying", [sys.executable, "-c", body], "look above")
    err = capfd.readouterr().err
    assert "line 29" in err and "line 3\n" not in err


def test_an_active_environment_with_this_checkout_is_used(checkout: Path, tmp_path: Path, monkeypatch) -> None:
    record = tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "fakegpu-0.1.0.dist-info" / "direct_url.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"url": checkout.as_uri()}))
    monkeypatch.delenv("FAKEGPU_PYTHON", raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "env"))
    assert bootstrap.choose_python() == str(tmp_path / "env" / "bin" / "python")
    record.write_text(json.dumps({"url": "file:///elsewhere"}))
    assert bootstrap.choose_python() == str(checkout / ".venv" / "bin" / "python")


def test_a_wrong_interpreter_is_one_line() -> None:
    done = subprocess.run(
        [ROOT / "fgpu", "true"],
        env={**os.environ, "FAKEGPU_PYTHON": "/no/such/python"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "fakegpu: error: FAKEGPU_PYTHON=/no/such/python: no such program; name a Python 3.10 or newer, or unset it"
    ]


def test_concurrent_runs_build_once(checkout: Path, monkeypatch) -> None:
    built = []
    monkeypatch.setattr(bootstrap, "run_step", lambda text, command, hint: built.append(text))
    monkeypatch.setattr(bootstrap, "build_torch_kernels", lambda: None)
    monkeypatch.setattr(bootstrap, "choose_python", lambda: sys.executable)
    monkeypatch.setattr(bootstrap.sys, "argv", ["bootstrap.py", bootstrap.CHOSEN, "fgpu"])
    threads = [threading.Thread(target=bootstrap.prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert built == ["building fakegpu/_core and the libraries"]


def test_it_parses_on_old_pythons() -> None:
    import ast

    ast.parse((ROOT / "fakegpu" / "bootstrap.py").read_text(), feature_version=(3, 6))
