"""The described cluster: nodes, ranks, GPUs and fabrics, read from YAML and validated whole.

A ClusterSpec that exists is valid. Parsing keeps YAML's line numbers, so that an error names file, line, key, what
was found and what was expected. Knows nothing of sockets, traffic or time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import attrs
import yaml

from fakegpu import profiles
from fakegpu.cluster.yamlnode import ClusterError, Section, load_section, show

__all__ = ["ClusterError", "ClusterSpec", "Fabric", "NodeSpec", "SwitchLevel", "load"]

FABRIC_TYPES = (
    "nvlink", "nvswitch", "pcie", "shared_memory",
    "infiniband", "roce", "rdma", "efa", "tcpx", "tcpxo", "ethernet", "tcp",
)
BACKENDS = ("nccl", "gloo", "mpi", "ucc")  # recorded, not used
DEFAULT_PROFILE = "a100"


@attrs.frozen
class SwitchLevel:
    """A level of the network above the nodes: groups of `nodes` nodes that share uplinks."""

    nodes: int
    oversubscription: float = 1.0
    latency_us: float = 0.0


@attrs.frozen
class Fabric:
    """Links of one kind. Intra node: per GPU and direction; inter node: per NIC and direction."""

    type: str
    bandwidth_gbps: float
    latency_us: float
    oversubscription: float = 1.0
    # Extensions; None lets the timing model choose.
    nics: int | None = None  # inter node: NICs per node
    rails: bool | None = None  # inter node: NIC i of all nodes shares a switch
    switches: tuple[SwitchLevel, ...] = ()
    multicast: bool | None = None  # intra node: the switch reduces and multicasts (NVLS)
    sharp: bool = False  # inter node: switches reduce (CollNet)
    efficiency: float | None = None  # share of the bandwidth that payload reaches
    topology: str | None = None  # intra node: switch | mesh | tree


@attrs.frozen
class NodeSpec:
    id: str
    host: str
    ranks: tuple[int, ...]
    gpus: tuple[str, ...]  # profile names, one per rank


@attrs.frozen
class ClusterSpec:
    name: str
    nodes: tuple[NodeSpec, ...]
    intra_node: Fabric
    inter_node: Fabric
    default_backend: str = "nccl"
    path: str | None = None
    algorithm: str | None = None  # restricts the model as NCCL_ALGO does
    protocol: str | None = None
    _node_of: tuple[int, ...] = attrs.field(init=False, eq=False, repr=False)

    @_node_of.default
    def _place(self) -> tuple[int, ...]:
        places = {rank: index for index, node in enumerate(self.nodes) for rank in node.ranks}
        return tuple(places[rank] for rank in range(len(places)))

    @property
    def world_size(self) -> int:
        return len(self._node_of)

    @property
    def node_count(self) -> int:
        return len(self.nodes)

    def node_index(self, rank: int) -> int:
        """Index in `nodes` of a global rank's node; a rank beyond the cluster counts for the last node."""
        return self._node_of[rank] if rank < len(self._node_of) else len(self.nodes) - 1

    def profile_of(self, rank: int) -> profiles.GpuProfile:
        node = self.nodes[self.node_index(rank)]
        position = node.ranks.index(rank) if rank in node.ranks else 0
        return profiles.load(node.gpus[position])

    @classmethod
    def default(
        cls,
        nodes: int = 1,
        gpus_per_node: int = 8,
        profile: str | Sequence[str] = DEFAULT_PROFILE,
        name: str = "default",
    ) -> ClusterSpec:
        """`nodes` equal nodes; `profile` may list one name per GPU of a node."""
        if nodes < 1 or gpus_per_node < 1:
            raise ClusterError(f"default cluster: found {nodes} nodes x {gpus_per_node} GPUs, expected at least 1 x 1")
        gpus = (profile,) * gpus_per_node if isinstance(profile, str) else tuple(profile)
        if len(gpus) != gpus_per_node:
            raise ClusterError(f"default cluster: found {len(gpus)} profiles, expected {gpus_per_node} (one per GPU)")
        return cls.from_placement([node for node in range(nodes) for _ in range(gpus_per_node)], gpus, name)

    @classmethod
    def from_placement(
        cls, node_of_rank: Sequence[int], gpus: Sequence[str] = (DEFAULT_PROFILE,), name: str = "default"
    ) -> ClusterSpec:
        """A cluster in which rank r runs on node node_of_rank[r]: a launcher's numbers, -1 counts as 0, in their order;
        labels from HOST_LABELS on stand for hosts, in the order of their lowest ranks.
        """
        places: dict[int, list[int]] = {}
        for rank, node in enumerate(node_of_rank):
            places.setdefault(max(node, 0), []).append(rank)
        ordered = sorted(places.items(), key=lambda item: (min(item[0], HOST_LABELS), item[1][0]))
        specs = [
            NodeSpec(f"node{i}", "127.0.0.1", tuple(ranks), tuple(gpus[k % len(gpus)] for k in range(len(ranks))))
            for i, (_, ranks) in enumerate(ordered)
        ]
        nics = max((len(spec.ranks) for spec in specs), default=1)  # one per GPU, as in the makers' own systems
        return cls(name, tuple(specs), default_intra_node(gpus[0]), attrs.evolve(DEFAULT_INTER_NODE, nics=nics))


HOST_LABELS = 1 << 20  # above any launcher's node number
DEFAULT_INTER_NODE = Fabric("infiniband", 200.0, 6.0)
# One protocol step, as calibrated (data/timing/constants.yaml).
_STEP_US = {"volta": 1.0, "ampere": 0.8977, "hopper": 0.8152, "blackwell": 1.341, "pcie": 1.034}


