"""The nvidia-smi on the PATH of a command below fgpu: devices and processes as NVML tells them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest


def smi(*arguments: str) -> subprocess.CompletedProcess:
    base = {key: value for key, value in os.environ.items() if not key.startswith("FAKEGPU_")}
    return subprocess.run([sys.executable, "-m", "fakegpu", "run", "--quiet", "--devices", "a100:1,h100:1", "nvidia-smi",
                           *arguments], env=base, capture_output=True, text=True)  # fmt: skip


def test_the_table_names_every_device():
    done = smi()
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\|   0  NVIDIA A100-SXM4-80GB ", done.stdout, re.MULTILINE)
    assert "0MiB / 81920MiB" in done.stdout and "No running processes found" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line.startswith(("|", "+"))]
    assert {len(line) for line in lines} == {91}
    assert re.search(r"Driver Version: (.*?) ", done.stdout)  # how torch's collect_env finds it


def test_the_list_gives_each_device_its_uuid():
    found = re.findall(r"^GPU (\d): NVIDIA \S+.* \(UUID: (GPU-[0-9a-f-]{36})\)$", smi("-L").stdout, re.MULTILINE)
    assert [index for index, _ in found] == ["0", "1"] and found[0][1] != found[1][1]


def test_fields_as_csv():
    done = smi("--query-gpu=index,name,memory.total,compute_cap", "--format=csv")
    assert done.stdout.splitlines() == [
        "index, name, memory.total [MiB], compute_cap",
        "0, NVIDIA A100-SXM4-80GB, 81920 MiB, 8.0",
        "1, NVIDIA H100 80GB HBM3, 81559 MiB, 9.0",
    ]
    assert smi("--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "1").stdout == "81559\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(("--query-gpu=colour",), 'Field "colour" is not a valid field'), (("-i", "7"), "No devices were found"),
     (("--query-gpu=name", "--format=xml"), "--format=xml: expected csv")],
    ids=["field", "device", "format"],
)  # fmt: skip
def test_what_it_does_not_know_is_one_line(arguments, text):
    done = smi(*arguments)
    assert done.returncode == 2 and text in done.stderr and done.stdout == ""
