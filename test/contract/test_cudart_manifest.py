"""libcudart against CUDA's own: every symbol is exported and listed once in data/api/cudart.yaml, under its version;
what the manifest calls refused answers so. The layouts of abi/cudart_abi.h are compiled next to CUDA's header.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "fakegpu" / "lib" / "libcudart.so.13"
NVIDIA = pytest.importorskip("nvidia.cu13", reason="CUDA's own runtime is not installed").__path__[0]
REAL = Path(NVIDIA) / "lib" / "libcudart.so.13"
INCLUDE = Path(NVIDIA) / "include"

# the wheel's headers expect crt/host_defines.h of the compiler's package, of which they use these
HOST_DEFINES = "\n".join(
    f"#define {name}" for name in (
        "__host__", "__device__", "__device_builtin__", "__cudart_builtin__", "CUDARTAPI", "CUDARTAPI_CDECL",
        "__device_builtin_texture_type__", "__device_builtin_surface_type__", "__forceinline__", "__noinline__",
    )
) + "\n#define __builtin_align__(n) __attribute__((aligned(n)))\n#define __align__(n) __attribute__((aligned(n)))\n"

STRUCTS = [
    "cudaDeviceProp", "cudaPointerAttributes", "cudaFuncAttributes", "cudaPitchedPtr", "cudaExtent", "cudaPos",
    "cudaMemcpy3DParms", "cudaMemcpy3DPeerParms", "cudaMemLocation", "cudaMemAccessDesc", "cudaMemPoolProps",
    "cudaMemcpyAttributes", "cudaKernelNodeParams", "cudaMemsetParams", "cudaHostNodeParams", "cudaGraphNodeParams",
]
TYPEDEFS = [
    "cudaIpcMemHandle_t", "cudaIpcEventHandle_t", "cudaLaunchAttributeValue", "cudaLaunchAttribute", "cudaLaunchConfig_t",
    "cudaGraphEdgeData", "cudaGraphInstantiateParams", "cudaGraphExecUpdateResultInfo", "dim3", "cudaUUID_t",
]


def symbols(library: Path) -> dict[str, str]:
    """Exported name -> version."""
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    found = (line.split()[-1].partition("@") for line in lines.splitlines())
    return {name: version.lstrip("@") for name, _, version in found if version}


def manifest() -> dict[str, list[str]]:
    data = yaml.safe_load((ROOT / "data" / "api" / "cudart.yaml").read_text())
    grouped = {kind: [c for group in data[kind] for c in group["calls"]] for kind in ("approximated", "refused")}
    return {"supported": data["supported"], **grouped}


def test_every_symbol_of_the_real_library_is_exported() -> None:
    real, ours = symbols(REAL), symbols(LIBRARY)
    assert len(real) >= 422
    assert ours == real


def test_the_manifest_lists_every_symbol_once() -> None:
    listed = [call for calls in manifest().values() for call in calls]
    assert sorted(listed) == sorted(symbols(REAL))


def test_only_what_is_written_by_hand_is_called_supported() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "interposer" / "cudart").glob("*.c"))
    for call in manifest()["refused"]:
        assert not re.search(rf"FG_EXPORT [\w *]+\b{call}\(", sources), f"{call} is written and called refused"


def fields(source: str, name: str) -> list[str]:
    body = re.search(rf"struct {name} \{{([^}}]*)\}};", source)
    assert body, name
    return re.findall(r"(\w+)(?:\[\d+\])?\s*(?=[,;])", body[1])


def layout(tmp_path: Path, header: str, flags: list[str], probes: str) -> str:
    program = tmp_path / f"{header.replace('.', '_')}.c"
    program.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\nint main(void) {{\n{probes}}}\n')
    binary = program.with_suffix(".bin")
    subprocess.run(["gcc", "-w", *flags, str(program), "-o", str(binary)], check=True)
    return subprocess.run([binary], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_layouts_are_cudas(tmp_path: Path) -> None:
    ours = (ROOT / "interposer" / "abi" / "cudart_abi.h").read_text()
    probes = "".join(f'printf("{name} %zu\\n", sizeof({name}));\n' for name in TYPEDEFS)
    for name in STRUCTS:
        probes += f'printf("{name} %zu\\n", sizeof(struct {name}));\n'
        if name in ("cudaDeviceProp", "cudaPointerAttributes", "cudaFuncAttributes", "cudaMemcpy3DParms", "cudaMemPoolProps",
                    "cudaMemcpy3DPeerParms", "cudaMemsetParams", "cudaKernelNodeParams"):
            for field in fields(ours, name):
                probes += f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));\n'
    (tmp_path / "crt").mkdir()
    (tmp_path / "crt" / "host_defines.h").write_text(HOST_DEFINES)
    ours_out = layout(tmp_path, "cudart_abi.h", [f"-I{ROOT / 'interposer' / 'abi'}"], probes)
    theirs_out = layout(tmp_path, "cuda_runtime_api.h", [f"-I{tmp_path}", f"-I{INCLUDE}"], probes)
    assert len(ours_out.splitlines()) > 150
    assert ours_out == theirs_out
