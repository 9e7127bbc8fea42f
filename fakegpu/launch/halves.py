"""Which node of a described cluster this launch is, when a job is started once per node: its GPUs are that node's.

The launcher above says it (mpirun, srun), or the command itself does (torchrun --node-rank 1). Where nobody says it and
the nodes' GPUs differ, a number of devices that is no whole cluster is refused: the wrong GPU would be silently wrong.
Called by fakegpu.launch.job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fakegpu.cluster import ClusterSpec, load
from fakegpu.errors import SettingsError
from fakegpu.settings import Settings, launched_ranks


def fit_node(command: Sequence[str], settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Settings with the devices of this launch's node; unchanged where the user chose the GPUs."""
    if not settings.cluster_config or settings.profiles or "profile" in settings.given:
        return settings
    cluster = load(settings.cluster_config)
    chosen = settings.device_count if "device_count" in settings.given else None
    index = _node_above(cluster, environ)
    index = _node_in_command(command) if index is None else index
    if index is None or chosen == cluster.world_size:
        mixed = len({profile for node in cluster.nodes for profile in node.gpus}) > 1
        part = f"--device-count {chosen}" if chosen is not None and chosen < cluster.world_size else ""
        if mixed and chosen is None and index is None and _several_nodes(command):
            part = "torchrun --nnodes without --node-rank"
        if mixed and part:
            raise SettingsError(
                f"{part} is a part of {settings.cluster_config}, whose GPUs differ, and nothing says which part",
                f"give --devices, such as {cluster.nodes[-1].gpus[0]}:{chosen or len(cluster.nodes[-1].gpus)}, or "
                "torchrun's --node-rank",
            )
        return settings
    if not 0 <= index < cluster.node_count:
        raise SettingsError(
            f"node {index} of the launch: {settings.cluster_config} describes {cluster.node_count} nodes, from 0 on"
        )
    gpus = cluster.nodes[index].gpus
    if chosen is not None and chosen > len(gpus):
        raise SettingsError(
            f"--device-count {chosen}, but node {cluster.nodes[index].id!r} of {settings.cluster_config} has {len(gpus)}"
        )
    return settings.override(profiles=",".join(f"{name}:1" for name in gpus[:chosen]))


def _node_above(cluster: ClusterSpec, environ: Mapping[str, str]) -> int | None:
    """A rank of a launcher that started as many ranks here as its node has: not one that has all ranks on one host."""
    found = launched_ranks(environ)
    if found is None or cluster.node_count == 1:
        return None
    ranks = found[1]
    index = cluster.node_index(ranks.rank)
    whole = ranks.local_world_size == len(cluster.nodes[index].ranks)
    return index if whole or ranks.node > 0 else None


def _node_in_command(command: Sequence[str]) -> int | None:
    """torchrun's own --node-rank, with more than one node."""
    rank = _option(command, "node-rank")
    return int(rank) if _several_nodes(command) and rank.isdigit() else None


def _several_nodes(command: Sequence[str]) -> bool:
    torchrun = Path(command[0]).name == "torchrun" or "torch.distributed.run" in command[:4]
    return torchrun and _option(command, "nnodes") not in ("", "1")


def _option(command: Sequence[str], name: str) -> str:
    """The value of --name VALUE or --name=VALUE, dashes inside a name also as underscores."""
    for index, word in enumerate(command):
        flag, equals, value = word.partition("=")
        if flag.startswith("--") and flag[2:].replace("_", "-") == name:
            return value if equals else command[index + 1] if index + 1 < len(command) else ""
    return ""
