"""The modelled time against published nccl-tests tables, and against what must hold of any time model.

usage: test_time_model.py [--json EVIDENCE]
Prints the median absolute error per table and collective and by size class. Exit status 0 if every promise holds:
at most 5 % median over all rows and over rows from 64 MiB, no single-node table above 12 %, multi-node from 1 GiB at
most 15 %. The constants were fitted on these tables; fit_timing.py prints what a table costs that the fit did not see.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fakegpu.cluster import presets  # noqa: E402
from fakegpu.timing import Operation, TimeModel  # noqa: E402

TABLES = {  # file: preset, nodes, GPUs per node
    "aws_p3dn_2x8_v100_efa_allreduce": ("p3dn", 2, 8),
    "aws_p4de_2x8_a100_efa_allreduce": ("p4de", 2, 8),
    "aws_p5_1x8_h100_nvls_allreduce": ("p5", 1, 8),
    "gcp_a3mega_2x8_h100_allreduce": ("a3-mega", 2, 8),
    "nvidia_aic_a100_sxm_2gpu_half": ("dgx-a100", 1, 2),
    "nvidia_aic_a100_sxm_8gpu_half": ("dgx-a100", 1, 8),
    "nvidia_aic_b200_sxm_4gpu_half": ("hgx-b200", 1, 4),
    "nvidia_aic_h100_sxm_2gpu_half": ("dgx-h100", 1, 2),
    "nvidia_aic_h100_sxm_8gpu_half": ("dgx-h100", 1, 8),
    "nvidia_aic_rtx_pro_6000_server_2gpu_half": ("pcie-rtx-pro-6000", 1, 2),
    "nvidia_aic_rtx_pro_6000_server_8gpu_half": ("pcie-rtx-pro-6000", 1, 8),
}
KINDS = {"alltoall": "all_to_all"}
MIB = 1 << 20


def read(name: str) -> list[tuple[str, int, float]]:
    lines = (ROOT / "verification/data/nccl_tables" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [(KINDS.get(r["collective"], r["collective"]), int(r["size_bytes"]), float(r["time_us"])) for r in rows]


def modelled(model: TimeModel, kind: str, size: int) -> float:
    ranks = tuple(range(model.cluster.world_size))
    count = size if kind == "all_reduce" else max(1, size // len(ranks))
    return model.estimate(Operation(kind, ranks, count, 1)).time_us


def table_errors(name: str) -> list[dict]:
    preset, nodes, gpus = TABLES[name]
    model = TimeModel(presets.resolve(preset, nodes, gpus))
    return [
        {"table": name, "nodes": nodes, "collective": kind, "size": size, "error": modelled(model, kind, size) / us - 1}
        for kind, size, us in read(name)
    ]


def middle(rows: list[dict]) -> float:
    """Median absolute error in percent; nan without rows."""
    return 100 * median(abs(row["error"]) for row in rows) if rows else float("nan")


def print_tables(rows: list[dict]) -> None:
    print("median absolute error in percent, by size class")
    print(f"{'table':<42} {'collective':<15} {'all':>6} {'<64K':>6} {'..16M':>6} {'>16M':>6}")
    for name in TABLES:
        for kind in dict.fromkeys(row["collective"] for row in rows if row["table"] == name):
            part = [row for row in rows if row["table"] == name and row["collective"] == kind]
            classes = (
                part,
                [r for r in part if r["size"] < 64 << 10],
                [r for r in part if 64 << 10 <= r["size"] <= 16 * MIB],
                [r for r in part if r["size"] > 16 * MIB],
            )
            print(f"{name:<42} {kind:<15} " + " ".join(f"{middle(c):6.1f}" for c in classes))


def accuracy(rows: list[dict]) -> list[str]:
    failed = []

    def promise(name: str, found: float, limit: float) -> None:
        print(f"{name}: {found:.1f} % (at most {limit:g} %)")
        if not found <= limit:
            failed.append(f"{name}: {found:.1f} %, promised at most {limit:g} %")

    promise("all rows", middle(rows), 5)
    promise("rows from 64 MiB", middle([r for r in rows if r["size"] >= 64 * MIB]), 5)
    for name, (_, nodes, _) in TABLES.items():
        part = [row for row in rows if row["table"] == name]
        if nodes == 1:
            promise(name, middle(part), 12)
            promise(f"{name} below 64 KiB", middle([r for r in part if r["size"] < 64 << 10]), 12)
            promise(f"{name} from 64 MiB", middle([r for r in part if r["size"] >= 64 * MIB]), 12)
        else:
            promise(f"{name} from 1 GiB", middle([r for r in part if r["size"] >= 1024 * MIB]), 15)
    return failed


def laws() -> list[str]:
    """What holds without a measurement."""
    failed = []

    def law(name: str, holds: bool) -> None:
        if not holds:
            failed.append(name)

    def time(preset: str, nodes: int, kind: str, size: int) -> float:
        return modelled(TimeModel(presets.resolve(preset, nodes)), kind, size)

    for preset in presets.table():
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            for nodes in (1, 2, 4):
                times = [time(preset, nodes, kind, 64 << 10 << 2 * i) for i in range(8)]
                grow = all(b > a * 0.75 for a, b in zip(times, times[1:], strict=False)) and times[-1] > times[0]
                law(f"{preset} x{nodes} {kind}: more bytes take longer", grow)
    big = 1024 * MIB
    law("more nodes take longer", time("dgx-h100", 4, "all_reduce", big) >= time("dgx-h100", 2, "all_reduce", big))
    law("H100 beats A100", time("dgx-h100", 1, "all_reduce", big) < time("dgx-a100", 1, "all_reduce", big))
    law("NVLink beats PCIe", time("dgx-a100", 1, "all_reduce", big) < time("pcie-l40s", 1, "all_reduce", big))
    law("a GiB over 8 H100 takes single milliseconds", 3e3 < time("dgx-h100", 1, "all_reduce", big) < 6e3)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the evidence here")
    arguments = parser.parse_args()
    rows = [row for name in TABLES for row in table_errors(name)]
    print_tables(rows)
    failed = accuracy(rows) + laws()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"failed": failed, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    for line in failed:
        print(f"FAILED: {line}", file=sys.stderr)
    print(f"time model: {'FAILED' if failed else 'OK'}, {len(rows)} rows")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
