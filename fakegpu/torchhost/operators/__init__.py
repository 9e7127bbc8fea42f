"""CUDA-only operators composed of ordinary torch operators. Registered by loader.py, after the C++ kernels.

Each module names its operators in a table OPERATORS {schema name: function}; the functions run below autograd.
"""

import warnings

_libraries = []  # a Library's registrations end with it


def install() -> None:
    import torch

    from fakegpu.torchhost.operators import attention, dropout, linalg, matmul, reductions, sync_batch_norm

    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in (attention, dropout, linalg, matmul, reductions, sync_batch_norm):
            for name, function in module.OPERATORS.items():
                library.impl(name, function, "CUDA", allow_override=True)
