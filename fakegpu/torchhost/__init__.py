"""Host kernels for torch: CUDA operators run as CPU kernels on the memory of fake devices.

Owns the C++ kernels, their build, and the hook that installs them right after `import torch`. Runs inside user
processes: imports the standard library and torch only, and torch only inside loader and operators.
`fakegpu.launch` asks for hook_path(); nobody else imports this package.
"""

from pathlib import Path


def hook_path() -> str:
    """The directory that belongs on PYTHONPATH of a process whose torch should compute on fake devices."""
    return str(Path(__file__).resolve().parent / "hook")
