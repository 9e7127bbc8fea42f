"""Triton kernels of a program's own on fake devices: they run in Triton's interpreter (TRITON_INTERPRET=1, from fgpu).

The interpreter computes with numpy, slowly and right, but torch's tracers do not know it. Here a traced launch becomes
a graph break, a launch on fake tensors writes nothing, an operator made of kernels is opaque, and autotuning takes the
first configuration, since times mean nothing here. Installed by loader.py.
"""

import functools
import os

TRACED = ("fakegpu: a Triton kernel is traced into a graph that cannot hold an interpreted launch; "
          "make it a torch.library.custom_op or triton_op")


def install(torch, after_import) -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    torch.library.triton_op = _opaque_triton_op
    torch.library.wrap_triton = lambda kernel: kernel  # a plain launch, inside an operator that nobody looks into
    after_import("triton.runtime.interpreter", _patch_interpreter)
    after_import("triton", _patch_autotune)


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
        return None if any(isinstance(value, FakeTensor) for value in values) else launch(self, *args, **kwargs)

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
