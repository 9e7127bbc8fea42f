"""libnccl.so.2's exported symbols equal data/api/nccl.yaml, and cover what the torch wheel's library exports.

Also: layouts and numbers of interposer/abi/nccl_abi.h against NCCL's own header, where a torch wheel has brought it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fakegpu.nccl_ctypes import library_path
from fakegpu.settings import data_dir

ROOT = Path(__file__).resolve().parent.parent.parent
SECTIONS = ("supported", "approximated", "refused", "refused_in_code")


def exported(library: Path) -> set[str]:
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {name for name in (line.split()[-1] for line in lines.splitlines() if line) if re.match(r"p?nccl", name)}


def manifest() -> dict:
    return yaml.safe_load((data_dir() / "api" / "nccl.yaml").read_text())


def listed() -> list[str]:
    document = manifest()
    return [call for section in SECTIONS for group in document[section] for call in group["calls"]]


def wheel() -> Path:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else []:
        if (Path(root) / "nccl" / "lib" / "libnccl.so.2").exists():
            return Path(root) / "nccl"
    pytest.skip("no torch CUDA wheel (nvidia-nccl) is installed to compare with")


def test_every_call_is_listed_once_with_a_reason_where_it_is_not_plain():
    calls = listed()
    assert len(calls) == len(set(calls))
    document = manifest()
    assert all(group.get("how") for group in document["approximated"])
    assert all(group.get("reason") for section in ("refused", "refused_in_code") for group in document[section])


def test_exported_symbols_equal_the_manifest():
    without = set(manifest()["no_profiling_name"])
    names = set(listed())
    assert exported(library_path()) == names | {f"p{name}" for name in names - without}


def test_the_wheels_symbols_are_all_there():
    assert exported(wheel() / "lib" / "libnccl.so.2") - exported(library_path()) == set()


def test_the_library_needs_nothing_but_libc_and_the_runtime():
    lines = subprocess.run(["readelf", "-d", library_path()], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", lines))
    assert needed <= {"libfakegpu_rt.so", "libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"}


PROBE = """
#include <stddef.h>
#include <stdio.h>
#include INCLUDE
#define SIZE(t) printf("sizeof " #t " %zu\\n", sizeof(t))
#define AT(t, f) printf(#t "." #f " %zu\\n", offsetof(t, f))
#define NUMBER(n) printf(#n " %lld\\n", (long long)(n))
int main(void) {
    SIZE(ncclUniqueId); SIZE(ncclConfig_t); SIZE(ncclSimInfo_t); SIZE(ncclWaitSignalDesc_t); SIZE(ncclRedOp_t);
    AT(ncclConfig_t, blocking); AT(ncclConfig_t, netName); AT(ncclConfig_t, splitShare); AT(ncclConfig_t, commName);
    AT(ncclConfig_t, graphUsageMode); AT(ncclConfig_t, graphStreamOrdering); AT(ncclSimInfo_t, estimatedTime);
    AT(ncclWaitSignalDesc_t, ctx);
    NUMBER(ncclNumResults); NUMBER(ncclTimeout); NUMBER(ncclInProgress); NUMBER(ncclAvg); NUMBER(ncclNumOps);
    NUMBER(ncclBfloat16); NUMBER(ncclFloat8e5m2); NUMBER(ncclNumTypes); NUMBER(ncclScalarHostImmediate);
    NUMBER(ncclStatGpuMemTotal); NUMBER(NCCL_VERSION_CODE); NUMBER(NCCL_SPLIT_NOCOLOR); NUMBER(NCCL_SHRINK_ABORT);
    NUMBER(NCCL_WIN_COLL_SYMMETRIC); NUMBER(NCCL_WIN_STRICT_ORDERING); NUMBER(NCCL_SUSPEND_MEM);
    NUMBER(NCCL_API_MAGIC); NUMBER(NCCL_CONFIG_UNDEF_INT);
    return 0;
}
"""


def probe(folder: Path, header: str, includes: list[Path]) -> str:
    source = folder / f"probe_{header.replace('.', '_')}.c"
    source.write_text(PROBE.replace("INCLUDE", f"<{header}>"))
    program = source.with_suffix("")
    flags = [f"-I{path}" for path in includes]
    made = subprocess.run(["gcc", "-w", *flags, source, "-o", program], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_declarations_agree_with_nccls_header(tmp_path):
    folder = wheel()
    cuda = tmp_path / "cuda"  # all that NCCL's header takes from CUDA's
    cuda.mkdir()
    (cuda / "cuda_runtime.h").write_text("#include <stdbool.h>\ntypedef void *cudaStream_t;\n")
    (cuda / "cuda_fp16.h").write_text("")
    ours = probe(tmp_path, "nccl_abi.h", [ROOT / "interposer" / "abi"])
    assert ours == probe(tmp_path, "nccl.h", [folder / "include", cuda])
