"""The suites of ./ftest: a name -> one or more commands, run one after the other; the first failure's status is kept.

Called by fakegpu/bootstrap.py after the checkout was prepared. A suite is pytest with a selection or a script of
verification/; what a suite checks lives there. Nothing here decides whether something passed: exit statuses do.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = ["-n", "2", "--dist", "loadfile"]  # a module's fixtures start ranks: once is enough


def pytest(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", *arguments]


def script(path: str, *arguments: str) -> list[str]:
    return [sys.executable, path, *arguments]


SUITES: dict[str, tuple[str, list[list[str]]]] = {
    "all": ("everything quick, two workers; what CI runs", [pytest(*WORKERS, "-m", "not slow", "test")]),
    "unit": ("pure Python parts", [pytest("test/unit")]),
    "core": ("the Cython modules", [pytest("test/core")]),
    "native": ("the C libraries through ctypes and C programs", [pytest("test/native")]),
    "live": ("coordinator, clients and command line as processes", [pytest("test/live")]),
    "contract": ("headers, schemas, layers, generated tables", [pytest("test/contract")]),
    "torch": ("torch on fake GPUs", [pytest("test/torch")]),
    "tcp_bandwidth": ("the seed's TCP bandwidth check", [script("verification/test_tcp_bandwidth.py")]),
    "launchers": ("torchrun, Open MPI, MPICH and Slurm as launchers", [pytest("test/live/test_launchers.py")]),
    "multihost": ("the ssh controller; hosts as network namespaces with sshd (root)", [pytest("test/multihost")]),
    "timing": ("the time model against published tables", [script("verification/test_time_model.py")]),
    "report": (
        "cluster files and reports, the seed's checks",
        [
            script(f"verification/test_{name}.py")
            for name in (
                "cluster_config_valid",
                "cluster_config_invalid",
                "topology_model",
                "node_pair_report",
                "communication_accounting",
                "cluster_report_retention",
                "training_traffic",
            )
        ],
    ),
    "hybrid": ("DDP, FSDP and FSDP2 with worked-out numbers, every case", [pytest("test/torch/test_hybrid_runners.py")]),
    "torch-distributed": (
        "PyTorch's own in-wheel DistributedTest, world sizes 2 and 4 (long)",
        [script("test/torch_distributed/run.py")],
    ),
    "op-db": (
        "PyTorch's operator database against the CPU and the manifest of outcomes (long)",
        [script("verification/run_opdb.py")],
    ),
    "torch-parallel": (
        "DDP, FSDP, tensor, context and pipeline parallelism on 2, 4 and 8 ranks against one process (long)",
        [script("test/torch_parallel/run.py")],
    ),
    "fuzz": ("5,000 random NCCL programs on 2 to 8 ranks (long)", [script("verification/run_fuzz.py")]),
    "sanitize": (
        "core and native tests under address and undefined-behaviour sanitizers (long)",
        [script("verification/run_sanitized.py")],
    ),
    "bench": ("the benchmarks with their floors", [script("verification/benchmarks/run.py")]),
    "distributed_resilience": ("faults: dead ranks, mismatches, time-outs", [pytest("-m", "resilience", "test")]),
    "chaos": ("500 random failures, fixed seed (minutes)", [script("verification/chaos.py")]),
    "fuzz-wire": ("a million broken frames (minutes)", [script("verification/fuzz_wire.py")]),
    "soak": ("200,000 operations, then hostile peers", [script("verification/soak.py")]),
    "gpu": ("checks that need a real GPU", [script("verification/check_gpu.py")]),
}


def usage() -> str:
    return "\n".join(
        [
            "usage: ./ftest SUITE [pytest or script arguments]",
            "",
            "suites:",
            *(f"  {name:<24}{text}" for name, (text, _) in SUITES.items()),
        ]
    )


def main(arguments: list[str]) -> int:
    """Run the named suite; further arguments go to its last command."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    name = arguments[0]
    found = SUITES.get(name) or SUITES.get(name.replace("_", "-")) or SUITES.get(name.replace("-", "_"))
    if found is None:
        print(f"ftest: error: no suite {name!r}; there are: {', '.join(SUITES)}", file=sys.stderr)
        return 2
    commands = [list(command) for command in found[1]]
    commands[-1] += arguments[1:]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    status = 0
    for command in commands:
        sys.stdout.flush()
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        status = status or (code if code >= 0 else 128 - code)
    return status
