"""Every bundled cluster file and every preset is accepted and means what its table says.

usage: test_cluster_config_valid.py [--json EVIDENCE]
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402
from clients import equal, expect  # noqa: E402

from fakegpu import cluster  # noqa: E402
from fakegpu.cluster import presets  # noqa: E402

DATA = Path(__file__).resolve().parent / "data"
NVLINK, PCIE = ("nvlink", 300, 3, 1), ("pcie", 64, 4, 1)
RTX = ("rtx-pro-5000-blackwell", "rtx3090ti")
BUNDLED = {  # file: ranks of each node, profile of each node, intra, inter (type, Gbit/s, us, oversubscription)
    "cluster_valid": ([[0, 1], [2, 3]], ("a100", "h100"), NVLINK, ("infiniband", 200, 15, 1.5)),
    "cluster_hybrid_4r": ([[0, 1], [2, 3]], ("a100", "h100"), NVLINK, ("infiniband", 100, 12, 1.2)),
    "cluster_slow_interconnect": ([[0, 1], [2, 3]], ("a100", "h100"), NVLINK, ("ethernet", 25, 80, 2.0)),
    "cluster_hybrid_2r": ([[0], [1]], ("a100", "a100"), PCIE, ("infiniband", 100, 12, 1.2)),
    "cluster_proxy_2r": ([[0], [1]], ("a100", "a100"), PCIE, ("infiniband", 100, 12, 1.2)),
    "cluster_proxy_1r": ([[0]], ("a100",), PCIE, ("infiniband", 100, 12, 1.2)),
    "cluster_tcp_2r": ([[0], [1]], RTX, PCIE, ("tcp", 10, 100, 1)),
    "cluster_tcp_4r": ([[0, 2], [1, 3]], RTX, PCIE, ("tcp", 10, 100, 1)),
}
PRESETS = (
    "dgx1-v100", "p3dn", "dgx-a100", "p4d", "p4de", "dgx-h100", "dgx-h200", "p5", "a3-mega", "hgx-b200", "hgx-b300",
    "gb200-nvl72", "pcie-rtx-pro-6000", "pcie-l40s",
)


def fabric(found) -> tuple:
    return found.type, found.bandwidth_gbps, found.latency_us, found.oversubscription


def bundled_files() -> dict:
    found = {path.stem for path in DATA.glob("cluster_*.yaml") if "invalid" not in path.stem}
    equal("bundled files", found, set(BUNDLED))
    for name, (places, profiles, intra, inter) in BUNDLED.items():
        spec = cluster.load(DATA / f"{name}.yaml")
        equal(f"{name} ranks", [list(node.ranks) for node in spec.nodes], places)
        equal(f"{name} profiles", [set(node.gpus) for node in spec.nodes], [{profile} for profile in profiles])
        equal(f"{name} intra_node", fabric(spec.intra_node), intra)
        equal(f"{name} inter_node", fabric(spec.inter_node), inter)
    return {"files": len(BUNDLED)}


def known_presets() -> dict:
    for name in PRESETS:
        spec = presets.resolve(name, 3)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.yaml"
            path.write_text(presets.render(spec), encoding="utf-8")
            again = cluster.load(path)
        equal(f"{name} as a file", (again.nodes, again.intra_node, again.inter_node),
              (spec.nodes, spec.intra_node, spec.inter_node))
        expect(spec.node_count == 3 and spec.world_size % 3 == 0, f"{name}: {spec.node_count} nodes")
    return {"presets": len(PRESETS)}


if __name__ == "__main__":
    checks = [("bundled files", bundled_files), ("presets as files", known_presets)]
    sys.exit(ranks.main("cluster_config_valid", checks, sys.argv[1:]))
