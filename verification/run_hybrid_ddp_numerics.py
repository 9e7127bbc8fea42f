#!/usr/bin/env python3
"""DistributedDataParallel with fixed numbers on two ranks: gradients, parameters and communication, all exact.

    python3 verification/run_hybrid_ddp_numerics.py --variant all [--report-dir DIR]

The worker test/test_ddp_hybrid_numerics.py compares values; here the ranks are compared with each other, and the
cluster report must show one gradient all-reduce per step and nothing else of that size. FAKEGPU_MODE chooses who
computes: simulate (default) or hybrid on a real GPU.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hybrid import job, reference  # noqa: E402

WORKER = "test/test_ddp_hybrid_numerics.py"
VARIANTS = ("basic", "no_sync", "unused", "static_graph", "bucket_view")
WORLD, STEPS, FLOAT, INT = 2, 2, 4, 4
PLAIN = sum(math.prod(shape) for shape in reference.SHAPES.values())
BRANCHES = PLAIN + 2 * (reference.OUT * reference.HIDDEN + reference.OUT)  # `other` and `spare`
BRANCH_TENSORS = 8


def expected(variant: str) -> Counter:
    """Parameters once from rank 0; one all-reduce of all gradients per step; where needed, who used what."""
    size = (BRANCHES if variant in ("unused", "static_graph") else PLAIN) * FLOAT
    found = Counter({("broadcast", "float32", None, size): 1, ("all_reduce", "float32", "sum", size): STEPS})
    searches = {"unused": STEPS, "static_graph": 1}.get(variant, 0)
    return found + Counter({("all_reduce", "int32", "sum", BRANCH_TENSORS * INT): searches})


def numbers(entry: dict) -> bool:
    """Not torch's own set-up, which exchanges shapes and the buckets' order as integers."""
    return entry["data_type"] == "float32" or entry["operation"] == "all_reduce"


def body(options: argparse.Namespace, folder: Path) -> dict:
    records, document = job.run(WORKER, WORLD, folder, "--variant", options.variant)
    variants = VARIANTS if options.variant == "all" else (options.variant,)
    job.same_everywhere(records, "variants")
    assert list(records[0]["variants"]) == list(variants), f"the worker ran {list(records[0]['variants'])}"
    operations = job.compare_operations(document, sum(map(expected, variants), Counter()), numbers)
    return {"summary": f"{len(variants)} variants on {WORLD} ranks", "variants": variants, "operations": operations}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", choices=(*VARIANTS, "all"), default="all")
    return job.main("hybrid_ddp_numerics", parser, body)


if __name__ == "__main__":
    sys.exit(main())
