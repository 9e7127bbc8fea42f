"""pytest plugin: test bodies on N ranks with fake GPUs and a coordinator of their own.

`@pytest.mark.fakegpu(world_size=4)` runs the test's body on four ranks, each a process with the variables torchrun
sets; the test passes when every rank passes, and a failure shows each rank's output. `fakegpu_run(function,
world_size)` runs an importable function on N ranks from inside a test and returns what they printed and the report.
Works under pytest-xdist: addresses and ports are private. Loaded by pytest through an entry point, so nothing
heavy is imported before a test asks for it.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

_IN_RANK = "FAKEGPU_TEST_RANK"  # set in a rank's process: there the marked test runs as it stands
_DEFAULT_SECONDS = 120.0


class RankFailure(AssertionError):
    """Some rank failed; the text holds every rank's output."""


class World:
    """What N ranks did: `outputs[rank]`, `statuses[rank]` and the cluster `report` (None if they never met)."""

    def __init__(self, outputs: list[str], statuses: list[int], report: dict | None, failures: list[str]) -> None:
        self.outputs, self.statuses, self.report, self.failures = outputs, statuses, report, failures

    def check(self) -> World:
        """Raise RankFailure unless every rank exited 0."""
        if any(self.statuses):
            parts = [
                f"---- rank {rank}: exit status {status} ----\n{text.rstrip()}"
                for rank, (text, status) in enumerate(zip(self.outputs, self.statuses))
            ]
            parts += [f"coordinator: {line}" for line in self.failures]
            raise RankFailure("\n".join(parts))
        return self


def run_ranks(command: list[str], world_size: int, timeout: float = _DEFAULT_SECONDS, **settings: Any) -> World:
    """Run one command as `world_size` ranks on this machine; `settings` are fields of fakegpu.settings.Settings."""
    from fakegpu.launch.environment import child_environment
    from fakegpu.launch.private import PrivateCoordinator
    from fakegpu.settings import Settings

    chosen = Settings.from_env({}).override(
        **{"device_count": world_size, "timeout_ms": int(timeout * 1000), **settings}
    )
    with PrivateCoordinator(chosen) as coordinator:
        base = {name: value for name, value in os.environ.items() if not name.startswith("FAKEGPU_")}
        environment = child_environment(coordinator.settings, base)
        environment |= _rank_variables(world_size)
        processes = [
            subprocess.Popen(
                command,
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), _IN_RANK: str(rank)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world_size)
        ]
        outputs = _collect(processes, timeout)
        summary = coordinator.stop()
    return World(outputs, [process.returncode for process in processes], summary.report, summary.failures)


def _rank_variables(world_size: int) -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _collect(processes: list[subprocess.Popen], timeout: float) -> list[str]:
    """Every rank's output; all ranks are ended when the time is over or the test is interrupted."""
    from concurrent.futures import ThreadPoolExecutor

    def output(process: subprocess.Popen) -> str:
        try:
            return process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[0] + f"\n[ended after {timeout:g} s]"

    try:
        with ThreadPoolExecutor(len(processes)) as pool:
            return list(pool.map(output, processes))
    finally:
        for process in processes:
            process.kill()


# ---- pytest ------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "fakegpu(world_size=2, timeout=120, **settings): run the test's body on world_size ranks with fake GPUs",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """In the test process, start the ranks instead of calling the body; in a rank, let pytest call it."""
    marker = pyfuncitem.get_closest_marker("fakegpu")
    if marker is None or _IN_RANK in os.environ:
        return None
    options = {"world_size": 2, **marker.kwargs}
    world = run_ranks(_rank_command(pyfuncitem), **options)
    pyfuncitem.user_properties.append(("fakegpu_report", world.report))
    world.check()
    return True


def _rank_command(item: pytest.Function) -> list[str]:
    """pytest for this one test, without the options that belong to the outer run."""
    config = item.config
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-s",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        "addopts=",
        "--rootdir",
        str(config.rootpath),
    ]
    if config.inipath:
        command += ["-c", str(config.inipath)]
    return [*command, f"{item.path}::{item.nodeid.partition('::')[2]}"]


@pytest.fixture
def fakegpu_run() -> Callable[..., World]:
    """`fakegpu_run(function, world_size=2, timeout=120, **settings)`: an importable function on N ranks."""

    def run(
        function: Callable[[], None], world_size: int = 2, timeout: float = _DEFAULT_SECONDS, **settings: Any
    ) -> World:
        file = sys.modules[function.__module__].__file__
        command = [sys.executable, "-m", "fakegpu.testing", str(file), function.__qualname__]
        return run_ranks(command, world_size, timeout, **settings).check()

    return run


def _call(file: str, name: str) -> None:
    """A rank of fakegpu_run: load the test's file and call the function."""
    sys.path.insert(0, os.path.dirname(file))
    spec = importlib.util.spec_from_file_location("fakegpu_rank_module", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    target: Any = module
    for part in name.split("."):
        target = getattr(target, part)
    target()


if __name__ == "__main__":
    _call(sys.argv[1], sys.argv[2])
