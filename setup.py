"""Builds the Cython modules of fakegpu/_core and the C libraries of interposer/ (see interposer/build_native.py).

`python setup.py build_native [--only NAME]` builds just the C libraries, in place.
"""

import os
import shutil
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Command, Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "interposer"))
import build_native as native  # noqa: E402

CORE = ROOT / "fakegpu" / "_core"


def core_extensions() -> list[Extension]:
    return [
        Extension(
            f"fakegpu._core.{path.stem}",
            [str(path.relative_to(ROOT))],
            include_dirs=["fakegpu/_core/include"],
            depends=[str(p.relative_to(ROOT)) for p in (CORE / "include").glob("*.h")],
            extra_compile_args=native.compile_flags("core"),
            extra_link_args=native.link_flags(),
        )
        for path in sorted(CORE.glob("*.pyx"))
    ]


class BuildAll(build_ext):
    def run(self) -> None:
        self.parallel = self.parallel or os.cpu_count()
        super().run()
        package = ROOT / "fakegpu" if self.inplace else Path(self.build_lib) / "fakegpu"
        native.build(package / "lib", in_tree=bool(self.inplace))


class BuildPython(build_py):
    """Puts data/ into the package; an in-place or editable build reads it where it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "fakegpu" / "data"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(ROOT / "data", target)


class BuildNative(Command):
    description = "build the C libraries into fakegpu/lib"
    user_options = [("only=", None, "build this library only (rt, cudart, cuda, nvml, nccl)")]

    def initialize_options(self) -> None:
        self.only = None

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        native.build(ROOT / "fakegpu" / "lib", in_tree=True, only=self.only)


os.chdir(ROOT)
native.hold_build_lock()
setup(
    packages=find_packages(include=["fakegpu", "fakegpu.*"]),
    package_dir={"": "."},  # lets an editable install be one path instead of an import hook in every Python start
    package_data={
        "": ["*.h", "*.pxd", "*.pyi", "*.cpp", "py.typed"],
        "fakegpu._core": ["include/*.h"],
        "fakegpu.launch": ["programs/*"],
        "fakegpu.torchhost": ["hook/*.py", "kernels/*"],
    },
    ext_modules=cythonize(
        core_extensions(),
        include_path=["."],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "cdivision": True,
            "embedsignature": True,
        },
        nthreads=0,
    ),
    cmdclass={"build_ext": BuildAll, "build_py": BuildPython, "build_native": BuildNative},
)
