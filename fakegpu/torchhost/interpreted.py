"""Triton kernels of a program's own on fake devices: they run in Triton's interpreter (TRITON_INTERPRET=1, from fgpu).

The interpreter computes with numpy, slowly and right, but torch's tracers do not know it. Here a traced launch becomes
a graph break, a launch on fake tensors writes nothing, an operator made of kernels is opaque, and autotuning takes the
first configuration, since times mean nothing here. Installed by loader.py.
"""

import functools
import os

from fakegpu.torchhost import libdevice
from fakegpu.torchhost.notice import say_once

NOTICE = "Triton kernels run in Triton's interpreter on fake devices: right, and slow"
TRACED = ("fakegpu: a Triton kernel is traced into a graph that cannot hold an interpreted launch; "
          "make it a torch.library.custom_op or triton_op")


def install(torch, after_import) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    torch.library.triton_op = _opaque_triton_op
    torch.library.wrap_triton = lambda kernel: kernel  # a plain launch, inside an operator that nobody looks into
    after_import("triton.runtime.interpreter", _patch_interpreter)
    after_import("triton", _patch_autotune)
    for name in ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice"):
        after_import(name, libdevice.patch)


def _opaque_triton_op(name, fn=None, /, *, mutates_args, schema=None):
    """torch.library.triton_op without its decomposition, which would look for compiled kernels."""
    from torch.library import custom_op

    def define(function):
        operator = custom_op(name, function, mutates_args=mutates_args, schema=schema)
        operator.register_fake(function)
        return operator

    return define if fn is None else define(fn)


def _patch_interpreter(module) -> None:
    import torch

    launch = module.GridExecutor.__call__

    def launch_unless_fake(self, *args, **kwargs):
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.functional_tensor import FunctionalTensor
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        values = [*args, *kwargs.values()]
        if any(isinstance(value, FunctionalTensor) for value in values) or get_proxy_mode() is not None:
            raise NotImplementedError(TRACED)
        if any(isinstance(value, FakeTensor) for value in values):
            return None
        say_once(NOTICE)
        return launch(self, *args, **kwargs)

    convert = module._implicit_cvt

    def convert_floats_too(argument):
        """A number that a compiled kernel gets as a float32 value has that value's methods here, too."""
        if not isinstance(argument, float):
            return convert(argument)
        handle = module.TensorHandle(module.np.array([argument], dtype=module.np.float32), module.tl.float32)
        return module.tl.tensor(handle, module.tl.float32)

    module._implicit_cvt = convert_floats_too
    module.GridExecutor.__call__ = launch_unless_fake
    function = module.InterpretedFunction
    function.run = _not_traced(torch, function.run)


def _not_traced(torch, run):
    """`run` behind torch._dynamo.disable, which is imported only when something traces."""

    @functools.wraps(run)
    def plain(*args, **kwargs):
        return run(*args, **kwargs)

    return torch._disable_dynamo(plain)


def _patch_autotune(module) -> None:
    import torch
    from triton.runtime import autotuner

    autotune = autotuner.autotune

    class FirstConfiguration:
        """An autotuner that has one configuration; not of Triton's class, which tracers look into."""

        def __init__(self, tuner):
            tuner.configs = tuner.configs[:1]
            self.tuner = tuner
            self.run = _not_traced(torch, tuner.run)

        def __getitem__(self, grid):
            return functools.partial(self.run, grid=grid, warmup=False)

        def __getattr__(self, name):
            return getattr(self.tuner, name)

    def autotune_interpreted(*args, **kwargs):
        decorate = autotune(*args, **kwargs)
        return lambda fn: FirstConfiguration(decorate(fn))

    for holder in (autotuner, module.runtime, module):
        holder.autotune = autotune_interpreted
