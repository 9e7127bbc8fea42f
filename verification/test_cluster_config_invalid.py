"""Every rule of the cluster file refuses the bundled file that breaks it, in one line, by the command a user types.

usage: test_cluster_config_invalid.py [--json EVIDENCE]
The line names file, line, key, what was found and what was expected; the exit status is 2.
"""

import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import ranks  # noqa: E402
from clients import ROOT, equal, expect  # noqa: E402

DATA = Path(__file__).resolve().parent / "data"
KEYS = {  # file after cluster_invalid_: line, key
    "backend": (4, "cluster.default_backend"),
    "bandwidth_infinite": (29, "fabric.inter_node.bandwidth_gbps"),
    "bandwidth_text": (29, "fabric.inter_node.bandwidth_gbps"),
    "bandwidth_zero": (29, "fabric.inter_node.bandwidth_gbps"),
    "duplicate_key": (31, "fabric.inter_node.latency_us"),
    "duplicate_node_id": (14, "nodes[1].id"),
    "duplicate_rank": (16, "nodes[1].ranks"),
    "duplicate_rank_in_node": (16, "nodes[1].ranks"),
    "empty": (1, "document"),
    "empty_ranks": (16, "nodes[1].ranks"),
    "extension_efficiency": (31, "fabric.inter_node.efficiency"),
    "extension_nics": (31, "fabric.inter_node.nics"),
    "extension_switches": (31, "fabric.inter_node.switches[1].nodes"),
    "extra_cluster_key": (4, "cluster.owner"),
    "extra_fabric_key": (22, "fabric.storage"),
    "extra_gpu_key": (12, "nodes[0].gpus[0].memory"),
    "extra_node_key": (9, "nodes[0].rack"),
    "extra_root_key": (2, "owner"),
    "fabric_type": (28, "fabric.inter_node.type"),
    "gpu_count": (17, "nodes[1].gpus"),
    "latency_negative": (30, "fabric.inter_node.latency_us"),
    "missing_fabric": (1, "fabric"),
    "missing_inter_node": (22, "fabric.inter_node"),
    "missing_name": (3, "cluster.name"),
    "missing_version": (1, "version"),
    "negative_rank": (9, "nodes[0].ranks"),
    "no_nodes": (6, "nodes"),
    "not_a_mapping": (1, "document"),
    "not_yaml": (17, "not valid YAML"),
    "oversubscription": (31, "fabric.inter_node.oversubscription"),
    "rank_gap": (16, "nodes[1].ranks"),
    "rank_not_integer": (16, "nodes[1].ranks"),
    "ranks_not_from_zero": (9, "nodes[0].ranks"),
    "unknown_key": (31, "fabric.inter_node.oversubscripton"),
    "unknown_node_key": (7, "nodes[0].host"),
    "unknown_profile": (18, "nodes[1].gpus[0].profile"),
    "unknown_root_key": (1, "fabric"),
    "version": (1, "version"),
}


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "fakegpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def refused_by_check() -> dict:
    files = {path.stem.removeprefix("cluster_invalid_"): path for path in DATA.glob("cluster_invalid_*.yaml")}
    equal("bundled files", set(files), set(KEYS))
    paths = [str(files[name].relative_to(ROOT)) for name in sorted(files)]
    result = run("cluster", "check", *paths)
    equal("exit status", result.returncode, 2)
    lines = result.stderr.splitlines()
    equal("one line per file", len(lines), len(paths))
    for name, path, line in zip(sorted(files), paths, lines, strict=True):
        number, key = KEYS[name]
        expect(line.startswith(f"{path}:{number}: {key}"), f"{name}: found {line!r}, expected line {number}, key {key}")
        complete = name == "not_yaml" or re.search(r": found .+, expected .+", line)
        expect(bool(complete), f"{name}: no found or no expected: {line!r}")
    return {"files": len(paths)}


def refused_by_coordinator() -> dict:
    path = "verification/data/cluster_invalid_duplicate_rank.yaml"
    result = run("coordinator", "--listen", "127.0.0.1:0", "--cluster-config", path)
    expect(result.returncode == 2, f"exit status {result.returncode}, expected 2")
    expect(f"{path}:16: nodes[1].ranks" in result.stderr, f"found {result.stderr!r}")
    expect("Traceback" not in result.stderr, "a traceback")
    return {"stderr": result.stderr.strip()}


def missing_file() -> dict:
    result = run("estimate", "--cluster", "/nowhere/cluster.yaml")
    expect(result.returncode == 2 and "/nowhere/cluster.yaml" in result.stderr, f"found {result.stderr!r}")
    return {}


if __name__ == "__main__":
    checks = [
        ("cluster check", refused_by_check), ("coordinator", refused_by_coordinator), ("missing file", missing_file),
    ]
    sys.exit(ranks.main("cluster_config_invalid", checks, sys.argv[1:]))
