"""Check this installation: Python, compiler, libraries, torch, and two ranks that add their numbers.

Every check is one line; exit status 1 if one of them failed. Checks run in child processes with the environment
that `fgpu` gives to commands, so they see what a program would see.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable

import attrs

from fakegpu import __version__
from fakegpu.cli._parser import Parser, add_settings, settings_of
from fakegpu.errors import FakeGPUError
from fakegpu.settings import Settings

SECONDS = 120
# which file each library name resolves to inside a program
_RESOLVE = """
import ctypes, json, sys
names = sys.argv[1:]
for name in names:
    ctypes.CDLL(name)
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({name: sorted(path for path in maps if path.rpartition("/")[2].startswith(name)) for name in names}))
"""
_TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    found["devices"] = torch.cuda.device_count()
    found["name"] = torch.cuda.get_device_name(0)
    found["sum"] = torch.ones(3, device="cuda").sum().item()
print(json.dumps(found))
"""
_RANK = """
import os, numpy as np
from fakegpu.membership import world_id
from fakegpu.nccl_ctypes import Nccl
rank = int(os.environ["RANK"])
comm = Nccl().init(2, world_id("doctor"), rank)
data = np.full(3, rank + 1, np.float32)
comm.all_reduce(data, data)
comm.destroy()
assert data.tolist() == [3, 3, 3], data
"""


class Failed(FakeGPUError):
    """A check that did not pass; text and hint say what and what to do."""


@attrs.frozen
class Check:
    """One line of the examination."""

    name: str
    ok: bool
    text: str
    hint: str = ""


def _child(code: str, settings: Settings, *arguments: str) -> str:
    """Output of a Python child in a command's environment; Failed with the last line it wrote."""
    from fakegpu.launch.environment import child_environment

    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=child_environment(settings, os.environ),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise Failed(lines[-1])
    return done.stdout


def check_python(settings: Settings) -> str:
    from fakegpu.launch.environment import libpython

    shared = libpython() or "none: programs that are not Python cannot be served"
    return f"fakegpu {__version__}, Python {platform.python_version()} ({sys.executable}), shared library {shared}"


def check_compiler(settings: Settings) -> str:
    found = [shutil.which(name) for name in ("cc", "c++")]
    if not all(found):
        raise Failed("no C or C++ compiler", "install gcc and g++ (needed to build, and once per torch version)")
    return ", ".join(found)


def check_libraries(settings: Settings) -> str:
    from fakegpu.launch.environment import lib_dir, preload_names

    names = preload_names(settings)
    folder = str(lib_dir(settings))
    for name, paths in json.loads(_child(_RESOLVE, settings, *names)).items():
        strangers = [path for path in paths if not path.startswith(folder)]
        if strangers or not paths:
            raise Failed(
                f"{name} resolves to {', '.join(strangers) or 'nothing'} instead of {folder}/{name}",
                "a library loaded by its absolute path bypasses LD_PRELOAD",
            )
    return f"{', '.join(names)} from {folder}"


def check_torch(settings: Settings) -> str:
    from fakegpu.launch.environment import torch_hint

    try:
        found = json.loads(_child(_TORCH, settings).splitlines()[-1])
    except Failed as error:
        raise Failed(str(error.text), torch_hint()) from None
    if not found["cuda"]:
        raise Failed(f"torch {found['version']} is built without CUDA", torch_hint())
    if not found["available"]:
        raise Failed(
            f"torch {found['version']}: torch.cuda.is_available() is False", "run with NCCL_DEBUG=INFO --verbose"
        )
    if found["sum"] != 3:
        raise Failed(f"torch {found['version']}: a sum of three ones on cuda:0 is {found['sum']}")
    return f"torch {found['version']} (CUDA {found['cuda']}) sees {found['devices']} x {found['name']} and computes"


def check_ranks(settings: Settings) -> str:
    from fakegpu.testing import run_ranks

    world = run_ranks([sys.executable, "-c", _RANK], 2, SECONDS, mode=settings.mode)
    if any(world.statuses):
        words = [*world.failures, *(text.strip().splitlines()[-1] for text in world.outputs if text.strip())]
        raise Failed(f"two ranks: {words[0] if words else world.statuses}")
    return f"two ranks added 1 and 2, report says {world.report['collectives']['all_reduce']['calls']} all_reduce"


CHECKS: dict[str, Callable[[Settings], str]] = {
    "python": check_python,
    "compiler": check_compiler,
    "libraries": check_libraries,
    "ranks": check_ranks,
    "torch": check_torch,
}


def examine(name: str, settings: Settings) -> Check:
    try:
        return Check(name, True, CHECKS[name](settings))
    except FakeGPUError as error:
        return Check(name, False, getattr(error, "text", str(error)), error.hint)
    except subprocess.TimeoutExpired:
        return Check(name, False, f"no answer within {SECONDS} s")


def main(argv: list[str] | None = None) -> int:
    """Run all checks; 1 if one failed."""
    parser = Parser("fgpu doctor", description=__doc__)
    add_settings(parser, ["mode", "lib_dir", "profile", "device_count"])
    parser.add_argument("--json", action="store_true", help="machine-readable result on standard output")
    options = parser.parse_args(argv)
    settings = settings_of(options)
    checks = []
    for name in CHECKS:
        checks.append(examine(name, settings))
        if not options.json:
            print(f"{'ok' if checks[-1].ok else 'FAILED':<8}{name:<11}{checks[-1].text}", flush=True)
            if checks[-1].hint:
                print(f"{'':<19}hint: {checks[-1].hint}")
    if options.json:
        print(json.dumps([attrs.asdict(check) for check in checks], indent=2))
    return 0 if all(check.ok for check in checks) else 1
