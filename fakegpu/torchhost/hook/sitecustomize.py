"""Installs fakegpu's host kernels right after `import torch` in every Python process below fgpu.

Found by the interpreter through PYTHONPATH, so it runs in torchrun's and multiprocessing's children too. It must cost
a process without torch nothing and never break one: it only leaves a finder that waits for the name "torch", and
then hands over to the sitecustomize that it hides.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class _AfterImport:
    """Meta path finder for one name: the module's own loader runs, then the action, with the module.

    It stays until that has happened: programs ask find_spec("torch") before they import it, and imports fail.
    """

    def __init__(self, name, action):
        self.name, self.action = name, action

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if spec.loader is not None:
                    self.run_after(spec.loader)
                return spec
        return None

    def run_after(self, loader):
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action(module)

        loader.exec_module = exec_module


def after_import(name, action):
    """Run action(module) right after the module of that name is imported; now, if it is there already."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, action))


def _install(_torch):
    package_parent = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
    sys.path.insert(0, package_parent)
    try:
        from fakegpu.torchhost import loader
    finally:
        sys.path.remove(package_parent)
    loader.install(after_import)


def _run_hidden_sitecustomize():
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("FAKEGPU_MODE", "simulate") == "simulate" and "torch" not in sys.modules:
    after_import("torch", _install)
_run_hidden_sitecustomize()
