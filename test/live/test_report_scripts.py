"""The seed's checks of clusters, times and reports, as a user runs them: exit status 0 and a one-line verdict."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    "cluster_config_valid", "cluster_config_invalid", "topology_model", "time_model", "node_pair_report",
    "communication_accounting", "cluster_report_retention",
    pytest.param("training_traffic", marks=pytest.mark.slow),
]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", SCRIPTS)
def test_script_passes(name):
    command = [sys.executable, f"verification/test_{name}.py"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    assert result.stdout.strip()
