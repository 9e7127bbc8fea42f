"""A job that uses a coordinator somebody else started: is it there, and does the job fit it?

Asks the coordinator once, before the command starts, so that a wrong address or world is one line and not a job's
time-out. Called by fakegpu.launch.job.
"""

from __future__ import annotations

from fakegpu.errors import SettingsError
from fakegpu.launch.private import check_world, cluster_of, device_settings
from fakegpu.settings import Settings


def prepare(settings: Settings) -> Settings:
    """Settings whose devices fit the described cluster; NoCoordinatorError, AuthError or SettingsError otherwise."""
    from fakegpu.control import ask_status

    cluster = cluster_of(settings)
    check_world(settings, cluster)
    status = ask_status(settings.address(), settings.secret())
    theirs = status.get("world_size")
    if cluster and theirs and cluster.world_size != theirs:
        where = settings.cluster_config or "--nodes x --gpus-per-node"
        raise SettingsError(
            f"{where} describes {cluster.world_size} ranks, the coordinator at {settings.address()} has {theirs}",
            "give both the same cluster file",
        )
    return device_settings(settings, cluster)
