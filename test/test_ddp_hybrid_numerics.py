#!/usr/bin/env python3
"""DistributedDataParallel on real numbers: a torchrun worker that checks gradients and parameters worked out by hand.

    torchrun --nproc-per-node 2 test/test_ddp_hybrid_numerics.py [--variant all] [--report-dir DIR]

Variants: basic averaging, accumulation with no_sync, rank-dependent unused parameters, a static graph, gradients as
views of the buckets. Exit status 1 on the first rank with a wrong value. Under pytest, and with the communication
report checked too: verification/run_hybrid_ddp_numerics.py.
"""

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "verification"))

VARIANTS = ("basic", "no_sync", "unused", "static_graph", "bucket_view")
STEPS = 2


def close(found, expected) -> bool:
    """Equal up to the rounding of one float32 sum, through dictionaries and lists."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and found.keys() == expected.keys() and all(close(found[k], expected[k]) for k in found)
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6)
    return found == expected


class Checks:
    """Differences between what a rank has and what was worked out.

    DDP divides by the number of ranks before it adds: without rounding for powers of two, so those must be equal.
    """

    def __init__(self, world: int) -> None:
        self.wrong: list[str] = []
        self.exact = world & (world - 1) == 0

    def equal(self, what: str, found, expected) -> None:
        if not (found == expected if self.exact else close(found, expected)):
            self.wrong.append(f"{what} is {found}, expected {expected}")


def step_plain(net, rank: int, step: int, checks: Checks) -> None:
    from hybrid import model

    model.loss(net(model.sample(rank, step))).backward()


def step_no_sync(net, rank: int, step: int, checks: Checks) -> None:
    """The first micro-batch stays on its rank: its gradient is the rank's own until the second one."""
    from hybrid import model, reference

    with net.no_sync():
        model.loss(net(model.sample(rank, step, 0))).backward()
    if step == 0:
        start = {name: reference.initial(name) for name in reference.SHAPES}
        own = reference.floats(reference.gradient(start, reference.sample(rank, 0, 0)))
        checks.equal("the gradient inside no_sync", gradients(net), own)
    model.loss(net(model.sample(rank, step, 1))).backward()


def step_branch(net, rank: int, step: int, checks: Checks) -> None:
    from hybrid import model

    model.loss(net(model.sample(rank, step), "other" if rank % 2 else "outer")).backward()


def gradients(net) -> dict:
    from hybrid import model

    return model.values((name, parameter.grad) for name, parameter in net.module.named_parameters())


def options(variant: str) -> dict:
    return {
        "unused": {"find_unused_parameters": True},
        "static_graph": {"static_graph": True},
        "bucket_view": {"gradient_as_bucket_view": True},
    }.get(variant, {})


def expected(variant: str, world: int) -> list[dict]:
    from hybrid import reference

    if variant == "unused":
        return [reference.floats(step) for step in reference.train_branches(world, STEPS)]
    return [reference.floats(step) for step in reference.train(world, STEPS, 2 if variant == "no_sync" else 1)]


def run_variant(variant: str, rank: int, world: int, checks: Checks) -> dict:
    """Train; compare every step; the last step's gradients and parameters."""
    from hybrid import model
    from torch.nn.parallel import DistributedDataParallel

    branches = variant in ("unused", "static_graph")
    net = DistributedDataParallel(model.network(branches), **options(variant))
    optimizer = model.sgd(net.parameters())
    step_once = {"no_sync": step_no_sync, "unused": step_branch}.get(variant, step_plain)
    unused = {"unused": ("spare",), "static_graph": ("other", "spare")}.get(variant, ())
    for step, wanted in enumerate(expected(variant, world)):
        optimizer.zero_grad(set_to_none=False)
        step_once(net, rank, step, checks)
        found = {name: value for name, value in gradients(net).items() if not name.startswith(unused or "-")}
        checks.equal(f"{variant}: gradients of step {step}", found, wanted["gradients"])
        if variant == "bucket_view":
            buckets = {parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}
            checks.equal("bucket_view: buckets that hold the gradients", len(buckets), 1)
        optimizer.step()
        parameters = model.values(net.module.named_parameters())
        trained = {name: parameters[name] for name in wanted["parameters"]}
        checks.equal(f"{variant}: parameters after step {step}", trained, wanted["parameters"])
    return {"gradients": found, "parameters": parameters}


def main() -> int:
    from hybrid import model

    options = model.arguments(("--variant", {"choices": (*VARIANTS, "all"), "default": "basic"}))
    rank, world = model.join()
    checks, record = Checks(world), {"variants": {}}
    for variant in VARIANTS if options.variant == "all" else (options.variant,):
        record["variants"][variant] = run_variant(variant, rank, world, checks)
    return model.leave(record, options.report_dir, checks.wrong)


if __name__ == "__main__":
    sys.exit(main())
