"""The model's constants, read once from data/timing/constants.yaml; what each means is said there."""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import yaml

from fakegpu import settings
from fakegpu.cluster import Fabric
from fakegpu.profiles import GpuProfile

NVLINK_TYPES = ("nvlink", "nvswitch")


@attrs.frozen
class Shared:
    plateau_exponent: float
    plateau_half_bytes: float
    plateau_sharpness: float
    plateau_reduce_scatter: float
    ll_overlap: float
    simple_launch: float
    pair_launch: float
    ll128_step_ratio: float
    ll128_efficiency: float
    simple_step_exponent: float
    simple_fill: float
    simple_fill_exponent: float
    simple_fill_power: float
    copy_all_reduce: float
    copy_all_gather: float
    copy_reduce_scatter: float
    copy_all_to_all: float
    pair_half_bytes: float
    nvls_latency_us: float
    nvls_fill: float
    net_plateau: float
    net_simple: float
    net_simple_exponent: float
    net_ll_inflight_kb: float

    def plateau(self, size: float) -> float:
        """Share of the per-peer cost that a message of this size shows."""
        grown = (size / self.plateau_half_bytes) ** self.plateau_sharpness
        return grown / (1 + grown)

    def copy(self, kind: str) -> float:
        """Local copies of a collective; the rooted ones copy about as much as an all-gather."""
        return getattr(self, f"copy_{kind}", self.copy_all_gather)


@attrs.frozen
class Choice:
    """NCCL's own idea of the hardware, which decides algorithm and protocol."""

    link_gbps: float = 0.0
    nominal_link_gbps: float = 1.0
    ll_cap_gbps: float = 0.0
    ll128_channel_gbps: float = 0.0
    channels: int = 0
    nvls: float = 0.0  # algorithm bandwidth of NVLS over the nominal link rate
    ll_share: float = 0.0


@attrs.frozen
class Family:
    """One GPU generation on one kind of fabric."""

    name: str
    base_us: float
    step_us: float
    plateau_us: float
    link_efficiency: float
    simple_us: float
    pair_base_us: float
    pair_peer_us: float
    pair_plateau_us: float
    pair_efficiency: float
    pair_fill: float
    choice: Choice
    ll_gbps: float = 0.0
    ll_efficiency: float = 0.0
    pair_link_efficiency: float = 0.0
    staged_share: float = 1.0  # of the slot's rate, where GPUs reach each other through host memory only
    nvls_efficiency: float = 0.0
    # what each GPU beyond two adds on the host's shared bridges: to a step, and to every kilobyte
    host_step_us: float = 0.0
    host_ring_us_per_kb: float = 0.0
    host_ll_us_per_kb: float = 0.0
    host_pair_us_per_kb: float = 0.0

    @property
    def is_pcie(self) -> bool:
        return self.ll_efficiency > 0


@attrs.frozen
class NcclTuning:
    base: dict[str, list[float]]
    step_nvlink: dict[str, list[float]]
    step_pcie: dict[str, list[float]]
    ll128_efficiency: float
    nvls_latency_us: float


@attrs.frozen
class Constants:
    shared: Shared
    families: dict[str, Family]
    network_efficiency: dict[str, float]
    nccl: NcclTuning

    def family(self, gpu: GpuProfile, fabric: Fabric) -> Family:
        if fabric.type not in NVLINK_TYPES:
            return self.families["pcie"]
        name = {"turing": "volta", "ada": "ampere"}.get(gpu.generation, gpu.generation)
        return self.families[f"{name}-nvlink"]


@functools.cache
def load(path: str | None = None) -> Constants:
    """The constants of a file; the bundled one by default."""
    source = Path(path) if path else Path(settings.data_dir()) / "timing" / "constants.yaml"
    return build(yaml.safe_load(source.read_text(encoding="utf-8")))


def build(data: dict) -> Constants:
    families, shared = {}, Shared(**data["shared"])
    for name, values in data["families"].items():
        values = dict(values)
        values.setdefault("simple_us", values["base_us"] * shared.simple_launch)
        values.setdefault("pair_base_us", values["base_us"] * shared.pair_launch)
        families[name] = Family(name=name, choice=Choice(**values.pop("choice")), **values)
    efficiency = {name: values["efficiency"] for name, values in data["networks"].items()}
    return Constants(shared, families, efficiency, NcclTuning(**data["nccl"]))
