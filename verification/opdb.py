"""Compares PyTorch's operator database on `device="cuda"` with the CPU: results, gradients, devices, dtypes, layouts.

    ./fgpu --device-count 1 python verification/opdb.py [--dtypes float32,bfloat16] [--only NAME] [--json FILE]

An entry passes for a dtype when every sample agrees. A documented refusal (NotImplementedError that says so) is
counted apart. What hardware itself does not support (by the database) is not asked. Exit status 1 on a disagreement.
"""

import argparse
import collections
import itertools
import json
import signal
import sys
import time
import warnings

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db

REFUSAL = "does not run on a fake device"
DTYPES = "float32,float64,bfloat16,float16,complex64,int64,int32,bool,uint8"
SAMPLE_SECONDS = 30
# memory that nobody has written: only sizes, dtype and device mean something
UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
OK, FAILED, REFUSED, RANDOM, NO_SAMPLE = "agree", "DISAGREE", "refused", "agree (random)", "no sample"


class TimeOut(Exception):
    pass


class Disagreement(Exception):
    pass


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """The same view (storage offset, overlaps) over a CPU copy of the whole storage."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_conj():
        return tensor.detach().cpu().requires_grad_(tensor.requires_grad)
    out = torch.empty(0, dtype=tensor.dtype)
    out.set_(tensor.untyped_storage().cpu(), tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_neg():
        out = torch._neg_view(out)
    return out.requires_grad_(tensor.requires_grad)


def cpu_arguments(tree):
    def convert(leaf):
        if isinstance(leaf, torch.Tensor):
            return to_cpu(leaf)
        if isinstance(leaf, torch.device) or leaf in ("cuda", "cuda:0"):
            return torch.device("cpu")
        return leaf

    return pytree.tree_map(convert, tree)


def tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def compare(what: str, got, expected, values: bool, tolerance: dict) -> None:
    got, expected = tensors(got), tensors(expected)
    if len(got) != len(expected):
        raise Disagreement(f"{what}: {len(got)} tensors instead of {len(expected)}")
    for ours, theirs in zip(got, expected):
        if ours.device.type != "cuda":
            raise Disagreement(f"{what}: a result is on {ours.device}")
        for name in ("dtype", "layout", "shape"):
            if getattr(ours, name) != getattr(theirs, name):
                raise Disagreement(f"{what}: {name} {getattr(ours, name)} instead of {getattr(theirs, name)}")
        if values:
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, check_stride=False,
                                       **tolerance)


def gradients(output, arguments):
    outputs = [t for t in tensors(output) if t.requires_grad]
    inputs = [t for t in tensors(arguments) if t.requires_grad]
    if not outputs or not inputs:
        return None
    weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t) if t.layout is torch.strided
               and not t.is_nested else 1 for t in outputs]
    loss = sum((t * w).abs().sum() if t.layout is torch.strided else t.to_dense().abs().sum()
               for t, w in zip(outputs, weights))
    return torch.autograd.grad(loss, inputs, allow_unused=True)


def reference(op, sample, seed: int):
    arguments = cpu_arguments((sample.input, sample.args, sample.kwargs))
    torch.manual_seed(seed)
    output = op(arguments[0], *arguments[1], **arguments[2])
    return output, arguments


def check_sample(op, sample, tolerance: dict) -> str:
    """OK, RANDOM or NO_SAMPLE; raises Disagreement, AssertionError or what the operator raises."""
    try:
        expected, cpu_inputs = reference(op, sample, 0)
        again, _ = reference(op, sample, 1)
    except TimeOut:
        raise
    except Exception:  # the CPU cannot do it: only that CUDA refuses or answers on its device can be asked
        expected = None
    output = op(sample.input, *sample.args, **sample.kwargs)
    if expected is None:
        if any(t.device.type != "cuda" for t in tensors(output)):
            raise Disagreement("a result is on the CPU")
        return NO_SAMPLE
    fixed = op.name not in UNINITIALISED and all(
        torch.equal(a, b) or torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(tensors(expected), tensors(again)) if a.layout is torch.strided and not a.is_quantized)
    compare("result", output, expected, fixed, tolerance)
    try:
        wanted = gradients(expected, cpu_inputs)
    except TimeOut:
        raise
    except Exception:
        wanted = None
    if wanted is not None and fixed:
        found = gradients(output, (sample.input, sample.args, sample.kwargs))
        compare("gradient", found, wanted, True, tolerance)
    return OK if fixed else RANDOM


def check_entry(op, dtype: torch.dtype, samples: int, tolerance: dict) -> tuple[str, str]:
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")
    results = collections.Counter()
    try:
        torch.manual_seed(7)
        for sample in itertools.islice(op.sample_inputs("cuda", dtype, requires_grad=grad), samples):
            try:
                results[check_sample(op, sample, tolerance)] += 1
            except NotImplementedError as error:
                if REFUSAL not in str(error):
                    raise
                results[REFUSED] += 1
                reason = str(error)
    except BaseException as error:  # a failing entry must not end the run
        if isinstance(error, KeyboardInterrupt):
            raise
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:220]}"
    for status in (REFUSED, RANDOM, OK):
        if results[status]:
            return status, reason if status == REFUSED else ""
    return NO_SAMPLE, ""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--only", default="", help="entries whose name contains this")
    parser.add_argument("--samples", type=int, default=8, help="per entry and dtype")
    parser.add_argument("--json", help="write the result table here")
    parser.add_argument("--shard", default="0/1", help="this part of the entries, as INDEX/COUNT")
    return parser.parse_args()


def alarm(_signal, _frame):
    raise TimeOut(f"longer than {SAMPLE_SECONDS} s")


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGALRM, alarm)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    index, count = map(int, arguments.shard.split("/"))
    entries = [op for op in op_db if arguments.only in op.name][index::count]
    table: dict[str, collections.Counter] = {}
    records = []
    started = time.monotonic()
    for name in arguments.dtypes.split(","):
        dtype = getattr(torch, name)
        low = dtype in (torch.bfloat16, torch.float16)
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if low else {"rtol": 1e-4, "atol": 1e-5}
        table[name] = collections.Counter()
        for op in entries:
            if dtype not in op.supported_dtypes("cuda"):
                continue
            signal.alarm(SAMPLE_SECONDS)
            status, detail = check_entry(op, dtype, arguments.samples, tolerance)
            signal.alarm(0)
            table[name][status] += 1
            entry = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            records.append({"entry": entry, "dtype": name, "status": status, "detail": detail})
            if status == FAILED:
                print(f"{entry} [{name}] {detail}", flush=True)
    columns = [OK, RANDOM, REFUSED, NO_SAMPLE, FAILED]
    print(f"{'dtype':10}" + "".join(f"{column:>16}" for column in columns))
    for name, row in table.items():
        print(f"{name:10}" + "".join(f"{row[column]:16}" for column in columns))
    failed = sum(row[FAILED] for row in table.values())
    print(f"op_db: {len(entries)} entries, {sum(map(sum, (r.values() for r in table.values())))} checks, "
          f"{failed} disagree, {time.monotonic() - started:.0f} s: {'FAILED' if failed else 'OK'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(records, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
