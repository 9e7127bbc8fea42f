"""PyTorch's in-wheel DistributedTest as a test class, the way torch's own test_distributed_spawn.py declares it.

BACKEND, WORLD_SIZE and TEMP_DIR must be in the environment before this module is imported, also in the children that
torch starts: its decorators read them. Nothing of torch is replaced. Imported by worker.py and by every child.
"""

import os
from collections.abc import Callable

import torch.multiprocessing
from torch.testing._internal.distributed import distributed_test


def _with_environment(variables: dict[str, str], target: Callable, *arguments: object, **options: object) -> None:
    """A child of the fork server: it has the server's environment, not that of the test."""
    os.environ.update(variables)
    target(*arguments, **options)


class TestDistBackendWithSpawn(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    """Each test starts WORLD_SIZE processes; START_METHOD=forkserver forks them from one that has imported torch."""

    def setUp(self) -> None:
        super().setUp()
        if os.environ.get("START_METHOD") == "forkserver":
            self._start_processes(self._fork_server_process)
        else:
            self._spawn_processes()

    @staticmethod
    def _fork_server_process(target: Callable, name: str, args: tuple, kwargs: dict) -> torch.multiprocessing.Process:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        return context.Process(target=_with_environment, name=name, args=(dict(os.environ), target, *args), kwargs=kwargs)
