"""What an operator on a fake device costs beside the same operator on the CPU, and what installing the kernels costs.

    ./fgpu --device-count 1 python verification/benchmarks/operators.py [--json FILE] [--check]

The two are measured in turn, many times; medians. --check fails above the project's limits: 5 us over the CPU for the
median operator, 0.1 s for the installation.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

ROUNDS, CALLS = 15, 300
OVERHEAD_LIMIT_US, INSTALL_LIMIT_S = 5.0, 0.1


def operators(device: str) -> dict:
    x, y = torch.ones(4, 4, device=device), torch.ones(4, 4, device=device)
    w = torch.ones(4, 4, device=device, requires_grad=True)
    half = torch.ones(4, 4, device=device, dtype=torch.bfloat16)
    q = torch.ones(1, 2, 8, 8, device=device)
    lists = [torch.ones(4, device=device) for _ in range(20)]
    image, kernel = torch.ones(1, 2, 6, 6, device=device), torch.ones(2, 2, 3, 3, device=device)
    return {
        "add": lambda: x + y,
        "add_": lambda: x.add_(1.0),
        "mul scalar": lambda: x * 2.0,
        "mm": lambda: x @ y,
        "mm bfloat16": lambda: half @ half,
        "linear": lambda: F.linear(x, w),
        "relu": lambda: torch.relu(x),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: F.layer_norm(x, (4,)),
        "sum": lambda: x.sum(),
        "cat": lambda: torch.cat([x, y]),
        "index_select": lambda: x.index_select(0, torch.zeros(1, dtype=torch.int64, device=device)),
        "conv2d": lambda: F.conv2d(image, kernel),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q),
        "dropout": lambda: F.dropout(x, 0.5),
        "foreach add_ x20": lambda: torch._foreach_add_(lists, 1.0),
        "view (no kernel)": lambda: x.view(16),
    }


def microseconds(function) -> float:
    """CPU time of this thread per call: other programs on the machine do not count."""
    started = time.thread_time()
    for _ in range(CALLS):
        function()
    return (time.thread_time() - started) / CALLS * 1e6


def measure() -> dict[str, dict[str, float]]:
    host, fake = operators("cpu"), operators("cuda")
    table = {}
    for name in host:
        host[name](), fake[name]()
        pairs = [(microseconds(host[name]), microseconds(fake[name])) for _ in range(ROUNDS)]
        cpu, cuda = (statistics.median(values) for values in zip(*pairs))
        table[name] = {"cpu_us": cpu, "cuda_us": cuda, "overhead_us": cuda - cpu}
    return table


def install_seconds() -> float:
    """Least over fresh processes (the machine may be busy) of what the hook adds after torch's own import."""
    script = (
        "import sys, time, torch\n"
        "from fakegpu.torchhost import loader\n"
        "print(loader.install_seconds)\n"
    )
    command = [sys.executable, "-c", script]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(5)]
    return min(float(run.stdout) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the numbers here")
    parser.add_argument("--check", action="store_true", help="exit 1 above the limits")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = measure()
    print(f"{'operator':20} {'CPU us':>8} {'fake us':>8} {'over us':>8}")
    for name, row in table.items():
        print(f"{name:20} {row['cpu_us']:8.2f} {row['cuda_us']:8.2f} {row['overhead_us']:8.2f}")
    overhead = statistics.median(row["overhead_us"] for row in table.values())
    install = install_seconds()
    print(f"median overhead {overhead:.2f} us (limit {OVERHEAD_LIMIT_US}), installation {install:.3f} s "
          f"(limit {INSTALL_LIMIT_S})")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"operators": table, "median_overhead_us": overhead, "install_s": install}, file, indent=1)
    return int(arguments.check and (overhead > OVERHEAD_LIMIT_US or install > INSTALL_LIMIT_S))


if __name__ == "__main__":
    sys.exit(main())
