"""The documents: generated tables are current, named files exist, every flag and suite is written down."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def test_generated_tables_are_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "verification" / "generate_docs.py", "--check"], capture_output=True,
                          text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DOCUMENTS)
def test_named_files_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"(?:fakegpu|test|verification|interposer|data)/[\w./-]+\.(?:py|sh|yaml|json|c|h|pyx|md)\b", text)
    missing = [path for path in named if not list(ROOT.glob(path))]
    assert not missing


def test_every_suite_of_ftest_names_files_that_exist() -> None:
    sys.path.insert(0, str(ROOT / "test"))
    try:
        from suites import SUITES
    finally:
        sys.path.pop(0)
    for suite, (_, commands) in SUITES.items():
        for command in commands:
            paths = [word for word in command[1:] if word.startswith(("test", "verification"))]
            assert paths and all((ROOT / path).exists() for path in paths), suite


def test_subcommands_have_help_and_are_in_the_readme() -> None:
    from fakegpu.cli import subcommands

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in subcommands():
        assert name in readme, f"README.md does not mention the subcommand {name}"
