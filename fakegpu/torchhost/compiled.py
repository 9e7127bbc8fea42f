"""torch.compile on fake devices: dynamo and every backend without device code work as they are, inductor runs eagerly.

Inductor's CUDA code is Triton's, which has no device to run on. A traced graph that touches a CUDA tensor runs as
backend="eager" runs it; a graph of CPU tensors is compiled as usual. Ahead-of-time compilation for CUDA is refused.
Installed by loader.py; patches entry points of torch, none of which a program needs to know.
"""

from fakegpu.torchhost.notice import say_once

NOTICE = ("torch.compile: what inductor would compile for a GPU runs eagerly on fake devices, with the same numbers "
          "(graphs are still traced; TORCHDYNAMO_DISABLE=1 skips that)")
REFUSED = "fakegpu: ahead-of-time compilation for CUDA makes device code, which does not run on a fake device"


def install(torch, after_import) -> None:
    """Patch torch.compile's inductor wrapper now, and torch._inductor.compile_fx when it is imported."""
    wrapper = torch._TorchCompileInductorWrapper
    compiled = wrapper.__call__

    def call(self, model_, inputs_, **kwargs):
        return _eager(model_) if _on_cuda(model_, inputs_) else compiled(self, model_, inputs_, **kwargs)

    wrapper.__call__ = call
    after_import("torch._inductor.compile_fx", _patch_compile_fx)
    after_import("torch.fx.passes.regional_inductor", _patch_regions)
    after_import("torch._higher_order_ops.flex_attention", _patch_flex_attention)


def _patch_compile_fx(module) -> None:
    compile_fx, compile_fx_aot = module.compile_fx, module.compile_fx_aot

    def eager_or_compile(model_, example_inputs_, *args, **kwargs):
        if _on_cuda(model_, example_inputs_):
            return _eager(model_)
        return compile_fx(model_, example_inputs_, *args, **kwargs)

    def refuse_or_compile(model_, example_inputs_, *args, **kwargs):
        if _on_cuda(model_, example_inputs_):
            raise NotImplementedError(REFUSED)
        return compile_fx_aot(model_, example_inputs_, *args, **kwargs)

    module.compile_fx, module.compile_fx_aot = eager_or_compile, refuse_or_compile


def _patch_regions(module) -> None:
    """A region that is marked for inductor stays a submodule of its graph."""
    compile_region = module._compile_submod

    def eager_or_compile(gm, prefix):
        if not _on_cuda(gm, ()):
            return compile_region(gm, prefix)
        say_once(NOTICE)
        return gm

    module._compile_submod = eager_or_compile


def _patch_flex_attention(module) -> None:
    """FlexAttention's eager form makes its constants on the host; a stream that captures takes no such copy."""
    import torch

    class Torch:
        def __getattr__(self, name):
            return getattr(torch, name)

        @staticmethod
        def tensor(value, dtype=None, device=None):
            return torch.full((), value, dtype=dtype, device=device)

    module.torch = Torch()


def _eager(model):
    """What backend="eager" makes of a traced graph."""
    say_once(NOTICE)
    return model.forward


def _on_cuda(model, inputs) -> bool:
    """True if an input, a parameter, or a value computed anywhere in the graph is on a CUDA device."""
    import torch
    from torch.utils._pytree import tree_leaves

    def cuda(leaf) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.device.type == "cuda"

    if any(map(cuda, tree_leaves(list(inputs)))):
        return True
    if not isinstance(model, torch.nn.Module):
        return False
    if any(map(cuda, model.parameters())) or any(map(cuda, model.buffers())):
        return True
    graphs = [module.graph for module in model.modules() if isinstance(module, torch.fx.GraphModule)]
    values = (node.meta.get("example_value", node.meta.get("val")) for graph in graphs for node in graph.nodes)
    return any(cuda(leaf) for value in values for leaf in tree_leaves(value))
