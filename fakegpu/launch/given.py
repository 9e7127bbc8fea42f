"""A job that uses a coordinator somebody else started: is it there, and does the job fit it?

Asks the coordinator before the command starts, so that a wrong address or world is one line and not a job's time-out,
and once afterwards: did a communicator fail? Called by fakegpu.launch.job.
"""

from __future__ import annotations

from fakegpu.control import ask_status
from fakegpu.errors import NoCoordinatorError, SettingsError
from fakegpu.launch.private import Summary, check_world, cluster_of, device_settings
from fakegpu.settings import Settings


class GivenCoordinator:
    """A running coordinator; `settings` fit it, and `summary` tells what failed there during the job."""

    def __init__(self, settings: Settings) -> None:
        if settings.faults:
            raise SettingsError(
                f"--faults {settings.faults}: the coordinator injects faults, and somebody else started it",
                "give the plan to `fakegpu coordinator --faults`",
            )
        cluster = cluster_of(settings)
        check_world(settings, cluster)
        self._address, self._token = settings.address(), settings.secret()
        self._before = ask_status(self._address, self._token)
        theirs = self._before.get("world_size")
        if cluster and theirs and cluster.world_size != theirs:
            where = settings.cluster_config or "--nodes x --gpus-per-node"
            raise SettingsError(
                f"{where} describes {cluster.world_size} ranks, the coordinator at {self._address} has {theirs}",
                "give both the same cluster file",
            )
        self.settings = device_settings(settings, cluster)

    def summary(self) -> Summary:
        """Failures since the beginning; those of other jobs count, too: a coordinator cannot tell them apart."""
        try:
            after = ask_status(self._address, self._token)
        except NoCoordinatorError:
            return Summary(failures=[f"the coordinator at {self._address} is gone"])
        unhandled, failed = (after[key] - self._before[key] for key in ("unhandled_failures", "failures"))
        texts = (
            [f"{failed} communicator failure(s) at {self._address}: see the coordinator's report"] if failed > 0 else []
        )
        return Summary(failures=texts, unhandled=max(unhandled, 0), failed=max(failed, 0))
