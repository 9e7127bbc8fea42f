"""libdevice's functions for Triton's interpreter, which has none of them: torch's, element by element.

Only float32 and float64 exist in libdevice. A function that has no counterpart here says so when a kernel calls it.
Installed by interpreted.py.
"""

SAME_NAME = ("acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 expm1 floor fmod hypot "
             "lgamma log log10 log1p log2 pow rsqrt sin sinh sqrt tan tanh trunc").split()
OTHER_NAME = {"abs": "abs", "fabs": "abs", "rint": "round", "nearbyint": "round", "fast_expf": "exp", "fast_logf": "log",
              "fast_tanhf": "tanh", "fast_sinf": "sin", "fast_cosf": "cos", "fast_powf": "pow"}
PREDICATES = {"isnan": "isnan", "isinf": "isinf", "finitef": "isfinite", "isfinited": "isfinite", "signbit": "signbit"}


def patch(module) -> None:
    """Replace what the module (triton.language.extra.libdevice or its cuda twin) declares."""
    known = {name: name for name in SAME_NAME} | OTHER_NAME | PREDICATES
    for name, value in list(vars(module).items()):
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "").startswith("triton.language.extra"):
            target = known.get(name)
            setattr(module, name, _elementwise(name, target) if target else _refused(name))


def _refused(name: str):
    def refuse(*_arguments, **_options):
        raise NotImplementedError(f"fakegpu: libdevice's {name} does not run in Triton's interpreter; use triton.language")

    return refuse


def _elementwise(name: str, target: str):
    def compute(*arguments, **_options):
        import numpy
        import torch
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        tensors = [argument for argument in arguments if isinstance(argument, tl.tensor)]
        shaped = max(tensors, key=lambda tensor: tensor.handle.data.size)
        data = [argument.handle.data if isinstance(argument, tl.tensor) else argument for argument in arguments]
        if not all(array.dtype in (numpy.float32, numpy.float64) for array in data if isinstance(array, numpy.ndarray)):
            raise NotImplementedError(f"fakegpu: libdevice's {name} takes float32 or float64, not {shaped.dtype}")
        values = torch.broadcast_tensors(*(torch.as_tensor(array) for array in data))
        result = getattr(torch, target)(*values).numpy()
        kind = shaped.type
        if name in PREDICATES:
            result = result.astype(numpy.int32)
            kind = tl.block_type(tl.int32, kind.shape) if kind.is_block() else tl.int32
        return tl.tensor(TensorHandle(result, kind.scalar), kind)

    return compute
