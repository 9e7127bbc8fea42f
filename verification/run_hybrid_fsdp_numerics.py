#!/usr/bin/env python3
"""FullyShardedDataParallel with fixed numbers on two ranks: shards, rebuilt parameters, state dict, communication.

    python3 verification/run_hybrid_fsdp_numerics.py [--report-dir DIR]

The worker verification/hybrid/fsdp.py compares values; here the ranks are compared with each other and the cluster
report with what full sharding must move. FAKEGPU_MODE chooses who computes: simulate (default) or hybrid.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hybrid import job, reference  # noqa: E402

WORKER = "verification/hybrid/fsdp.py"
WORLD, STEPS, FLOAT = 2, 2, 4
REBUILDS = 4  # parameters, state dict, loading it into a fresh model, the fresh model's parameters


def unit_elements(unit: str) -> int:
    """A layer's flat parameter, padded to a multiple of the ranks."""
    numel = sum(math.prod(shape) for name, shape in reference.SHAPES.items() if name.startswith(unit))
    return -(-numel // WORLD) * WORLD


def expected() -> Counter:
    """Per layer: gathered for the forward and the backward of every step, and once per rebuild; one reduce-scatter."""
    found = Counter()
    for unit in ("inner", "outer"):
        size = unit_elements(unit) * FLOAT
        found["all_gather", "float32", None, size] += 2 * STEPS + REBUILDS
        found["reduce_scatter", "float32", "sum", size] += STEPS
    return found


def body(options: argparse.Namespace, folder: Path) -> dict:
    records, document = job.run(WORKER, WORLD, folder)
    job.same_everywhere(records, "parameters", "state_dict", "shards")
    shards = {unit: [unit_elements(unit) // WORLD] for unit in ("inner", "outer")}
    assert records[0]["shards"] == shards, f"shards have shapes {records[0]['shards']}, expected {shards}"
    return {"summary": f"full shard on {WORLD} ranks", "shards": shards,
            "operations": job.compare_operations(document, expected(), lambda entry: True)}  # fmt: skip


if __name__ == "__main__":
    sys.exit(job.main("hybrid_fsdp_numerics", argparse.ArgumentParser(description=__doc__.splitlines()[0]), body))
