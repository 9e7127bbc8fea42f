"""fakegpu: multi-GPU programs on machines without GPUs.

Public names are loaded on first use, so that importing a part of the package inside a user's process (the
interposer imports fakegpu._core) pulls in nothing else.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "Coordinator": "fakegpu.server",
    "connect": "fakegpu.client",
    "register_kernel": "fakegpu.kernels",
    "FakeGPUError": "fakegpu.errors",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'fakegpu' has no attribute {name!r}")
