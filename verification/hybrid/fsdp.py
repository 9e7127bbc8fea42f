#!/usr/bin/env python3
"""Worker: FullyShardedDataParallel, full shard, with worked-out numbers. torchrun ... fsdp.py [--report-dir DIR]

Checks the shards' sizes, the reduce-scattered gradients (on every rank its own slice of the flat average), the
parameters that are rebuilt from the shards, and that a full state dict restores a fresh model.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from hybrid import model, reference  # noqa: E402

from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType  # noqa: E402

STEPS = 2
UNITS = {"inner": ("inner.weight", "inner.bias"), "outer": ("outer.weight", "outer.bias")}


def shard():
    net = model.network()
    for name in UNITS:
        setattr(net, name, FullyShardedDataParallel(getattr(net, name), device_id=model.torch.cuda.current_device()))
    return FullyShardedDataParallel(net, device_id=model.torch.cuda.current_device())


def flat(tree) -> list[float]:
    return [tree] if isinstance(tree, float) else [number for item in tree for number in flat(item)]


def slice_of(values: dict, unit: str, rank: int, world: int) -> list[float]:
    """A rank's part of a unit's flat parameter, padded with zeros to a multiple of the ranks."""
    numbers = flat([values[name] for name in UNITS[unit]])
    size = -(-len(numbers) // world)
    return (numbers + [0.0] * (size * world - len(numbers)))[rank * size : (rank + 1) * size]


def rebuilt(net) -> dict:
    with FullyShardedDataParallel.summon_full_params(net, writeback=False):
        named = [(name.replace("_fsdp_wrapped_module.", ""), value) for name, value in net.named_parameters()]
        return model.values(named)


def state(net) -> dict:
    with FullyShardedDataParallel.state_dict_type(net, StateDictType.FULL_STATE_DICT,
                                                  FullStateDictConfig(offload_to_cpu=True, rank0_only=False)):
        return net.state_dict()


def train(net, rank: int, world: int, wrong: list[str]) -> dict:
    """Two steps; the shards' sizes and the last gradients."""
    optimizer, shards, gradients = model.sgd(net.parameters()), {}, {}
    for step, exact in enumerate(reference.train(world, STEPS)):
        wanted = reference.floats(exact)
        optimizer.zero_grad()
        model.loss(net(model.sample(rank, step))).backward()
        for unit in UNITS:
            (parameter,) = getattr(net, unit).parameters()
            gradients[unit], shards[unit] = parameter.grad.tolist(), list(parameter.shape)
            expected = slice_of(wanted["gradients"], unit, rank, world)
            if gradients[unit] != expected:
                wrong.append(f"step {step}: gradient shard of {unit} is {gradients[unit]}, expected {expected}")
        optimizer.step()
    return {"shards": shards, "gradient_shards": gradients}


def main() -> int:
    options = model.arguments()
    rank, world = model.join()
    wrong: list[str] = []
    net = shard()
    record = train(net, rank, world, wrong)
    record["parameters"] = rebuilt(net)
    wanted = reference.floats(reference.train(world, STEPS)[-1]["parameters"])
    if record["parameters"] != wanted:
        wrong.append(f"rebuilt parameters are {record['parameters']}, expected {wanted}")
    saved = state(net)
    record["state_dict"] = model.values(saved.items())
    if record["state_dict"] != wanted:
        wrong.append(f"the full state dict holds {record['state_dict']}, expected {wanted}")
    fresh = shard()
    with FullyShardedDataParallel.state_dict_type(fresh, StateDictType.FULL_STATE_DICT):
        fresh.load_state_dict(saved)
    if rebuilt(fresh) != wanted:
        wrong.append("a fresh model does not get the saved parameters back")
    return model.leave(record, options.report_dir, wrong)


if __name__ == "__main__":
    sys.exit(main())
