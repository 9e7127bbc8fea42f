#!/usr/bin/env python3
"""Worker: fully_shard (FSDP2) with worked-out numbers. torchrun ... fsdp2.py --precision P --reduce-precision R

Checks the local shards' shapes, every rank's shard of the averaged gradient, the parameters rebuilt by full_tensor()
and a full state dict that restores a fresh model. The numbers have no rounding in half precision, so that all
comparisons ask for equality.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from hybrid import model, reference  # noqa: E402

import torch  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict  # noqa: E402
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: E402

STEPS = 2
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def shard(policy: MixedPrecisionPolicy):
    net = model.network()
    for layer in (net.inner, net.outer):
        fully_shard(layer, mp_policy=policy)
    return fully_shard(net, mp_policy=policy)


def rows_of(value: list, rank: int, world: int) -> list:
    """A rank's part along the first dimension, as torch.chunk cuts: the last ranks may have fewer rows, or none."""
    size = -(-len(value) // world)
    return value[rank * size : (rank + 1) * size]


def local(tensor) -> list:
    return tensor.to_local().float().tolist()


def train(net, rank: int, world: int, wrong: list[str]) -> dict:
    optimizer, record = model.sgd(net.parameters()), {}
    for step, exact in enumerate(reference.train(world, STEPS)):
        wanted = reference.floats(exact)
        optimizer.zero_grad()
        model.loss(net(model.sample(rank, step))).backward()
        for name, parameter in net.named_parameters():
            expected = rows_of(wanted["gradients"][name], rank, world)
            if local(parameter.grad) != expected:
                wrong.append(f"step {step}: gradient shard of {name} is {local(parameter.grad)}, expected {expected}")
        optimizer.step()
        record["shards"] = {name: list(value.to_local().shape) for name, value in net.named_parameters()}
        record["gradient_shards"] = {name: local(value.grad) for name, value in net.named_parameters()}
    return record


def main() -> int:
    choice = {"choices": tuple(PRECISIONS), "default": "fp32"}
    options = model.arguments(("--precision", choice), ("--reduce-precision", {"choices": ("fp32", "parameter"), "default": "fp32"}))
    rank, world = model.join()
    computed = PRECISIONS[options.precision]
    reduced = computed if options.reduce_precision == "parameter" else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=computed, reduce_dtype=reduced)
    wrong: list[str] = []
    net = shard(policy)
    record = train(net, rank, world, wrong)
    record["parameters"] = model.values((name, value.full_tensor()) for name, value in net.named_parameters())
    wanted = reference.floats(reference.train(world, STEPS)[-1]["parameters"])
    if record["parameters"] != wanted:
        wrong.append(f"rebuilt parameters are {record['parameters']}, expected {wanted}")
    full = StateDictOptions(full_state_dict=True)
    saved = get_model_state_dict(net, options=full)
    record["state_dict"] = model.values(saved.items())
    if record["state_dict"] != wanted:
        wrong.append(f"the full state dict holds {record['state_dict']}, expected {wanted}")
    fresh = shard(policy)
    set_model_state_dict(fresh, saved, options=full)
    if model.values((name, value.full_tensor()) for name, value in fresh.named_parameters()) != wanted:
        wrong.append("a fresh model does not get the saved parameters back")
    return model.leave(record, options.report_dir, wrong)


if __name__ == "__main__":
    sys.exit(main())
