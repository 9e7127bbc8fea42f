"""Makes C from data/ for one library: `generate.py NAME OUTDIR` (called by build_native.py).

rt gets the profile table out of data/gpus/*.yaml; cudart, cuda, nvml and nccl get one refusing stub for every call
that data/api/NAME.yaml lists under `refused`. Knows nothing about the hand-written sources but the names they export.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MEMORY_CLOCK = "memory_clock_mhz"


def profile_row(gpu: dict) -> str:
    major, minor = str(gpu["compute_capability"]).split(".")
    nvlink, pcie = gpu.get("nvlink") or {}, gpu.get("pcie") or {}
    name = str(gpu["name"]).replace('"', '\\"')
    return (
        f'    {{"{gpu["id"]}", "{name}", {major}, {minor}, {gpu["sms"]}, {gpu["memory_bytes"]}ull,\n'
        f'     {gpu["core_clock_mhz"] * 1000}, {gpu[MEMORY_CLOCK] * 1000}, {gpu["memory_bus_bits"]},'
        f' {gpu["l2_cache_bytes"]},\n'
        f'     {nvlink.get("version", 0)}, {nvlink.get("links", 0)},'
        f' {pcie.get("generation", 0)}, {pcie.get("lanes", 0)}, {gpu["power_watts"]}}},\n'
    )


def profiles(data: Path) -> str:
    gpus = [yaml.safe_load(path.read_text()) for path in sorted((data / "gpus").glob("*.yaml"))]
    rows = "".join(profile_row(gpu) for gpu in gpus)
    return (
        "/* generated from data/gpus by generate.py */\n#include \"device.h\"\n"
        f"const fg_profile_t fg_profiles[] = {{\n{rows}    {{0}},\n}};\n"
        f"const int fg_profile_count = {len(gpus)};\n"
    )


def stubs(name: str, data: Path) -> str:
    manifest = yaml.safe_load((data / "api" / f"{name}.yaml").read_text())
    lines = [f"/* generated from data/api/{name}.yaml by generate.py */", f'#include "{name}_stubs.h"']
    for group in manifest.get("refused", []):
        hint = str(group.get("reason", "")).replace('"', '\\"')
        lines += [f'FG_REFUSED_{name.upper()}({api}, "{hint}")' for api in group["calls"]]
    return "\n".join(lines) + "\n"


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main(name: str, out: Path) -> None:
    data = ROOT / "data"
    if name == "rt":
        write_if_changed(out / "profiles.c", profiles(data))
    elif (data / "api" / f"{name}.yaml").exists() and (ROOT / "interposer" / name / f"{name}_stubs.h").exists():
        write_if_changed(out / "stubs.c", stubs(name, data))


if __name__ == "__main__":
    if len(sys.argv) != 3 or not re.fullmatch(r"\w+", sys.argv[1]):
        raise SystemExit("usage: generate.py NAME OUTDIR")
    main(sys.argv[1], Path(sys.argv[2]))
