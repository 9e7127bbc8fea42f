"""NCCL_ALGO and NCCL_PROTO: which algorithms and protocols may be chosen.

NCCL's grammar: names with commas, ^ excludes, `allreduce:tree;broadcast:ring` restricts one collective.
"""

from __future__ import annotations

import attrs

from fakegpu.errors import SettingsError
from fakegpu.timing.onenode import Candidate

ALGORITHMS = ("tree", "ring", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
_FUNCTIONS = {
    "broadcast": "broadcast", "reduce": "reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
}


@attrs.frozen
class Restriction:
    """Allowed names per collective; a collective that is not there uses the entry ""."""

    algorithms: dict[str, frozenset[str]] = attrs.Factory(dict)
    protocols: dict[str, frozenset[str]] = attrs.Factory(dict)
    strict: bool = False  # an error where nothing is left, as in NCCL; else such a collective is unrestricted

    @classmethod
    def parse(cls, algorithm: str | None = None, protocol: str | None = None, strict: bool = False) -> Restriction:
        return cls(_parse("NCCL_ALGO", algorithm, ALGORITHMS), _parse("NCCL_PROTO", protocol, PROTOCOLS), strict)

    def apply(self, candidates: list[Candidate], kind: str) -> list[Candidate]:
        """The candidates that are allowed."""
        allowed = [
            c
            for c in candidates
            if _allows(self.algorithms, kind, c.algorithm) and _allows(self.protocols, kind, c.protocol.lower())
        ]
        if allowed or not self.strict:
            return allowed or candidates
        if candidates:
            offered = ", ".join(sorted({f"{c.algorithm}/{c.protocol}" for c in candidates}))
            raise SettingsError(
                f"NCCL_ALGO/NCCL_PROTO leave no algorithm for {kind}: expected one of {offered}",
                hint="loosen the restriction or name the collective it is meant for (allreduce:tree)",
            )
        return allowed


def _allows(table: dict[str, frozenset[str]], kind: str, name: str) -> bool:
    names = table.get(kind, table.get(""))
    if names is None:
        return True
    return name in names or (name == "collnet" and any(n.startswith("collnet") for n in names))


def _parse(variable: str, text: str | None, known: tuple[str, ...]) -> dict[str, frozenset[str]]:
    if not text:
        return {}
    table = {}
    for part in text.split(";"):
        function, colon, names = part.strip().rpartition(":")
        kind = ""
        if colon:
            kind = _FUNCTIONS.get(function.strip().lower(), "")
            if not kind:
                raise SettingsError(f"{variable}={text}: found {function!r}, expected one of {', '.join(_FUNCTIONS)}")
        exclude = names.startswith("^")
        listed = {name.strip().lower() for name in names.lstrip("^").split(",")}
        unknown = sorted(listed - set(known))
        if unknown:
            raise SettingsError(f"{variable}={text}: found {unknown[0]!r}, expected one of {', '.join(known)}")
        table[kind] = frozenset(set(known) - listed if exclude else listed)
    return table
