"""A coordinator for one job, in a thread of the launcher: address, default cluster, report and last words.

It owns a private folder (0700) for the socket and, unless the user named a place, the report; the folder goes when
nothing worth keeping is in it. Called by `fgpu`, `fgpu doctor`, `fgpu bandwidth` and the pytest plugin.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import sys
from pathlib import Path

import attrs

from fakegpu import endpoint, faults, profiles
from fakegpu.cluster import ClusterSpec, load
from fakegpu.communicator import Communicator
from fakegpu.errors import SettingsError
from fakegpu.peers import Hooks, Limits
from fakegpu.server import EXPOSED, Coordinator
from fakegpu.settings import BY_FIELD, Address, Settings


@attrs.frozen
class Summary:
    """What is left of a job: the report document (None if no rank came), where it lies, and what went wrong."""

    report: dict | None = None
    report_path: str | None = None
    failures: list[str] = attrs.field(factory=list)
    unhandled: int = 0  # communicators that some rank left failed
    failed: int = 0  # communicators that failed


def cluster_of(settings: Settings) -> ClusterSpec | None:
    """The described cluster: the file, or nodes x GPUs when both are known; else the first world defines it."""
    if settings.cluster_config:
        return load(settings.cluster_config)
    if settings.gpus_per_node:
        per_node = settings.gpus_per_node
        return ClusterSpec.default(settings.nodes or 1, per_node, node_profiles(settings, per_node))
    return None


def listed_profiles(text: str) -> list[str]:
    """One profile name per device from "a100:2,h100:2"; unknown names and wrong counts are refused."""
    names: list[str] = []
    for item in text.split(","):
        name, colon, number = item.strip().partition(":")
        if not name or (colon and not (number.isdigit() and int(number))):
            raise SettingsError(f"--devices {text}: expected NAME:COUNT items such as a100:2,h100:2")
        names += [profiles.load(name).id] * int(number or 1)
    return names


def node_profiles(settings: Settings, per_node: int) -> list[str]:
    """A profile per GPU of a node: the listed devices over and over, or the one profile."""
    names = listed_profiles(settings.profiles or settings.profile)
    return [names[index % len(names)] for index in range(per_node)]


def device_settings(settings: Settings, cluster: ClusterSpec | None) -> Settings:
    """Settings whose devices fit the cluster and the list of profiles, as far as the user did not choose them."""
    chosen = "device_count" in settings.given
    if settings.profiles:
        count = len(listed_profiles(settings.profiles))
        if chosen and settings.device_count != count:
            raise SettingsError(
                f"--device-count {settings.device_count}, but --devices {settings.profiles} lists {count}",
                "give one of the two",
            )
        return settings.override(device_count=count)
    if cluster is None:
        listed_profiles(settings.profile)
        return settings
    names = [cluster.profile_of(rank).id for rank in range(cluster.world_size)]
    if chosen and settings.device_count != len(names):
        # part of the cluster: only the kind of GPU can be told, not which
        return settings if "profile" in settings.given else settings.override(profile=names[0])
    return settings.override(device_count=len(names), profiles=",".join(f"{name}:1" for name in names))


def check_world(settings: Settings, cluster: ClusterSpec | None) -> None:
    """--nodes x --gpus-per-node must be what the cluster file says."""
    if cluster is None or not settings.cluster_config:
        return
    for name, asked, found in (
        ("--nodes", settings.nodes, cluster.node_count),
        ("--gpus-per-node", settings.gpus_per_node, cluster.world_size // cluster.node_count),
    ):
        if asked is not None and asked != found:
            raise SettingsError(
                f"{name} {asked} does not fit {settings.cluster_config}, which describes {found}",
                "leave the flag out: the cluster file says it",
            )


def check_writable(settings: Settings) -> None:
    """Every report can be written where it is wanted; said before the job and not after it."""
    for field in ("report", "markdown_report", "trace", "html"):
        wanted = getattr(settings, field)
        if not wanted:
            continue
        folder = Path(wanted).absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK) or Path(wanted).is_dir():
            raise SettingsError(
                f"{BY_FIELD[field].flag} {wanted}: cannot be written", f"is {folder} a folder you may write to?"
            )


def report_paths(settings: Settings) -> dict:
    """The coordinator's report arguments that the settings ask for."""
    names = {
        "report": settings.report,
        "markdown_report": settings.markdown_report,
        "trace": settings.trace,
        "html": settings.html,
    }
    return {name: str(Path(path).absolute()) for name, path in names.items() if path}


def coordinator_options(settings: Settings) -> dict:
    """What the settings say about a coordinator, apart from where it listens and what it describes."""
    secret = settings.secret()
    if settings.require_token and not secret:
        raise SettingsError("--require-token: there is no token", "set FAKEGPU_TOKEN, or --token-file FILE")
    if settings.tls_key and not settings.tls_cert:
        raise SettingsError(f"--tls-key {settings.tls_key}: expected --tls-cert with it", "a key alone proves nothing")
    limits = Limits(
        connections=settings.max_connections,
        ranks=settings.max_ranks,
        operation_bytes=settings.max_operation_bytes,
        buffered_bytes=settings.max_buffered_bytes,
    )
    return {
        **report_paths(settings),
        "max_operations": settings.max_operations,
        "eager_bytes": settings.eager_bytes,
        "chunk_bytes": settings.staging_chunk_bytes,
        "token": secret,
        "limits": limits,
        **({"tls": (settings.tls_cert, settings.tls_key)} if settings.tls_cert else {}),
        **({"same_host_shm": True} if settings.same_host_shm else {}),
        **({} if settings.pace == "none" else {"pace": settings.pace}),
        **({"faults": settings.faults} if settings.faults else {}),
    }


