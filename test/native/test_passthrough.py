"""Passthrough, against a stand-in for the real libnccl (recorder.py): every call reaches it with its arguments.

No real NCCL and no GPU take part. Pairs of modes that cannot work are refused with the pair to use.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import recorder

from fakegpu.errors import SettingsError
from fakegpu.launch.environment import PACKAGE
from fakegpu.launch.pairs import check_pair
from fakegpu.settings import Settings

CALLER = """
import ctypes, sys
nccl = ctypes.CDLL("libnccl.so.2")
for name in sys.argv[1:]:
    assert getattr(nccl, name)(*[ctypes.c_long(len(name) * 2**40 + i) for i in range(6)]) == 77, name
"""
HANDS_OFF = ("--mode", "passthrough", "--dist-mode", "passthrough")


def fgpu(*words: str, **variables: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FAKEGPU_")}
    path = os.pathsep.join(filter(None, [str(recorder.ROOT), kept.get("PYTHONPATH")]))
    return subprocess.run([sys.executable, "-m", "fakegpu", *words], env=kept | {"PYTHONPATH": path} | variables,
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip


def test_every_call_of_the_manifest_reaches_the_named_library(tmp_path: Path) -> None:
    if not shutil.which("gcc"):
        pytest.skip("no gcc")
    names = recorder.calls()
    library, record = recorder.build(tmp_path, names), tmp_path / "record"
    done = fgpu(*HANDS_OFF, sys.executable, "-c", CALLER, *names, FAKEGPU_REAL_NCCL_PATH=str(library), RECORD=str(record))
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in record.read_text(encoding="utf-8").splitlines()]
    assert [words[0] for words in found] == names and len(names) > 150
    for name, *arguments in found:
        assert [int(word) for word in arguments] == [len(name) * 2**40 + i for i in range(recorder.ARGUMENTS)], name


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda folder: folder / "absent", "not readable: No such file"),
        (lambda folder: Path(__file__), "expected a shared library that exports ncclCommInitRank"),
        (lambda folder: PACKAGE / "lib" / "libnccl.so.2", "this is fakegpu's own library"),
    ],
    ids=["absent", "not-a-library", "ours"],
)
def test_a_wrong_real_library_is_refused(tmp_path: Path, make, text: str) -> None:
    done = fgpu(*HANDS_OFF, "true", FAKEGPU_REAL_NCCL_PATH=str(make(tmp_path)))
    assert done.returncode == 2 and "FAKEGPU_REAL_NCCL_PATH=" in done.stderr and text in done.stderr


@pytest.mark.parametrize(
    "mode, dist_mode, instead",
    [
        ("simulate", "proxy", "--mode simulate --dist-mode simulate"),
        ("simulate", "passthrough", "--mode simulate --dist-mode simulate"),
        ("hybrid", "passthrough", "--mode passthrough --dist-mode passthrough"),
        ("hybrid", "disabled", "--mode passthrough --dist-mode passthrough"),
        ("passthrough", "simulate", "--mode hybrid --dist-mode simulate"),
        ("passthrough", "proxy", "--mode hybrid --dist-mode proxy"),
        ("passthrough", "disabled", "--mode passthrough --dist-mode passthrough"),
    ],
)
def test_an_impossible_pair_names_the_one_to_use(mode: str, dist_mode: str, instead: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        check_pair(Settings.from_env({}).override(mode=mode, dist_mode=dist_mode))
    assert f"--mode {mode}" in str(refusal.value) and instead in str(refusal.value)


@pytest.mark.parametrize("pair", ["simulate simulate", "simulate disabled", "passthrough passthrough", "hybrid simulate",
                                  "hybrid proxy"])  # fmt: skip
def test_the_documented_pairs_fit(pair: str) -> None:
    mode, dist_mode = pair.split()
    check_pair(Settings.from_env({}).override(mode=mode, dist_mode=dist_mode))
