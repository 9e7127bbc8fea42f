"""Fault plans: which faults are to be injected where, read from YAML and validated whole.

A plan says what happens (a rank crashes, a link is cut, ...) and at which operation: rank, communicator, operation,
sequence number, and how many matching ones pass first. Nothing is random, so that the same program fails in the same
place every time. injection.py acts on it; `fgpu` hands the memory faults to the ranks. Pure. Layer 2.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

import attrs

from fakegpu.cluster import ClusterSpec
from fakegpu.cluster.yamlnode import Section, load_section
from fakegpu.dtypes import KIND_LABELS
from fakegpu.errors import SettingsError

RANK_KINDS = ("fail", "crash", "stall", "delay_response", "drop_response", "corrupt", "device_error", "out_of_memory")
LINK_KINDS = ("slow_link", "cut_link")
KINDS = RANK_KINDS + LINK_KINDS
MAX_BIT = (1 << 24) - 1  # what a GO frame has room for


@attrs.frozen
class Fault:
    """One entry of a plan. What is None matches everything."""

    kind: str
    number: int = 0  # place in the plan, from 0
    rank: int | None = None  # global rank
    nodes: tuple[str, ...] = ()  # the two ends of a link
    communicator: str | None = None  # name, * and ? as in file names
    operation: str | None = None
    seqno: int | None = None
    skip: int = 0  # matching operations that pass first
    times: int = 1  # how many are hit; 0 = all that follow
    when: str = "submitted"  # crash: before the operation matched, or after
    seconds: float = 0.0  # stall, delay_response
    factor: float = 1.0  # slow_link: modelled time is stretched by it
    bit: int = 0  # corrupt: which bit of the rank's output
    allocation: int = 0  # out_of_memory: which device allocation of the rank fails, from 1

    def matches(self, comm_name: str, operation: str, seqno: int) -> bool:
        """Whether an operation of the right rank or link is one that this fault waits for."""
        return (
            (self.communicator is None or fnmatch.fnmatchcase(comm_name, self.communicator))
            and self.operation in (None, operation)
            and self.seqno in (None, seqno)
        )

    def __str__(self) -> str:
        where = f"rank {self.rank}" if self.rank is not None else f"link {' - '.join(self.nodes)}"
        extra = {
            "stall": f" for {self.seconds:g} s", "delay_response": f" by {self.seconds:g} s", "corrupt": f" bit {self.bit}",
            "slow_link": f" {self.factor:g} times", "out_of_memory": f" at allocation {self.allocation}",
        }.get(self.kind, "")  # fmt: skip
        return f"{self.kind}{extra} ({where})"


def load(path: str, cluster: ClusterSpec | None = None) -> tuple[Fault, ...]:
    """The faults of a plan file. `cluster`, where it is known, bounds ranks and names the nodes.

    ClusterError: one line with file, line, key, found and expected.
    """
    return read(load_section(path), cluster)


def read(top: Section, cluster: ClusterSpec | None = None) -> tuple[Fault, ...]:
    """The faults of a plan that is parsed already."""
    version = top.take("version", int)
    top.check(version == 1, "version", version, "1")
    found = tuple(_fault(section, number, cluster) for number, section in enumerate(top.sections("faults")))
    top.end()
    return found


def allocation_faults(faults: Iterable[Fault]) -> str:
    """RANK:ALLOCATION of the memory faults, as FAKEGPU_FAULT_ALLOCATIONS carries them to the ranks."""
    return ",".join(f"{fault.rank}:{fault.allocation}" for fault in faults if fault.kind == "out_of_memory")


def check_variables(rank: int, seqno: int, operation: str) -> None:
    """SettingsError for FAKEGPU_NCCL_FAULT_ variables that could never hit anything."""
    plain = operation.lower().removeprefix("nccl").replace("_", "")
    if operation and plain not in (label.replace("_", "") for label in KIND_LABELS):
        raise SettingsError(f"FAKEGPU_NCCL_FAULT_OPERATION={operation}: expected one of {', '.join(KIND_LABELS)}")
    if rank < 0 and (seqno >= 0 or operation):
        raise SettingsError(
            "FAKEGPU_NCCL_FAULT_SEQNO or _OPERATION is set without FAKEGPU_NCCL_FAULT_RANK", "say whose operation fails"
        )


def _fault(section: Section, number: int, cluster: ClusterSpec | None) -> Fault:
    kind = section.text("kind")
    section.check(kind in KINDS, "kind", kind, f"one of {', '.join(KINDS)}")
    values: dict = {"kind": kind, "number": number}
    if kind in LINK_KINDS:
        values["nodes"] = _nodes(section, cluster)
    else:
        values["rank"] = _bounded(section, "rank", 0, cluster.world_size - 1 if cluster else None)
    if kind == "out_of_memory":
        values["allocation"] = _bounded(section, "allocation", 1, default=1)
    else:
        values |= _operations(section)
    if kind in ("stall", "delay_response"):
        values["seconds"] = section.number("seconds")
        section.check(0 < values["seconds"] <= 86400, "seconds", values["seconds"], "more than 0, at most 86400")
    elif kind == "slow_link":
        values["factor"] = section.number("factor")
        section.check(1 < values["factor"] <= 1e6, "factor", values["factor"], "more than 1, at most 1000000")
    elif kind == "corrupt":
        values["bit"] = _bounded(section, "bit", 0, MAX_BIT, default=0)
    elif kind == "crash":
        values["when"] = section.text("when", "submitted")
        section.check(values["when"] in ("submitted", "matched"), "when", values["when"], "submitted or matched")
    section.end()
    return Fault(**values)


def _operations(section: Section) -> dict:
    operation = section.text("operation", None)
    known = ", ".join(KIND_LABELS)
    section.check(operation is None or operation in KIND_LABELS, "operation", operation, f"one of {known}")
    return {
        "communicator": section.text("communicator", None),
        "operation": operation,
        "seqno": _bounded(section, "seqno", 0, default=None),
        "skip": _bounded(section, "skip", 0, default=0),
        "times": _bounded(section, "times", 0, default=1),
    }


def _nodes(section: Section, cluster: ClusterSpec | None) -> tuple[str, ...]:
    nodes = section.take("nodes", list)
    right = len(nodes) == 2 and all(isinstance(node, str) for node in nodes) and nodes[0] != nodes[1]
    section.check(right, "nodes", nodes, "the ids of two nodes, such as [node0, node1]")
    known = [node.id for node in cluster.nodes] if cluster else nodes
    for node in nodes:
        section.check(node in known, "nodes", node, f"one of {', '.join(known[:16])}")
    return tuple(nodes)


_NEEDED = object()


def _bounded(section: Section, key: str, low: int, high: int | None = None, default=_NEEDED):
    value = section.take(key, int) if default is _NEEDED else section.take(key, int, default)
    inside = value is None or (value >= low and (high is None or value <= high))
    section.check(inside, key, value, f"{low} or more" if high is None else f"{low} to {high}")
    return value
