"""The hook on PYTHONPATH and the build of the kernels: one build, clear lines, harmless where there is no torch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fakegpu.torchhost import build, hook_path

# stands in for the compiler: notes each call and writes the file after -o
COMPILER = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != "-o" ]; do shift; done
: > "$2"
"""
FAKE_TORCH = "from types import SimpleNamespace\n__version__ = '9.9+{cuda}'\nversion = SimpleNamespace(cuda={cuda!r})\n"


def python(code: str, *paths: Path | str, **variables: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("FAKEGPU_", "LD_PRELOAD"))}
    environment["PYTHONPATH"] = os.pathsep.join([hook_path(), *map(str, paths)])
    return subprocess.run([sys.executable, "-c", code], env=environment | variables, capture_output=True, text=True,
                          timeout=60)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    script, log = tmp_path / "c++", tmp_path / "calls"
    script.write_text(COMPILER.format(log=log))
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("FAKEGPU_CACHE_DIR", str(tmp_path / "cache"))
    return SimpleNamespace(script=script, log=log)


@pytest.fixture
def torch_package(tmp_path):
    """As much of an installed torch as the build looks at."""
    operators = tmp_path / "site" / "torchgen" / "packaged" / "ATen" / "native" / "native_functions.yaml"
    operators.parent.mkdir(parents=True)
    operators.write_text("- func: add.Tensor(Tensor self) -> Tensor\n  device_check: NoCheck   # TensorIterator\n"
                         "- func: mm(Tensor self) -> Tensor\n")
    package = tmp_path / "site" / "torch" / "__init__.py"
    return SimpleNamespace(__version__="9.9", __file__=str(package), _C=SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True))


def test_the_hidden_sitecustomize_runs_and_is_the_module(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("MARK = 'users own'\n")
    done = python("import sitecustomize; print(sitecustomize.MARK, sitecustomize.__file__)", tmp_path)
    assert done.stdout.split("\n")[0] == f"users own {tmp_path / 'sitecustomize.py'}"


def test_a_process_without_torch_pays_for_a_finder_only():
    done = python("import sys; print(sorted({'fakegpu', 'ctypes', 'torch', 'subprocess'} & set(sys.modules)),"
                  " type(sys.meta_path[0]).__name__)")
    assert done.stdout.split() == ["[]", "_AfterImport"] and not done.stderr


@pytest.mark.parametrize("mode", ["hybrid", "passthrough"])
def test_other_modes_leave_torch_alone(mode):
    done = python("import sys; print([type(f).__name__ for f in sys.meta_path])", FAKEGPU_MODE=mode)
    assert "_AfterImport" not in done.stdout


@pytest.mark.parametrize(("cuda", "line"), [
    (None, "fakegpu: torch 9.9+None is built without CUDA, so it sees no fake GPU: pip install torch=="),
    ("13.0", "fakegpu: libcudart.so.13 of fakegpu is not loaded in this process"),
], ids=["no-cuda", "no-preload"])
def test_an_unusable_torch_is_told_in_one_line_and_imports(tmp_path, cuda, line):
    (tmp_path / "torch.py").write_text(FAKE_TORCH.format(cuda=cuda))
    done = python("import torch; print(torch.__version__, 'exec_module' in vars(torch.__loader__))", tmp_path)
    assert done.stdout.split() == [f"9.9+{cuda}", "False"]
    assert done.stderr.startswith(line) and done.stderr.count("\n") == 1


def test_looking_for_torch_or_failing_to_import_it_does_not_disarm_the_hook(tmp_path):
    failing = "import os\nif os.environ.pop('BROKEN', ''):\n    raise ImportError('first time')\n"
    (tmp_path / "torch.py").write_text(failing + FAKE_TORCH.format(cuda=None))
    done = python("import importlib.util, sys\nprint(importlib.util.find_spec('torch') is not None)\n"
                  "try:\n    import torch\nexcept ImportError as e:\n    print(e)\n"
                  "import torch; print([type(f).__name__ for f in sys.meta_path].count('_AfterImport'))",
                  tmp_path, BROKEN="1")
    assert done.stdout.splitlines() == ["True", "first time", "0"]
    assert done.stderr.count("is built without CUDA") == 1


def test_a_missing_torch_stays_an_import_error():
    done = python("import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
                  "try:\n    import torch\nexcept ModuleNotFoundError as e:\n    print(e)")
    assert done.stdout.strip() == "No module named 'torch'"


def test_parallel_ranks_build_once(compiler, torch_package, tmp_path):
    description = tmp_path / "torch.json"
    description.write_text(json.dumps({"version": torch_package.__version__, "file": torch_package.__file__}))
    code = (
        "import json, sys; from types import SimpleNamespace as N; from fakegpu.torchhost import build\n"
        f"d = json.load(open({str(description)!r}))\n"
        "t = N(__version__=d['version'], __file__=d['file'], _C=N(_GLIBCXX_USE_CXX11_ABI=True))\n"
        "print(build.ensure_built(t))"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "PYTHONPATH": str(build.ROOT)}) for _ in range(3)]
    results = [rank.communicate(timeout=60) for rank in ranks]
    paths = {out.strip() for out, _ in results}
    assert len(paths) == 1 and Path(paths.pop()).exists()
    sources = len(list(build.KERNELS.glob("*.cpp")))
    assert len(compiler.log.read_text().splitlines()) == sources + 1
    assert sum("host kernels built in" in err for _, err in results) == 1
    assert not list((tmp_path / "cache" / "torchhost").glob("build-*"))


