"""Runs functions of cases/*.py in one child process per file, on fake devices, with the environment that fgpu sets.

The cases cannot run in pytest's own process: the libraries must be preloaded. Each case is a test of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.launch.environment import child_environment
from fakegpu.settings import Settings

CASES = Path(__file__).resolve().parent / "cases"
RUNNER = Path(__file__).resolve().parent / "run_cases.py"
SECONDS = 280


def device_environment(**settings) -> dict[str, str]:
    """What a command under fgpu sees, without a coordinator: enough for programs of one process."""
    base = {key: value for key, value in os.environ.items() if not key.startswith("FAKEGPU_MODE")}
    base["OMP_NUM_THREADS"] = "1"
    return child_environment(Settings.from_env(base).override(**{"device_count": 2, **settings}), base)


@pytest.fixture(scope="session")
def torch_environment() -> dict[str, str]:
    return device_environment()


@pytest.fixture(scope="session")
def case_results(torch_environment, tmp_path_factory):
    """run(file name) -> {case: text of its failure, or ""}; each file runs once."""
    done: dict[str, dict[str, str]] = {}

    def run(file: str) -> dict[str, str]:
        if file not in done:
            result = tmp_path_factory.mktemp("cases") / f"{file}.json"
            child = subprocess.run([sys.executable, "-X", "faulthandler", str(RUNNER), str(CASES / file), str(result)],
                                   env=torch_environment, capture_output=True, text=True, timeout=SECONDS)
            if not result.exists():
                pytest.fail(f"{file} ended with status {child.returncode}:\n{child.stdout}\n{child.stderr}")
            done[file] = json.loads(result.read_text())
        return done[file]

    return run
