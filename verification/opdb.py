"""Compares PyTorch's operator database on `device="cuda"` with the CPU: results, gradients, devices, dtypes, layouts.

    ./fgpu --device-count 1 python verification/opdb.py [--dtypes float32,bfloat16] [--only NAME] [--json FILE]

An entry passes for a dtype when every sample agrees. A documented refusal (NotImplementedError that says so) is
counted apart. What hardware itself does not support (by the database) is not asked. Exit status 1 on a disagreement.
"""

import argparse
import collections
import itertools
import json
import re
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
SPECTRA = {"stft", "istft"}
OK, FAILED, REFUSED, RANDOM = "agree", "DISAGREE", "refused", "agree (random)"
NO_REFERENCE, NOT_CUDA = "no CPU reference", "not on CUDA"  # the latter: torch itself has no such CUDA operator
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64,
         torch.bool: torch.uint8, torch.uint8: torch.float64, torch.int32: torch.float64, torch.int64: torch.float64}
LOW_TYPES = (torch.bfloat16, torch.float16)
LOW, HIGH = {"rtol": 3e-2, "atol": 5e-2}, {"rtol": 1e-4, "atol": 1e-5}  # sums in half precision, sums in another order
real_manual_seed = torch.manual_seed


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


def low_limit(op, expected) -> dict:
    """LOW; an element of a spectrum sums up terms as large as the largest, each rounded to 8 bits before."""
    if op.name not in SPECTRA:
        return LOW
    largest = max((t.detach().abs().max().item() for t in tensors(expected) if t.numel()), default=0.0)
    return {**LOW, "atol": max(LOW["atol"], largest / 256)}


def compare(what: str, got, expected, device: str, values: bool, wide: bool, tolerance: dict, low: dict = LOW) -> None:
    got, expected = tensors(got), tensors(expected)
    if len(got) != len(expected):
        raise Disagreement(f"{what}: {len(got)} tensors instead of {len(expected)}")
    for ours, theirs in zip(got, expected):
        if ours.device.type != device:
            raise Disagreement(f"{what}: a result is on {ours.device}")
        if wide:
            theirs = theirs.detach().to(ours.dtype)
        for name in ("dtype", "layout", "shape"):
            if getattr(ours, name) != getattr(theirs, name):
                raise Disagreement(f"{what}: {name} {getattr(ours, name)} instead of {getattr(theirs, name)}")
        if values and theirs.dtype is not torch.complex32:
            limit = low if wide or ours.dtype in LOW_TYPES else tolerance
            torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), equal_nan=True, **limit)


def finite(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided or bool(tensor.isfinite().all())


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


def widened(tree):
    """Half precision as float: for what the CPU lacks in half precision."""

    def convert(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.dtype not in WIDER:
            return WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
        return leaf.detach().to(WIDER[leaf.dtype]).requires_grad_(leaf.requires_grad)

    return pytree.tree_map(convert, tree)


def reference(op, sample, shift: int, wide: bool):
    """The CPU's answer; another shift changes every seed, also those that the database's wrappers set."""
    arguments = cpu_arguments((sample.input, sample.args, sample.kwargs))
    if wide:
        arguments = widened(arguments)
    torch.manual_seed = lambda seed: real_manual_seed(seed + shift)
    try:
        torch.manual_seed(0)
        output = op(arguments[0], *arguments[1], **arguments[2])
    finally:
        torch.manual_seed = real_manual_seed
    return output, arguments


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    except AssertionError:
        return False
    except NotImplementedError:  # complex half has no comparison
        return True
    return True


def missing_on_cuda(error: Exception) -> bool:
    """torch's own answer to an operator that has no CUDA kernel at all."""
    found = re.search(r"Could not run '([\w:.]+)' with arguments from the '(\w*CUDA)' backend", str(error))
    return found is not None and not torch._C._dispatch_has_kernel_for_dispatch_key(found[1], found[2])


def check_sample(op, sample, tolerance: dict) -> str:
    """The sample's status; raises Disagreement, AssertionError or what the operator raises."""
    expected = None  # if it stays so, only that CUDA refuses or answers on its device can be asked
    for wide in (False, True):
        try:
            expected, cpu_inputs = reference(op, sample, 0, wide)
            again, _ = reference(op, sample, 1, wide)
            break
        except TimeOut:
            raise
        except Exception:
            continue
    output = op(sample.input, *sample.args, **sample.kwargs)
    device = torch.device(sample.kwargs.get("device") or "cuda").type
    if expected is None:
        if any(t.device.type != device for t in tensors(output)):
            raise Disagreement(f"a result is not on {device}")
        return NO_REFERENCE
    unwritten_or_random = op.name in UNINITIALISED or op.name.startswith("rand")
    fixed = not unwritten_or_random and all(map(same_values, tensors(expected), tensors(again)))
    compare("result", output, expected, device, fixed, wide, tolerance, low_limit(op, expected))
    try:
        wanted = gradients(expected, cpu_inputs)
    except TimeOut:
        raise
    except Exception:
        wanted = None
    # torch's CPU gradient of a complex infinity norm is NaN at times
    cpu_is_right = wanted is not None and (all(map(finite, tensors(wanted))) or not all(map(finite, tensors(expected))))
    if fixed and cpu_is_right:
        found = gradients(output, (sample.input, sample.args, sample.kwargs))
        compare("gradient", found, wanted, device, True, wide, tolerance, low_limit(op, wanted))
    return OK if fixed else RANDOM


def check_entry(op, dtype: torch.dtype, samples: int, tolerance: dict) -> tuple[str, str]:
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cuda")
    results = collections.Counter()
    reason = ""
    try:
        real_manual_seed(7)
        for sample in itertools.islice(op.sample_inputs("cuda", dtype, requires_grad=grad), samples):
            try:
                results[check_sample(op, sample, tolerance)] += 1
            except NotImplementedError as error:
                if REFUSAL not in str(error) and not missing_on_cuda(error):
                    raise
                results[REFUSED if REFUSAL in str(error) else NOT_CUDA] += 1
                reason = str(error).splitlines()[0]
    except Exception as error:  # a failing entry must not end the run
        return FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:220]}"
    for status in (REFUSED, NOT_CUDA, RANDOM, OK):
        if results[status]:
            return status, reason
    return NO_REFERENCE, ""


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
        tolerance = LOW if dtype in LOW_TYPES else HIGH
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
    columns = [OK, RANDOM, REFUSED, NOT_CUDA, NO_REFERENCE, FAILED]
    print(f"{'dtype':10}" + "".join(f"{column:>18}" for column in columns))
    for name, row in table.items():
        print(f"{name:10}" + "".join(f"{row[column]:18}" for column in columns))
    failed = sum(row[FAILED] for row in table.values())
    print(f"op_db: {len(entries)} entries, {sum(map(sum, (r.values() for r in table.values())))} checks, "
          f"{failed} disagree, {time.monotonic() - started:.0f} s: {'FAILED' if failed else 'OK'}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(records, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
