"""Which compute mode goes with which communication mode, and the real libraries of passthrough.

An impossible pair is refused with the pair to use instead. In passthrough nothing of ours is loaded; a library that
the user named (FAKEGPU_REAL_NCCL_PATH, FAKEGPU_REAL_CUDART_PATH) is put in front, so that every call goes to it as it
stands. Called by fakegpu.launch.job and environment. Reads the named files, starts nothing.
"""

from __future__ import annotations

from pathlib import Path

from fakegpu.errors import SettingsError
from fakegpu.settings import BY_FIELD, Settings

# (compute, communication): why not, and what to use
_IMPOSSIBLE = {
    ("simulate", "proxy"): ("the real NCCL cannot work on fake devices", ("simulate", "simulate")),
    ("simulate", "passthrough"): ("the real NCCL cannot work on fake devices", ("simulate", "simulate")),
    ("hybrid", "passthrough"): ("nothing would be left to do for fakegpu", ("passthrough", "passthrough")),
    ("hybrid", "disabled"): ("nothing would be left to do for fakegpu", ("passthrough", "passthrough")),
    ("passthrough", "simulate"): ("simulated communication needs to see the devices' memory", ("hybrid", "simulate")),
    ("passthrough", "proxy"): ("the control plane needs to see the devices", ("hybrid", "proxy")),
    ("passthrough", "disabled"): ("nothing would be left to do for fakegpu", ("passthrough", "passthrough")),
}
# field: a call that such a library exports
_REAL = {"real_cudart_path": b"cudaGetDeviceCount", "real_nccl_path": b"ncclCommInitRank"}
_OURS = b"libfakegpu_rt.so"


def check_pair(settings: Settings) -> None:
    """SettingsError for a pair of modes that cannot work, with the pair to use instead."""
    found = _IMPOSSIBLE.get((settings.mode, settings.dist_mode))
    if found:
        why, (mode, dist_mode) = found
        raise SettingsError(
            f"--mode {settings.mode} (FAKEGPU_MODE) with --dist-mode {settings.dist_mode} (FAKEGPU_DIST_MODE): {why}",
            f"use --mode {mode} --dist-mode {dist_mode}",
        )


def real_libraries(settings: Settings) -> list[Path]:
    """The real libraries that passthrough has to load first; SettingsError when one is not what it should be."""
    if settings.mode != "passthrough":
        return []
    return [_real(field, getattr(settings, field)) for field in _REAL if getattr(settings, field)]


def _real(field: str, text: str) -> Path:
    variable, path = BY_FIELD[field].env, Path(text).absolute()
    try:
        image = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{variable}={text}: not readable: {error.strerror}") from None
    if not image.startswith(b"\x7fELF") or _REAL[field] not in image:
        raise SettingsError(f"{variable}={text}: expected a shared library that exports {_REAL[field].decode()}")
    if _OURS in image:
        raise SettingsError(f"{variable}={text}: this is fakegpu's own library, not the real one")
    if any(character in str(path) for character in ": \t\n"):
        raise SettingsError(f"{variable}={text}: LD_PRELOAD cannot hold a path with a blank or a colon")
    return path
