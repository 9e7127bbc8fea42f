"""Fits the single-node constants of data/timing/constants.yaml on the tables of verification/data/nccl_tables.

usage: fit_timing.py [--cross-validate] [--print]       needs scipy (pip install scipy); takes minutes
Log residuals with a soft-L1 loss; every family's constants are drawn towards a shared mean, which is drawn weakly
towards where it started, so that a family with one table does not follow that table's noise. --cross-validate fits
without each table in turn and prints the median absolute error on it: the figure for machines not seen.
"""

import argparse
import copy
import math
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "verification")]

import test_time_model as tables  # noqa: E402
import yaml  # noqa: E402
from fakegpu.cluster import presets  # noqa: E402
from fakegpu.timing import TimeModel, constants  # noqa: E402

SOURCE = ROOT / "data/timing/constants.yaml"
FAMILIES = ("ampere-nvlink", "hopper-nvlink", "blackwell-nvlink", "pcie")
# constant: how far (log) a family may lie from the shared mean
FAMILY_KEYS = {
    "base_us": 0.5, "step_us": 0.4, "plateau_us": 0.5, "link_efficiency": 0.1,
    "pair_peer_us": 0.7, "pair_plateau_us": 0.5, "pair_efficiency": 0.2, "pair_fill": 0.4,
}
HOST_KEYS = ("host_step_us", "host_ring_us_per_kb", "host_ll_us_per_kb", "host_pair_us_per_kb")
UNKNOWN = 1e-6
OWN_KEYS = {  # constants that only some families have: weakly held where they are
    "ampere-nvlink": ("ll_gbps",), "hopper-nvlink": ("ll_gbps", "nvls_efficiency"), "blackwell-nvlink": ("ll_gbps",),
    "pcie": ("ll_efficiency", "pair_link_efficiency", "host_step_us"),
}
SHARED_KEYS = (
    "plateau_exponent", "plateau_half_bytes", "ll128_step_ratio", "ll128_efficiency", "simple_step_exponent",
    "simple_fill", "simple_fill_exponent", "copy_all_reduce", "copy_all_gather", "copy_reduce_scatter",
    "copy_all_to_all", "pair_half_bytes", "nvls_latency_us", "nvls_fill", "plateau_sharpness",
    "plateau_reduce_scatter", "ll_overlap", "simple_launch", "pair_launch", "simple_fill_power",
)
SINGLE_NODE = [name for name, (_, nodes, _) in tables.TABLES.items() if nodes == 1]
NOISE = 0.05


def _family_of(name: str) -> str:
    preset, nodes, gpus = tables.TABLES[name]
    spec = presets.resolve(preset, nodes, gpus)
    return constants.load().family(spec.profile_of(0), spec.intra_node).name


ALONE = ("nvidia_aic_b200_sxm_4gpu_half", "nvidia_aic_rtx_pro_6000_server_8gpu_half")  # see the tables' README
FAMILY_OF = {name: _family_of(name) for name in SINGLE_NODE}


