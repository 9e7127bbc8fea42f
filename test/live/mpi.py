"""Open MPI's and MPICH's own mpirun for tests: wheels from the package index, each in a folder of its own.

Both wheels bring a bin/mpirun, so neither can live in .venv. They are put into build/launchers once; without an index
the tests that need them are skipped with pip's reason.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 150
# mpirun refuses root and more ranks than cores unless told; the names are Open MPI's
VARIABLES = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}


def mpirun(package: str) -> str:
    """Path of `openmpi`'s or `mpich`'s mpirun; skips the test when it cannot be had."""
    folder = ROOT / "build" / "launchers"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / package / "bin" / "mpirun"
    with open(folder / f"{package}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--prefix", str(folder / package), package]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if not program.exists():
                reason = [line for line in done.stderr.splitlines() if "ERROR" in line] or [f"status {done.returncode}"]
                pytest.skip(f"no mpirun of {package}: {reason[0]}")
    return str(program)


def environment(**variables: str) -> dict[str, str]:
    """This environment without anything of a rank's or fakegpu's."""
    dropped = ("FAKEGPU_", "OMPI_", "PMI", "PMIX_", "SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    paths = [str(ROOT), str(ROOT / "test" / "programs")]
    return kept | VARIABLES | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"} | variables
