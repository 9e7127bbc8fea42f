"""The import layers of ARCHITECTURE.md: a module imports from lower lines or its own, and nothing goes in a circle.

Imports are read from the source, those inside functions and under TYPE_CHECKING, too; the latter are for annotations
only and may name a higher module of the same package.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fakegpu

PACKAGE = Path(fakegpu.__file__).parent
LAYERS = (
    ("errors", "dtypes", "settings"),
    ("_core",),
    ("profiles", "cluster", "topology", "timing", "collectives", "recorder", "faults"),
    ("communicator", "operations", "onesided", "wording", "diagnosis"),
    ("coordinator", "membership", "formation", "admission", "peers", "relay", "pace", "injection"),
    ("server", "eventloop", "connection", "endpoint", "report", "client", "member", "task", "control", "framesocket",
     "tls"),
    ("cli", "launch", "testing", "nccl_ctypes", "kernels", "bootstrap", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
APART = "torchhost"  # imports torch and L0 only; nothing imports it but its own hook


def modules() -> dict[str, Path]:
    """Dotted name below fakegpu: file; the package's own __init__ left out (its names are lazy)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if "lib" not in parts[:1] and parts != ("__init__",):
            found[".".join(parts)] = path
    return found


def imports(path: Path) -> list[tuple[str, bool]]:
    """(top-level part below fakegpu, for annotations only) of every fakegpu import in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for node in ast.walk(block)
    }
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            base = node.module
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "fakegpu" else [base]
        found += [(n.split(".")[1], node in typing_only) for n in names if n.startswith("fakegpu.")]
    return found


@pytest.mark.parametrize("name", modules(), ids=str)
def test_module_imports_from_lower_lines_or_its_own(name):
    own = name.split(".")[0]
    if own == APART:
        allowed = {*LAYERS[0], APART}
        assert {top for top, _ in imports(modules()[name])} <= allowed
        return
    assert own in LEVEL, f"{name}: add it to a layer in ARCHITECTURE.md and here"
    for top, typing_only in imports(modules()[name]):
        if top in ("__version__", own):
            continue
        assert top != APART, f"{name} imports {APART}"
        assert top in LEVEL, f"{name} imports fakegpu.{top}, which is in no layer"
        limit = LEVEL[own] + (1 if typing_only else 0)
        assert LEVEL[top] <= limit, f"{name} (L{LEVEL[own]}) imports fakegpu.{top} (L{LEVEL[top]})"


def test_no_circle_within_a_line():
    """Modules of one line import each other in one direction."""
    edges: dict[str, set[str]] = {}
    for name, path in modules().items():
        own = name.split(".")[0]
        edges.setdefault(own, set()).update(top for top, typing in imports(path) if top != own and not typing)
    state: dict[str, int] = {}

    def visit(node: str, trail: tuple[str, ...]) -> None:
        assert state.get(node) != 1, " -> ".join((*trail, node))
        if node not in state:
            state[node] = 1
            for target in sorted(edges.get(node, ())):
                visit(target, (*trail, node))
            state[node] = 2

    for node in sorted(edges):
        visit(node, ())


def test_import_of_the_package_loads_nothing_else():
    """The interposer imports fakegpu._core inside the user's process: the standard library and _core only."""
    import subprocess
    import sys

    code = (
        "import sys, fakegpu, fakegpu._core.capi; print([m for m in sys.modules if m.split('.')[0] in "
        "('numpy', 'attrs', 'attr', 'yaml', 'rich') or m.startswith('fakegpu.') and not m.startswith('fakegpu._core')])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
