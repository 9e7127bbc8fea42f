"""A recording stand-in for the real libnccl: C made from the manifest, which notes every call and its arguments.

It is no NCCL: every call answers what it was told and writes its name and integer arguments to the file RECORD.
"""

import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = 6

HEAD = """
#include <stdio.h>
#include <stdlib.h>
static int note(const char *name, long a, long b, long c, long d, long e, long f) {
    FILE *file = fopen(getenv("RECORD"), "a");
    fprintf(file, "%s %ld %ld %ld %ld %ld %ld\\n", name, a, b, c, d, e, f);
    fclose(file);
    return 77;
}
#define CALL(name) int name(long a, long b, long c, long d, long e, long f) { return note(#name, a, b, c, d, e, f); }
"""


def calls() -> list[str]:
    """Every call that the manifest lists, whatever its state."""
    manifest = yaml.safe_load((ROOT / "data" / "api" / "nccl.yaml").read_text(encoding="utf-8"))
    groups = [group for state in ("supported", "approximated", "refused", "refused_in_code") for group in manifest[state]]
    plain = [call for group in groups for call in group["calls"]]
    return plain + [f"p{call}" for call in plain if call not in manifest["no_profiling_name"]]


def build(folder: Path, names: list[str]) -> Path:
    """The stand-in as folder/libnccl.so.2."""
    source, library = folder / "recorder.c", folder / "libnccl.so.2"
    source.write_text(HEAD + "".join(f"CALL({name})\n" for name in names), encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", str(source), "-o", str(library)], check=True)
    return library
