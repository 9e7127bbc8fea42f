"""CUDA-only operators written with ordinary torch operators. Registered by loader.py, after the C++ kernels."""


def install() -> None:
    return None