@functools.cache
def default_intra_node(profile: str) -> Fabric:
    """What the GPU itself brings: its NVLink, else its PCIe slot."""
    gpu = profiles.load(profile)
    if gpu.nvlink and gpu.market == "datacenter":
        return Fabric("nvlink", float(gpu.nvlink.gbps_per_direction), _STEP_US.get(gpu.generation, 1.0))
    return Fabric("pcie", gpu.pcie.gbps_per_direction, _STEP_US["pcie"])


def load(path: str | Path) -> ClusterSpec:
    """Read and validate a cluster file; ClusterError is one line that names file, line, key, found, expected."""
    root = load_section(path)
    version = root.take("version", int)
    root.check(version == 1, "version", version, "1")
    header = root.section("cluster")
    name = header.text("name")
    backend = header.text("default_backend", "nccl")
    header.check(backend in BACKENDS, "default_backend", backend, f"one of {', '.join(BACKENDS)}")
    algorithm, protocol = header.text("algorithm", None), header.text("protocol", None)
    header.end()
    nodes = _nodes(root)
    fabric = root.section("fabric")
    intra = _fabric(fabric.section("intra_node"))
    one_node = len(nodes) == 1 and not fabric.has("inter_node")
    inter = DEFAULT_INTER_NODE if one_node else _fabric(fabric.section("inter_node"))
    fabric.end()
    root.end()
    return ClusterSpec(name, nodes, intra, inter, backend, str(path), algorithm, protocol)


def _nodes(root: Section) -> tuple[NodeSpec, ...]:
    sections = root.sections("nodes")
    owner_of_rank: dict[int, str] = {}
    seen: set[str] = set()
    nodes = []
    for section in sections:
        node = _node(section, seen, owner_of_rank)
        seen.add(node.id)
        owner_of_rank.update(dict.fromkeys(node.ranks, node.id))
        nodes.append(node)
    world = len(owner_of_rank)
    gaps = sorted(set(range(world)) - owner_of_rank.keys())
    if gaps:
        section = max(sections, key=lambda s: max(s.value("ranks")))
        section.fail(
            "ranks", sorted(owner_of_rank), f"ranks 0 to {world - 1} over the whole cluster (missing: {show(gaps)})"
        )
    return tuple(nodes)


def _node(section: Section, seen: set[str], owner_of_rank: dict[int, str]) -> NodeSpec:
    node_id = section.text("id")
    section.check(node_id not in seen, "id", node_id, "a node id that no other node has")
    host = section.text("host")
    ranks = section.integers("ranks")
    section.check(bool(ranks), "ranks", ranks, "at least one rank")
    section.check(min(ranks) >= 0, "ranks", ranks, "ranks of 0 or more")
    twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
    section.check(not twice, "ranks", ranks, f"each rank once (listed twice: {show(twice)})")
    for rank in ranks:
        if rank in owner_of_rank:
            section.fail("ranks", ranks, f"ranks of this node only (rank {rank} is also on {owner_of_rank[rank]!r})")
    gpus = []
    for gpu in section.sections("gpus"):
        profile = gpu.text("profile")
        if not profiles.exists(profile):
            gpu.fail("profile", profile, f"a known GPU profile ({profiles.near_names(profile)})")
        gpu.end()
        gpus.append(profile)
    section.check(
        len(gpus) == len(ranks), "gpus", f"{len(gpus)} gpus for {len(ranks)} ranks", "as many gpus as ranks"
    )
    section.end()
    return NodeSpec(node_id, host, tuple(ranks), tuple(gpus))


def _fabric(section: Section) -> Fabric:
    kind = section.text("type")
    section.check(kind in FABRIC_TYPES, "type", kind, f"one of {', '.join(FABRIC_TYPES)}")
    bandwidth = section.number("bandwidth_gbps")
    section.check(bandwidth > 0, "bandwidth_gbps", bandwidth, "more than 0")
    latency = section.number("latency_us")
    section.check(latency >= 0, "latency_us", latency, "0 or more")
    oversubscription = section.number("oversubscription", 1.0)
    section.check(oversubscription >= 1, "oversubscription", oversubscription, "1 or more")
    extensions = _extensions(section)
    section.end()
    return Fabric(kind, bandwidth, latency, oversubscription, **extensions)


def _extensions(section: Section) -> dict:
    nics = section.take("nics", int, None)
    section.check(nics is None or nics > 0, "nics", nics, "more than 0")
    efficiency = section.number("efficiency", None)
    section.check(efficiency is None or 0 < efficiency <= 1, "efficiency", efficiency, "above 0, at most 1")
    topology = section.text("topology", None)
    section.check(topology in (None, "switch", "mesh", "tree"), "topology", topology, "switch, mesh or tree")
    return {
        "nics": nics,
        "rails": section.take("rails", bool, None),
        "switches": _switches(section),
        "multicast": section.take("multicast", bool, None),
        "sharp": section.take("sharp", bool, False),
        "efficiency": efficiency,
        "topology": topology,
    }


def _switches(section: Section) -> tuple[SwitchLevel, ...]:
    levels = []
    for level in section.sections("switches", required=False):
        nodes = level.take("nodes", int)
        smallest = levels[-1].nodes + 1 if levels else 1
        level.check(nodes >= smallest, "nodes", nodes, f"{smallest} or more (each level holds the one below)")
        oversubscription = level.number("oversubscription", 1.0)
        level.check(oversubscription >= 1, "oversubscription", oversubscription, "1 or more")
        latency = level.number("latency_us", 0.0)
        level.check(latency >= 0, "latency_us", latency, "0 or more")
        level.end()
        levels.append(SwitchLevel(nodes, oversubscription, latency))
    return tuple(levels)
