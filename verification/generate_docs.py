#!/usr/bin/env python3
"""Writes the generated tables of README.md: settings from fakegpu.settings, API support from data/api.

`--check` only compares and exits 1 when a table is stale. A table stands between `<!-- table: NAME -->` and
`<!-- end -->`.
"""

import argparse
import re
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from fakegpu.cli import subcommands  # noqa: E402
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


def manifests() -> list[tuple[str, dict]]:
    """Name and contents of every manifest of data/api."""
    files = sorted((ROOT / "data" / "api").glob("*.yaml"))
    return [(path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))) for path in files]


def names(section: list | dict | None) -> list[str]:
    """The calls of one section: names, name -> reason, or entries with a list `calls`."""
    if isinstance(section, dict):
        return list(section)
    found: list[str] = []
    for entry in section or []:
        found += [entry] if isinstance(entry, str) else entry["calls"]
    return found


def api_table() -> str:
    """Per library: how many calls are in which state; the manifests list each call with its reason."""
    lines = [f"| manifest | {' | '.join(STATES)} |", "| --- | --- | --- | --- |"]
    for name, manifest in manifests():
        counts = [len(names(manifest.get(state))) for state in STATES]
        label = f"[{name}](data/api/{name}.yaml)"
        lines.append(f"| {label} | " + " | ".join(str(count or "") for count in counts) + " |")
    return "\n".join(lines) + "\n"


def nccl_table() -> str:
    """NCCL's calls by state, with how or why."""
    manifest = dict(manifests())["nccl"]
    lines = ["| state | calls | how, or why not |", "| --- | --- | --- |"]
    for state in STATES:
        for entry in manifest[state]:
            calls = ", ".join(f"`{call}`" for call in entry["calls"])
            lines.append(f"| {state} | {calls} | {entry.get('how') or entry.get('why') or entry.get('reason') or ''} |")
    return "\n".join(lines) + "\n"


def operator_table() -> str:
    """Checks of PyTorch's operator database per dtype and outcome."""
    manifest = yaml.safe_load((ROOT / "data" / "torch_opdb.yaml").read_text(encoding="utf-8"))
    outcomes = ("agree", "agree (random)", "refused", "not on CUDA", "no CPU reference")
    lines = [f"| dtype | {' | '.join(outcomes)} |", "| --- |" + " --- |" * len(outcomes)]
    for dtype, row in manifest["checks"].items():
        lines.append(f"| {dtype} | " + " | ".join(str(row.get(outcome, "")) for outcome in outcomes) + " |")
    return "\n".join(lines) + "\n"


def command_table() -> str:
    """Every subcommand with its help line."""
    lines = ["| command | what |", "| --- | --- |", "| `fgpu [flags] COMMAND ...` | run COMMAND on fake GPUs |"]
    for name, module in subcommands().items():
        if name != "run":
            text = (import_module(module).__doc__ or "").strip().splitlines()[0]
            lines.append(f"| `fgpu {name}` | {text} |")
    return "\n".join(lines) + "\n"


TABLES = {"commands": command_table, "settings": settings_table, "api": api_table, "nccl": nccl_table, "operators": operator_table}


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
