"""Clusters that people know, by name: GPU, GPUs per node, both fabrics. Data lives in data/clusters/presets.yaml."""

from __future__ import annotations

import functools
from pathlib import Path

import attrs
import yaml

from fakegpu import settings
from fakegpu.cluster import ClusterError, ClusterSpec, Fabric, NodeSpec


@attrs.frozen
class Preset:
    name: str
    description: str
    profile: str
    gpus_per_node: int
    intra_node: Fabric
    inter_node: Fabric
    algorithm: str | None = None

    def build(self, nodes: int = 1, gpus_per_node: int | None = None) -> ClusterSpec:
        """A cluster of `nodes` such nodes, or of a part of each."""
        per_node = self.gpus_per_node if gpus_per_node is None else gpus_per_node
        if nodes < 1:
            raise ClusterError(f"preset {self.name}: nodes: found {nodes}, expected 1 or more")
        if not 1 <= per_node <= self.gpus_per_node:
            raise ClusterError(
                f"preset {self.name}: gpus per node: found {per_node}, expected 1 to {self.gpus_per_node}"
            )
        specs = tuple(
            NodeSpec(
                f"node{i}", "127.0.0.1", tuple(range(i * per_node, (i + 1) * per_node)), (self.profile,) * per_node
            )
            for i in range(nodes)
        )
        fabrics = self.intra_node, with_nics_of(self.inter_node, per_node, self.gpus_per_node)
        return ClusterSpec(self.name, specs, *fabrics, algorithm=self.algorithm)


@functools.cache
def table() -> dict[str, Preset]:
    path = Path(settings.data_dir()) / "clusters" / "presets.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        name: Preset(
            name=name,
            description=row["description"],
            profile=row["profile"],
            gpus_per_node=row["gpus_per_node"],
            intra_node=Fabric(**row["intra_node"]),
            inter_node=Fabric(**row["inter_node"]),
            algorithm=row.get("algorithm"),
        )
        for name, row in data.items()
    }


def get(name: str) -> Preset:
    presets = table()
    if name not in presets:
        hint = f"presets: {', '.join(presets)}"
        raise ClusterError(f"cluster {name!r}: found neither a file nor a preset", hint=hint)
    return presets[name]


def render(spec: ClusterSpec) -> str:
    """The cluster as a valid version 1 file."""
    document = {
        "version": 1,
        "cluster": {"name": spec.name, "default_backend": spec.default_backend},
        "nodes": [
            {
                "id": node.id,
                "host": node.host,
                "ranks": list(node.ranks),
                "gpus": [{"profile": profile} for profile in node.gpus],
            }
            for node in spec.nodes
        ],
        "fabric": {"intra_node": _fabric(spec.intra_node), "inter_node": _fabric(spec.inter_node)},
    }
    for key in ("algorithm", "protocol"):
        if getattr(spec, key):
            document["cluster"][key] = getattr(spec, key)
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)


def _fabric(fabric: Fabric) -> dict:
    row = {"type": fabric.type, "bandwidth_gbps": fabric.bandwidth_gbps, "latency_us": fabric.latency_us}
    for field in attrs.fields(Fabric):
        value = getattr(fabric, field.name)
        if field.name not in row and value != field.default:
            row[field.name] = [attrs.asdict(v) for v in value] if field.name == "switches" else value
    return row


def resolve(name: str, nodes: int | None = None, gpus_per_node: int | None = None) -> ClusterSpec:
    """A cluster file's cluster, or a preset's with `nodes` nodes (1 by default)."""
    from fakegpu.cluster import load

    if name in table():
        return get(name).build(1 if nodes is None else nodes, gpus_per_node)
    if not Path(name).exists():
        get(name)
    spec = load(name)
    return spec if nodes is None and gpus_per_node is None else part_of(spec, nodes, gpus_per_node)


def part_of(spec: ClusterSpec, nodes: int | None, gpus_per_node: int | None) -> ClusterSpec:
    """The first nodes of a cluster and the first GPUs of each, with ranks counted anew."""
    count = spec.node_count if nodes is None else nodes
    if not 1 <= count <= spec.node_count:
        raise ClusterError(f"{spec.path}: nodes: found {count}, expected 1 to {spec.node_count}")
    specs, first = [], 0
    for node in spec.nodes[:count]:
        size = len(node.ranks) if gpus_per_node is None else gpus_per_node
        if not 1 <= size <= len(node.ranks):
            raise ClusterError(f"{spec.path}: {node.id}: gpus per node: found {size}, expected 1 to {len(node.ranks)}")
        specs.append(attrs.evolve(node, ranks=tuple(range(first, first + size)), gpus=node.gpus[:size]))
        first += size
    gpus = max(len(node.ranks) for node in spec.nodes)
    nearest = with_nics_of(spec.inter_node, max(len(node.ranks) for node in specs), gpus)
    return attrs.evolve(spec, nodes=tuple(specs), inter_node=nearest)


def with_nics_of(fabric: Fabric, gpus: int, of: int) -> Fabric:
    """The fabric with the NICs beside `gpus` of a node's `of` GPUs: a part of a node does not use the others."""
    return fabric if fabric.nics is None else attrs.evolve(fabric, nics=max(1, fabric.nics * gpus // of))
