"""Operators, memory, random numbers and training on one fake device; the cases are in cases/ (see conftest.py)."""

import ast
from pathlib import Path

import pytest

pytest.importorskip("torch")
CASES = Path(__file__).resolve().parent / "cases"


def _names() -> list[tuple[str, str]]:
    found = []
    for file in sorted(CASES.glob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("case_"):
                found.append((file.name, node.name))
    return found


@pytest.mark.parametrize(("file", "case"), _names(), ids=lambda value: value.removesuffix(".py").removeprefix("case_"))
def test_case(case_results, file, case):
    failure = case_results(file)[case]
    assert not failure, failure
