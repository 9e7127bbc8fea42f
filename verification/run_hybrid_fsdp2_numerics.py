#!/usr/bin/env python3
"""fully_shard (FSDP2) with fixed numbers: shards, rebuilt parameters, state dict, communication in every precision.

    python3 verification/run_hybrid_fsdp2_numerics.py [--world-size 2|4] [--precision fp32|fp16|bf16]
                                                      [--reduce-precision fp32|parameter] [--report-dir DIR]

The worker verification/hybrid/fsdp2.py compares values; here the ranks are compared with each other and the cluster
report with what sharding must move: parameters in --precision, gradients in --reduce-precision, float16 gradients
summed after a division and others averaged. FAKEGPU_MODE chooses who computes: simulate (default) or hybrid.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hybrid import job, reference  # noqa: E402

WORKER = "verification/hybrid/fsdp2.py"
STEPS, FLOAT = 2, 4
DTYPES = {"fp32": ("float32", 4), "fp16": ("float16", 2), "bf16": ("bfloat16", 2)}
REBUILDS = 3  # parameters, state dict, the fresh model's parameters


def shard_elements(name: str, world: int) -> int:
    """The largest rank's part of a parameter: rows are cut as evenly as torch.chunk cuts, and padded to that."""
    rows, *columns = reference.SHAPES[name]
    return -(-rows // world) * math.prod(columns)


def expected(world: int, computed: tuple[str, int], reduced: tuple[str, int]) -> Counter:
    """Per layer and step two gathers and one reduce-scatter; per rebuild and parameter one gather; rank 0 hands out."""
    found = Counter()
    reduction = "sum" if reduced[0] == "float16" else "avg"
    for layer in ("inner", "outer"):
        elements = world * sum(shard_elements(name, world) for name in reference.SHAPES if name.startswith(layer))
        found["all_gather", computed[0], None, elements * computed[1]] += 2 * STEPS
        found["reduce_scatter", reduced[0], reduction, elements * reduced[1]] += STEPS
    for name in reference.SHAPES:
        size = shard_elements(name, world) * FLOAT
        found["all_gather", "float32", None, size * world] += REBUILDS
        found["send", "float32", None, size] += world - 1
    return found


def shapes(world: int, rank: int) -> dict:
    """Every parameter's local shape on a rank."""
    found = {}
    for name, (rows, *columns) in reference.SHAPES.items():
        most = -(-rows // world)
        found[name] = [max(0, min(most, rows - rank * most)), *columns]
    return found


def body(options: argparse.Namespace, folder: Path) -> dict:
    world, computed = options.world_size, DTYPES[options.precision]
    reduced = computed if options.reduce_precision == "parameter" else DTYPES["fp32"]
    records, document = job.run(WORKER, world, folder, "--precision", options.precision, "--reduce-precision",
                                options.reduce_precision)  # fmt: skip
    job.same_everywhere(records, "parameters", "state_dict")
    for rank, record in enumerate(records):
        wanted = shapes(world, rank)
        assert record["shards"] == wanted, f"rank {rank}: shards have shapes {record['shards']}, expected {wanted}"
    operations = job.compare_operations(document, expected(world, computed, reduced), lambda entry: True)
    summary = f"{world} ranks, parameters {computed[0]}, gradients reduced in {reduced[0]}"
    return {"summary": summary, "operations": operations}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world-size", type=int, choices=(2, 4), default=2)
    parser.add_argument("--precision", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--reduce-precision", choices=("fp32", "parameter"), default="fp32")
    return job.main("hybrid_fsdp2_numerics", parser, body)


if __name__ == "__main__":
    sys.exit(main())
