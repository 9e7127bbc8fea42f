#!/usr/bin/env python3
"""Writes the generated tables of README.md: settings from fakegpu.settings, API support from data/api.

`--check` only compares and exits 1 when a table is stale. A table stands between `<!-- table: NAME -->` and
`<!-- end -->`.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from fakegpu.settings import VARIABLES  # noqa: E402

BLOCK = re.compile(r"(<!-- table: (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
PIPE = " \\| "  # a bare bar would end the table cell
STATES = ("supported", "approximated", "refused")


def settings_table() -> str:
    lines = ["| flag | variable | default | meaning |", "| --- | --- | --- | --- |"]
    for variable in VARIABLES:
        flag = f"`{variable.flag}`" if variable.flag else ""
        default = "" if variable.default in (None, "", False, -1) else f"`{variable.default}`"
        choices = f" ({PIPE.join(variable.choices)})" if variable.choices else ""
        lines.append(f"| {flag} | `{variable.env}` | {default} | {variable.help}{choices} |")
    return "\n".join(lines) + "\n"


def api_table() -> str:
    """Per library: how many calls are in which state; the manifests list each call with its note."""
    lines = ["| manifest | calls | supported | approximated | refused |", "| --- | --- | --- | --- | --- |"]
    for path in sorted((ROOT / "data" / "api").glob("*.yaml")):
        states = Counter(entry_state(entry) for entry in entries(yaml.safe_load(path.read_text(encoding="utf-8"))))
        link = f"[{path.stem}](data/api/{path.name})"
        lines.append(f"| {link} | {sum(states.values())} | " + " | ".join(str(states[s]) for s in STATES) + " |")
    return "\n".join(lines) + "\n"


def entries(manifest: dict) -> list:
    return list(manifest["calls"].values())


def entry_state(entry: dict) -> str:
    return entry["state"]


TABLES = {"settings": settings_table, "api": api_table}


def render(text: str) -> str:
    """The document with fresh tables."""
    return BLOCK.sub(lambda m: m[1] + TABLES[m["name"]]() + m[3], text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = render(old)
    if new != old and not check:
        path.write_text(new, encoding="utf-8")
    stale = new != old and check
    print(f"README.md: {'stale, run verification/generate_docs.py' if stale else 'tables are current'}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
