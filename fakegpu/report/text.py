"""Short texts that every rendering of a report shares."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

MAX_DESCRIPTION = 60


def runs(ranks: Sequence[int]) -> list[list[int]]:
    """Ascending ranks as [first, last] runs."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found


def describe(ranks: Sequence[int]) -> str:
    """Ranks as text, runs shortened: 0-3, 8."""
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs(sorted(ranks)))
    return text if len(text) <= MAX_DESCRIPTION else f"{len(ranks)} ranks: {text[:48]}..."


def dumps(document: dict[str, Any]) -> str:
    """JSON that people can read and that stays small: one line per entry of a list, indented above that."""
    return _lines(document, "") + "\n"


def _lines(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values()):
        rows = [f"{inner}{json.dumps(key)}: {_lines(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + indent + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(inner + json.dumps(item) for item in value) + "\n" + indent + "]"
    return json.dumps(value)
