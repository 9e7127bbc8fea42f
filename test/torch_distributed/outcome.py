"""The committed outcomes of DistributedTest (expected.yaml) and what counts as a deviation. Used by run.py.

expected.yaml holds, for each world size, the tests that pass and, for each of torch's reasons, those that it skips.
Nothing here runs a test; the file is rewritten by `run.py --write-expected` only, after a run without a failure.
"""

from collections import defaultdict
from pathlib import Path

import yaml

FILE = Path(__file__).resolve().parent / "expected.yaml"
STATES = ("passed", "failed", "skipped")
MINIMUM = {2: 147, 4: 156}  # passes of a whole run
HEADER = ("# Outcomes of PyTorch's DistributedTest, per world size: passes, and skips under torch's own reason.\n"
          "# Written by test/torch_distributed/run.py --write-expected, with torch 2.14.1.\n")


def load() -> dict:
    """The committed outcomes, {} when there are none yet."""
    return yaml.safe_load(FILE.read_text()) if FILE.exists() else {}


def names(expected: dict, world_size: int) -> list[str]:
    """All tests listed for a world size, in order."""
    listed = expected.get(world_size, {"passed": [], "skipped": {}})
    return sorted([*listed["passed"], *(name for group in listed["skipped"].values() for name in group)])


def judge(expected: dict, world_size: int, chosen: list[str], found: dict[str, dict]) -> list[str]:
    """One line for each deviation."""
    listed = expected.get(world_size, {"passed": [], "skipped": {}})
    passes = set(listed["passed"])
    reasons = {name: reason for reason, group in listed["skipped"].items() for name in group}
    problems = []
    for name in chosen:
        line = found.get(name)
        state = line["state"] if line else "not run"
        if state == "passed" and name in passes or state == "skipped" and reasons.get(name) == line["text"]:
            continue
        wanted = "pass" if name in passes else f"skip ({reasons[name]})" if name in reasons else "nothing (not listed)"
        detail = f" ({line['text']})" if state == "skipped" else ""
        problems.append(f"world size {world_size}: {name}: {state}{detail}, expected {wanted}")
    if set(chosen) >= passes and not problems:
        count = sum(line["state"] == "passed" for line in found.values())
        if count < MINIMUM[world_size]:
            problems.append(f"world size {world_size}: {count} passes, at least {MINIMUM[world_size]} are required")
    return problems


def write(everything: dict[str, dict]) -> int:
    """Rewrite expected.yaml from complete results; refuses while anything failed."""
    failed = [name for found in everything.values() for name, line in found.items() if line["state"] == "failed"]
    if failed:
        print(f"expected.yaml is not written: {len(failed)} tests failed: {' '.join(sorted(failed))}")
        return 1
    document = load()
    for world_size, found in everything.items():
        skipped = defaultdict(list)
        for name, line in sorted(found.items()):
            if line["state"] == "skipped":
                skipped[line["text"]].append(name)
        passed = sorted(name for name, line in found.items() if line["state"] == "passed")
        document[int(world_size)] = {"passed": passed, "skipped": dict(skipped)}
    FILE.write_text(HEADER + yaml.safe_dump(document, width=110))
    return 0