def test_another_torch_or_compiler_gets_its_own_build(compiler, torch_package, tmp_path):
    first = build.library_path(torch_package, str(compiler.script))
    torch_package.__version__ = "9.10"
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\n")
    second = build.library_path(torch_package, str(compiler.script))
    assert len({first, second, build.library_path(torch_package, str(other))}) == 3


def test_no_compiler_is_one_line_unless_a_build_is_cached(compiler, torch_package, monkeypatch):
    built = build.ensure_built(torch_package)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert build.ensure_built(torch_package) == built
    torch_package.__version__ = "9.11"
    with pytest.raises(build.BuildError, match=r"no C\+\+ compiler: install g\+\+ \(Debian: apt-get install g\+\+\)"):
        build.ensure_built(torch_package)


def test_a_failing_compiler_leaves_a_log_and_no_library(compiler, torch_package):
    compiler.script.write_text("#!/bin/sh\necho 'boxed.cpp:1: error: no such member' >&2\nexit 1\n")
    with pytest.raises(build.BuildError, match="do not build for torch 9.9 .*error: no such member") as raised:
        build.ensure_built(torch_package)
    assert "\n" not in str(raised.value) and (build.cache_dir() / "error.log").exists()
    assert not list(build.cache_dir().glob("*/*.so"))


def test_an_unwritable_cache_is_one_line(compiler, torch_package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FAKEGPU_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(build.BuildError, match="cannot write .*; set FAKEGPU_CACHE_DIR"):
        build.ensure_built(torch_package)


def test_refusals_are_the_same_read_as_yaml():
    text = build.refusals_file().read_text()
    assert build.read_refusals(text) == yaml.safe_load(text)["refused"]


def test_device_checks_come_from_torchs_operator_file(torch_package):
    table = build.operator_table(Path(torch_package.__file__).parent)
    assert '"add.Tensor"' in table and '"mm"' not in table and '{"_cslt_compress", "' in table


def test_children_of_a_torch_process_compute_on_fake_devices(torch_environment, tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "parent.py"
    script.write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def child(rank):\n"
        "    x = torch.ones(2, device=f'cuda:{rank}') * 3\n"
        "    print(rank, x.tolist(), x.device, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(child, nprocs=2)\n")
    done = subprocess.run([sys.executable, str(script)], env=torch_environment, capture_output=True, text=True,
                          timeout=120)
    assert sorted(done.stdout.splitlines()) == ["0 [3.0, 3.0] cuda:0", "1 [3.0, 3.0] cuda:1"], done.stderr
