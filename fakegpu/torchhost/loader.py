"""Puts the host kernels into a process that has just imported torch. Called by the hook, once; must not raise.

Order: checks (a CUDA build of torch, our runtime in the process), the C++ kernels, the operators written in Python,
then what replaces device code: torch.compile's inductor and Triton.
"""

import ctypes
import time

from fakegpu.torchhost.notice import say

operator_count = 0  # kernels installed in this process
install_seconds = 0.0  # what installing them took, a build apart


def runtime_present() -> bool:
    return hasattr(ctypes.CDLL(None), "fg_rt_stream_drain")


def install(after_import) -> None:
    """Install everything, or say in one line why this process computes without it.

    after_import(name, action) runs action(module) once the module of that name has been imported.
    """
    global operator_count, install_seconds
    import torch

    from fakegpu.torchhost import build, compiled, interpreted

    if torch.version.cuda is None:
        say(f"torch {torch.__version__} is built without CUDA, so it sees no fake GPU: "
             f"pip install torch=={build.TESTED} from PyPI, whose Linux wheels have it")
        return
    if not runtime_present():
        say("libcudart.so.13 of fakegpu is not loaded in this process (LD_PRELOAD was changed?): start it below fgpu")
        return
    try:
        library = build.ensure_built(torch)
        started = time.perf_counter()
        operator_count = _load(str(library))
        from fakegpu.torchhost import operators

        operators.install()
        _refuse_jiterator(torch)
        torch._C._jit_override_can_fuse_on_gpu(False)  # TorchScript would compile device code at a function's second call
        compiled.install(torch, after_import)
        interpreted.install(torch, after_import)
        install_seconds = time.perf_counter() - started
    except build.BuildError as error:
        say(str(error))


def _load(path: str) -> int:
    """Number of operators registered by the library's install function."""
    from fakegpu.torchhost.build import BuildError

    library = ctypes.PyDLL(path)  # keeps the GIL: registration touches torch's Python state
    library.fakegpu_torchhost_error.restype = ctypes.c_char_p
    count = library.fakegpu_torchhost_install()
    if count < 0:
        raise BuildError(f"the host kernels did not load: {library.fakegpu_torchhost_error().decode()}")
    return count


def _refuse_jiterator(torch) -> None:
    """CUDA source given as text has no host counterpart."""

    def refuse(*_args, **_kwargs):
        raise NotImplementedError("fakegpu: torch.cuda.jiterator does not run on a fake device: it compiles CUDA "
                                  "source; use torch operators")

    torch._C._cuda_jiterator_compile_and_launch_kernel = refuse
