"""Devices, errors and kernels through libcudart, and how the environment selects devices."""

from __future__ import annotations

import ctypes
import uuid
from pathlib import Path

import pytest
from cuda_process import ROOT, case_names, run_case, run_python

WITH_SETTINGS = {
    "case_empty_visible_list": {"CUDA_VISIBLE_DEVICES": ""},
    "case_bad_configuration_is_refused": {"FAKEGPU_DEVICE_COUNT": "many", "EXPECTED": "FAKEGPU_DEVICE_COUNT=many"},
    "case_mixed_profiles": {"FAKEGPU_PROFILES": "a100:2,rtx3090ti"},
}


@pytest.mark.parametrize("name", [n for n in case_names("cuda_device_cases") if n != "case_print_visible"])
def test_devices(name: str) -> None:
    run_case("cuda_device_cases", name, **WITH_SETTINGS.get(name, {}))


def visible(value: str | None) -> list[int]:
    selection = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    script = Path(__file__).with_name("cuda_process.py")
    done = run_python([str(script), "cuda_device_cases", "case_print_visible"], FAKEGPU_DEVICE_COUNT="4", **selection)
    if done.returncode:
        assert "error 100" in done.stderr, done.stderr
        return []
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]), ("2", [2]), ("3,1", [3, 1]), (" 1 , 0", [1, 0]), ("0,9,1", [0]), ("1,x,2", [1]),
        ("1,-1,2", [1]), ("0,0", []), ("-1", []), ("", []), ("GPU-nothing", []),
    ],
    ids=["unset", "one", "reordered", "spaces", "too-large-cuts", "word-cuts", "negative-cuts", "repeated-is-none",
         "negative", "empty", "unknown-uuid"],
)
def test_visible_devices(value: str | None, expected: list[int]) -> None:
    assert visible(value) == expected


def test_visible_devices_by_uuid() -> None:
    script = "import ctypes; n = ctypes.CDLL('libnvidia-ml.so.1'); n.nvmlInit_v2(); h = ctypes.c_void_p()\n" \
        "for i in range(4):\n n.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(h)); b = ctypes.create_string_buffer(96)\n" \
        " n.nvmlDeviceGetUUID(h, b, 96); print(b.value.decode())"
    uuids = run_python(["-c", script], FAKEGPU_DEVICE_COUNT="4", CUDA_VISIBLE_DEVICES="1").stdout.split()
    assert len({uuid.UUID(text.removeprefix("GPU-")) for text in uuids}) == 4
    assert visible(f"{uuids[2]},{uuids[0]}") == [2, 0]
    assert visible(uuids[3][:12]) == [3]


@pytest.mark.parametrize("profile", [p.stem for p in sorted((ROOT / "data" / "gpus").glob("*.yaml"))])
def test_every_profile_makes_a_device(profile: str) -> None:
    done = run_python(
        [str(Path(__file__).with_name("cuda_process.py")), "cuda_device_cases", "case_print_visible"],
        FAKEGPU_PROFILE=profile, FAKEGPU_DEVICE_COUNT="2",
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_unsupported_api_can_end_the_program() -> None:
    script = "import ctypes; print(ctypes.CDLL('libcudart.so.13').cudaGraphicsUnregisterResource(None))"
    warned, allowed, ended = (run_python(["-c", script], FAKEGPU_UNSUPPORTED_API=p) for p in ("warn", "allow", "error"))
    assert "cudaGraphicsUnregisterResource" in warned.stderr and warned.stdout.strip() == "801"
    assert (allowed.stderr, allowed.stdout.strip()) == ("", "801")
    assert ended.returncode < 0 and "FAKEGPU_UNSUPPORTED_API=error" in ended.stderr


def test_error_texts_are_cudas() -> None:
    real = pytest.importorskip("nvidia.cu13", reason="CUDA's own runtime is not installed")
    theirs = ctypes.CDLL(str(Path(real.__path__[0]) / "lib" / "libcudart.so.13"))
    script = "import ctypes; r = ctypes.CDLL('libcudart.so.13')\n" \
        "r.cudaGetErrorName.restype = r.cudaGetErrorString.restype = ctypes.c_char_p\n" \
        "for i in range(1000): print(r.cudaGetErrorName(i).decode(), r.cudaGetErrorString(i).decode(), sep='|')"
    ours = run_python(["-c", script]).stdout.splitlines()
    theirs.cudaGetErrorName.restype = theirs.cudaGetErrorString.restype = ctypes.c_char_p
    expected = [f"{theirs.cudaGetErrorName(i).decode()}|{theirs.cudaGetErrorString(i).decode()}" for i in range(1000)]
    assert ours == expected