class Problem:
    """A vector of logarithms <-> the constants' document, and the residuals of some tables."""

    def __init__(self, names: list[str], start: dict) -> None:
        self.start = start
        self.rows = {name: tables.read(name) for name in names}
        self.keys = [("mean", key) for key in FAMILY_KEYS]
        self.keys += [(family, key) for family in FAMILIES for key in FAMILY_KEYS]
        self.keys += [(family, key) for family, own in OWN_KEYS.items() for key in own]
        self.keys += [("shared", key) for key in SHARED_KEYS]
        means = {k: sum(math.log(start["families"][f][k]) for f in FAMILIES) / len(FAMILIES) for k in FAMILY_KEYS}
        self.first = [
            means[key] if group == "mean"
            else 0.0 if key in FAMILY_KEYS
            else math.log(start["shared"][key] if group == "shared" else start["families"][group][key])
            for group, key in self.keys
        ]

    def document(self, vector) -> dict:
        found, values = copy.deepcopy(self.start), dict(zip(self.keys, vector, strict=True))
        for (group, key), value in values.items():
            if group == "shared":
                found["shared"][key] = math.exp(value)
            elif group != "mean":
                mean = values.get(("mean", key), 0.0) if key in FAMILY_KEYS else 0.0
                found["families"][group][key] = math.exp(mean + value)
        blackwell, hopper = found["families"]["blackwell-nvlink"], found["families"]["hopper-nvlink"]
        blackwell["nvls_efficiency"] = hopper["nvls_efficiency"] * 0.74 / 0.85
        return found

    def residuals(self, vector):
        import numpy

        document = self.document(vector)
        found = [r for name in self.rows for r in self.of_table(name, document)]
        for (group, key), value, first in zip(self.keys, vector, self.first, strict=True):
            found.append((value - first) / self.width(group, key))
        return numpy.array(found)

    def of_table(self, name: str, document: dict) -> list[float]:
        model = model_of(name, document)
        return [math.log(tables.modelled(model, kind, size) / us) / NOISE for kind, size, us in self.rows[name]]

    @staticmethod
    def width(group: str, key: str) -> float:
        return 0.7 if group == "mean" else FAMILY_KEYS.get(key, 0.3)

    def jacobian(self, vector):
        """A family's constants move only the rows of its own tables, a mean all that its families' move."""
        import numpy

        step, first = 1e-4, self.document(vector)
        spans, start, rows = {}, 0, sum(len(r) for r in self.rows.values())
        for name, table in self.rows.items():
            spans[name] = slice(start, start + len(table))
            start += len(table)
        here = {name: numpy.array(self.of_table(name, first)) for name in self.rows}
        found = numpy.zeros((rows + len(vector), len(vector)))
        for column, (group, key) in enumerate(self.keys):
            found[rows + column, column] = 1 / self.width(group, key)
            moved = numpy.array(vector)
            moved[column] += step
            document = self.document(moved)
            for name in self.rows:
                if group in ("shared", FAMILY_OF[name]):
                    found[spans[name], column] = (numpy.array(self.of_table(name, document)) - here[name]) / step
        for column, (group, key) in enumerate(self.keys):
            if group == "mean":
                own = [self.keys.index((family, key)) for family in FAMILIES]
                found[:rows, column] = found[:rows, own].sum(axis=1)
        return found


def model_of(name: str, document: dict) -> TimeModel:
    """The table's machine; a preset's intra-node latency is the family's step."""
    import attrs

    preset, nodes, gpus = tables.TABLES[name]
    spec = presets.resolve(preset, nodes, gpus)
    built = constants.build(document)
    step = built.family(spec.profile_of(0), spec.intra_node).step_us
    return TimeModel(attrs.evolve(spec, intra_node=attrs.evolve(spec.intra_node, latency_us=step)), constants=built)


def fit(names: list[str], document: dict) -> dict:
    from scipy.optimize import least_squares

    problem = Problem(names, neutral(document, names))
    result = least_squares(problem.residuals, problem.first, jac=problem.jacobian, loss="soft_l1", max_nfev=14)
    return problem.document(result.x)


def errors(name: str, document: dict) -> list[float]:
    model = model_of(name, document)
    return [100 * abs(tables.modelled(model, kind, size) / us - 1) for kind, size, us in tables.read(name)]


def neutral(document: dict, names: list[str]) -> dict:
    """Every family starts at the families' geometric mean, so that a table left out has left no trace; of the host's
    bridges nothing is known without a table of more than two GPUs.
    """
    found = copy.deepcopy(document)
    for key in FAMILY_KEYS:
        mean = math.exp(sum(math.log(document["families"][f][key]) for f in FAMILIES) / len(FAMILIES))
        for family in FAMILIES:
            found["families"][family][key] = mean
    if not any(FAMILY_OF[name] == "pcie" and tables.TABLES[name][2] > 2 for name in names):
        found["families"]["pcie"].update(dict.fromkeys(HOST_KEYS, UNKNOWN))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--print", action="store_true", help="print the fitted constants as YAML")
    arguments = parser.parse_args()
    start = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    document = fit(SINGLE_NODE, start)
    seen = {name: errors(name, document) for name in SINGLE_NODE}
    print(f"fitted on all: median {median(e for row in seen.values() for e in row):.1f} %")
    if arguments.print:
        print(yaml.safe_dump(document, sort_keys=False))
    if arguments.cross_validate:
        unseen = {}
        for name in SINGLE_NODE:
            unseen[name] = errors(name, fit([other for other in SINGLE_NODE if other != name], start))
            print(f"{name:<42} seen {median(seen[name]):5.1f} %, unseen {median(unseen[name]):5.1f} %", flush=True)
        related = [e for name, row in unseen.items() if name not in ALONE for e in row]
        print(f"unseen: median {median(e for row in unseen.values() for e in row):.1f} %")
        print(f"unseen, another table of that kind of machine seen: median {median(related):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
