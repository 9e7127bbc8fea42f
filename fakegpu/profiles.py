"""GPU profiles: data/gpus/*.yaml, one file per GPU, read on first use and validated whole.

The same files feed the C table that device properties and NVML answers come from (interposer/generate.py), so a
key here is a fact of the hardware and never a guess of the simulator. Constants of the timing model live elsewhere.
"""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import yaml

from fakegpu import settings
from fakegpu.errors import SpecError

GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
MARKETS = ("datacenter", "workstation", "consumer")


class ProfileError(SpecError):
    """A profile file is wrong, or a name is not a profile."""


@attrs.frozen
class NvLink:
    version: int
    links: int
    gbps_per_direction: int  # Gbit/s, all links together, one direction


@attrs.frozen
class Pcie:
    generation: int
    lanes: int

    @property
    def gbps_per_direction(self) -> float:
        """Usable Gbit/s of the slot in one direction after line coding (8b/10b below generation 3)."""
        per_lane = {1: 2.0, 2: 4.0, 3: 7.877, 4: 15.754, 5: 31.508, 6: 60.5}[self.generation]
        return per_lane * self.lanes


@attrs.frozen
class GpuProfile:
    id: str
    name: str
    generation: str
    market: str
    compute_capability: tuple[int, int]
    sms: int
    memory_bytes: int
    memory_bandwidth_gbps: float  # Gbit/s, as everywhere in the project
    core_clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    l2_cache_bytes: int
    nvlink: NvLink | None
    pcie: Pcie
    power_watts: int
    source: str

    @property
    def sm(self) -> int:
        return 10 * self.compute_capability[0] + self.compute_capability[1]


_POSITIVE = {
    "sms": int,
    "memory_bytes": int,
    "memory_bandwidth_gbps": (int, float),
    "core_clock_mhz": int,
    "memory_clock_mhz": int,
    "memory_bus_bits": int,
    "l2_cache_bytes": int,
    "power_watts": int,
}
_KEYS = {a.name for a in attrs.fields(GpuProfile)}


def directory() -> Path:
    return Path(settings.data_dir()) / "gpus"


@functools.cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in directory().glob("*.yaml")))


def exists(name: str) -> bool:
    return name in names()


@functools.cache
def load(name: str) -> GpuProfile:
    """The profile called `name`; ProfileError lists near names for an unknown one."""
    if not exists(name):
        raise ProfileError(f"GPU profile {name!r} is not known", hint=near_names(name))
    return read(directory() / f"{name}.yaml")


def near_names(name: str) -> str:
    """What to use instead of a name that is not known."""
    import difflib

    near = difflib.get_close_matches(name, names(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"`fakegpu cluster profiles` lists all {len(names())}"
    return hint


def read(path: Path) -> GpuProfile:
    """Read and check one file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ProfileError(f"{path}: found {type(data).__name__}, expected a mapping")
    missing, unknown = sorted(_KEYS - data.keys()), sorted(data.keys() - _KEYS)
    if missing or unknown:
        raise ProfileError(f"{path}: missing keys {missing}, unknown keys {unknown}")
    _check(path, data)
    major, minor = (int(part) for part in str(data["compute_capability"]).split("."))
    nvlink = NvLink(**data["nvlink"]) if data["nvlink"] else None
    return GpuProfile(
        **{key: data[key] for key in _KEYS - {"compute_capability", "nvlink", "pcie"}},
        compute_capability=(major, minor),
        nvlink=nvlink,
        pcie=Pcie(**data["pcie"]),
    )


def _check(path: Path, data: dict) -> None:
    def expect(condition: bool, key: str, expected: str) -> None:
        if not condition:
            raise ProfileError(f"{path}: {key}: found {data[key]!r}, expected {expected}")

    expect(data["id"] == path.stem, "id", f"the file's name {path.stem!r}")
    expect(data["generation"] in GENERATIONS, "generation", f"one of {', '.join(GENERATIONS)}")
    expect(data["market"] in MARKETS, "market", f"one of {', '.join(MARKETS)}")
    capability = str(data["compute_capability"]).split(".")
    expect(len(capability) == 2 and all(p.isdigit() for p in capability), "compute_capability", '"major.minor"')
    for key, kind in _POSITIVE.items():
        value = data[key]
        expect(isinstance(value, kind) and not isinstance(value, bool) and value > 0, key, "a positive number")
    for key, record in (("nvlink", NvLink), ("pcie", Pcie)):
        value = data[key]
        if key == "nvlink" and value is None:
            continue
        wanted = {a.name for a in attrs.fields(record)}
        valid = isinstance(value, dict) and value.keys() == wanted and all(
            isinstance(v, int) and v > 0 for v in value.values()
        )
        expect(valid, key, f"positive integers {sorted(wanted)}" + (" or null" if key == "nvlink" else ""))
    expect(isinstance(data["source"], str) and data["source"].startswith("http"), "source", "an address (http...)")
