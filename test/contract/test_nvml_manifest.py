"""libnvidia-ml: every name of data/api/nvml.yaml is exported and nothing else, each listed once; nvidia-ml-py's and
torch's look-ups succeed.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "fakegpu" / "lib" / "libnvidia-ml.so.1"
TORCH = [
    "nvmlInit", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlErrorString",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlInit_v2", "nvmlShutdown",
    "nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlSystemGetCudaDriverVersion_v2",
]


def exported() -> set[str]:
    lines = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in lines.splitlines()}


def listed() -> list[str]:
    data = yaml.safe_load((ROOT / "data" / "api" / "nvml.yaml").read_text())
    return [*data["supported"], *(c for kind in ("approximated", "refused") for group in data[kind] for c in group["calls"])]


def test_the_manifest_is_what_is_exported() -> None:
    assert len(listed()) == len(set(listed())) > 400
    assert set(listed()) == exported()


def test_torchs_names_are_there() -> None:
    assert set(TORCH) <= exported()


def test_nvidia_ml_py_finds_its_names() -> None:
    pynvml = pytest.importorskip("pynvml")
    source = Path(pynvml.__file__).read_text()
    wanted = set(re.findall(r"_nvmlGetFunctionPointer\(\s*[\"'](nvml\w+)[\"']", source))
    assert wanted and wanted <= exported(), sorted(wanted - exported())