def advertised(settings: Settings) -> Settings:
    """With --advertise: TCP and a secret that only this job's ranks know; checks the name."""
    if not settings.advertise:
        return settings
    if settings.coordinator_addr:
        raise SettingsError(
            f"--advertise {settings.advertise} with --coordinator-addr {settings.coordinator_addr}: only the coordinator "
            "that fgpu starts itself can be advertised",
            "leave one of the two out",
        )
    _everywhere(settings.advertise)
    return settings.override(coordinator_transport="tcp", token=settings.secret() or secrets.token_hex(16))


def _everywhere(host: str) -> str:
    """Where to listen so that `host` reaches it: every address of the family that the name stands for."""
    try:
        family = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0][0]
    except OSError as error:
        raise SettingsError(f"--advertise {host}: {error.strerror}", "give a name or address of this host") from None
    return "[::]:0" if family == socket.AF_INET6 else "0.0.0.0:0"


class PrivateCoordinator:
    """A context: listens from `__enter__` on; `settings` are then what the ranks need; `stop` tells what happened."""

    def __init__(self, settings: Settings, cluster: ClusterSpec | None = None) -> None:
        self._asked = settings
        check_writable(settings)
        self.cluster = cluster_of(settings) if cluster is None else cluster
        check_world(settings, self.cluster)
        self._failures: list[str] = []
        self._folder = ""
        self._summary: Summary | None = None
        self._coordinator: Coordinator | None = None
        plan = faults.load(settings.faults, self.cluster) if settings.faults else ()
        self.settings = device_settings(settings, self.cluster).override(
            fault_allocations=faults.allocation_faults(plan) or settings.fault_allocations
        )

    def __enter__(self) -> PrivateCoordinator:
        if self._coordinator is None:
            self.start()
        return self

    def start(self) -> None:
        """Listen; a FakeGPUError leaves nothing behind."""
        asked = self._asked
        logging.getLogger("fakegpu").addHandler(logging.NullHandler())  # `stop` hands failures over, in order
        options = coordinator_options(asked)
        self._folder = endpoint.private_folder("coordinator")
        options.setdefault("report", str(Path(self._folder) / "report.json"))
        address = _everywhere(asked.advertise) if asked.advertise else asked.coordinator_addr
        if not address and asked.coordinator_transport == "unix":
            address = str(Path(self._folder) / "coordinator")
        hooks = Hooks(
            on_communicator=self._first_world, on_failure=lambda comm, failure: self._failures.append(failure.text)
        )
        try:
            self._coordinator = Coordinator(
                asked.coordinator_transport, address, cluster=self.cluster, hooks=hooks, **options
            ).start()
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        if self._coordinator.exposed:
            print("fakegpu: " + EXPOSED % self._coordinator.address, file=sys.stderr, flush=True)
        address = self._coordinator.address
        if asked.advertise:
            address = str(Address("tcp", host=asked.advertise.strip("[]"), port=int(address.rpartition(":")[2])))
        self.settings = self.settings.override(
            coordinator_addr=address, coordinator_transport=asked.coordinator_transport, advertise=""
        )

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    @property
    def address(self) -> Address:
        """Where ranks connect."""
        return self.settings.address()

    def _first_world(self, comm: Communicator) -> None:
        """Without a cluster file, --nodes and the GPU profiles apply to the first communicator of the whole world."""
        recorder, asked = self._coordinator.recorder, self._asked
        if recorder.cluster is not None or not asked.given & {"nodes", "profile", "profiles"}:
            return
        processes = [member.process for member in comm.members]
        if comm.nranks < max(process.world_size for process in processes):
            return
        nodes = [process.node for _, process in sorted(zip(comm.global_ranks, processes), key=lambda pair: pair[0])]
        if asked.nodes and comm.nranks % asked.nodes:
            self._failures.append(
                f"--nodes {asked.nodes}: a world of {comm.nranks} ranks does not split evenly; "
                "the report does not use it"
            )
        elif asked.nodes:
            nodes = [rank * asked.nodes // comm.nranks for rank in range(comm.nranks)]
        recorder.cluster = ClusterSpec.from_placement(nodes, node_profiles(asked, comm.nranks))

    def stop(self) -> Summary:
        """End the coordinator, write the report if any rank came, and remove what is not worth keeping."""
        if self._summary is not None:
            return self._summary
        document = self._coordinator.stop()
        status = self._coordinator.status()
        asked = report_paths(self._asked).get("report")
        came = bool(asked or document["cluster"]["communicators"] or status["failures"] or self._failures)
        path = asked or str(Path(self._folder) / "report.json")
        if asked or not came:
            shutil.rmtree(self._folder)
        self._summary = Summary(
            document if came else None,
            path if came else None,
            self._failures,
            status["unhandled_failures"],
            status["failures"],
        )
        return self._summary
