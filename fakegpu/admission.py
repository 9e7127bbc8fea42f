"""Handlers of the frames that are about a process, not a communicator: HELLO, AUTH, BYE, and the tools' requests.

Each takes (registry, process, frame, body, now). A StatusError raised here is sent to the peer, and its connection
ends. Layer 4.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import TYPE_CHECKING

from fakegpu._core import wire
from fakegpu.cluster import HOST_LABELS
from fakegpu.dtypes import KIND_LABELS, POINT_TO_POINT, SIZES, Kind
from fakegpu.errors import Status, error_for
from fakegpu.formation import carry_out
from fakegpu.peers import Process, reply
from fakegpu.recorder import InjectedFault
from fakegpu.timing import Operation, TimeModel, estimate_group

if TYPE_CHECKING:
    from fakegpu.coordinator import Registry

_MS = 1_000_000
_NO_TIMEOUT_MS = 0xFFFFFFFF


def allowed_early(registry: Registry, process: Process, kind: int) -> bool:
    """Whether a frame may come before HELLO and AUTH are over."""
    if kind == wire.T_PING:
        return True
    if process.state == "challenged":
        return kind == wire.T_AUTH
    return kind == wire.T_HELLO or (not registry.token and kind in (wire.T_STATUS, wire.T_SHUTDOWN, wire.T_BYE))


def hello(registry: Registry, process: Process, frame, body, now: int) -> None:
    if process.state != "new":
        raise error_for(Status.PROTOCOL, "HELLO: sent twice")
    if body.version_major != wire.WIRE_VERSION_MAJOR:
        ours = f"{wire.WIRE_VERSION_MAJOR}.{wire.WIRE_VERSION_MINOR}"
        text = f"protocol version {body.version_major}.{body.version_minor}, expected {ours}"
        raise error_for(Status.VERSION, text)
    process.introduce(body, (body.timeout_ms or _NO_TIMEOUT_MS) * _MS)
    if body.role == wire.ROLE_RANK:
        if process.node < 0:  # its launcher does not number nodes: each host is one
            process.node = registry.hosts.setdefault(process.host, HOST_LABELS + len(registry.hosts))
        _check_world(registry, body)
    if registry.token:
        process.state, process.challenge = "challenged", secrets.token_bytes(32)
    else:
        _welcome_in(registry, process)
    process.send(
        wire.encode_welcome(
            request=frame.request,
            features=(wire.FEATURE_SHM if registry.shared else 0) | (wire.FEATURE_TOKEN if registry.token else 0),
            job=registry.job,
            chunk_bytes=registry.chunk_bytes,
            window=registry.window,
            max_payload_frame=wire.MAX_DATA_BYTES,
            eager_bytes=registry.eager_bytes,
            world_size=registry.world_size,
            challenge=process.challenge or bytes(32),
        )
    )


def _check_world(registry: Registry, body) -> None:
    size = registry.world_size
    if not size:
        return
    if body.world_size >= 0 and body.world_size != size:
        text = f"world size {body.world_size} does not fit {registry.cluster_name}, which lists {size} ranks"
        raise error_for(Status.WORLD, text)
    if body.rank >= size:
        text = f"rank {body.rank} does not fit {registry.cluster_name}, which lists ranks 0 to {size - 1}"
        raise error_for(Status.WORLD, text)


def _welcome_in(registry: Registry, process: Process) -> None:
    if process.role == wire.ROLE_RANK:
        if process.generation > 0:
            registry.restarted(process.rank)
        if registry.hooks.on_join is not None:
            registry.hooks.on_join(process)
    process.state = "ready"
    registry.processes.add(process)
    if process.role == wire.ROLE_RANK and process.rank >= 0:
        registry.recorder.rank_joined(process.rank, process.host, process.pid, process.node)
        if text := _elsewhere(registry, process):
            registry.recorder.note(text, process.rank)


def _elsewhere(registry: Registry, process: Process) -> str:
    """A rank that runs on another host than its node's in the cluster file; loopback there means a logical node."""
    cluster = registry.recorder.cluster
    if cluster is None or process.rank >= cluster.world_size:
        return ""
    node = cluster.nodes[cluster.node_index(process.rank)]
    wanted = node.host.lower()
    if wanted in ("localhost", "::1") or wanted.startswith("127."):
        return ""
    address = process.peer.rpartition(":")[0].removeprefix("::ffff:")
    own = process.host.lower()
    if wanted in (address, own) or wanted.partition(".")[0] == own.partition(".")[0]:
        return ""
    where = f"{process.host} ({address})" if address else process.host
    return f"rank {process.rank} runs on {where}; {registry.cluster_name} puts it on node {node.id!r}, host {node.host}"


def auth(registry: Registry, process: Process, frame, body, now: int) -> None:
    if process.state != "challenged":
        raise error_for(Status.PROTOCOL, "AUTH: not asked for")
    expected = hmac.digest(registry.token.encode(), process.challenge, "sha256")
    if not hmac.compare_digest(expected, body.digest):
        raise error_for(Status.AUTH, "the shared token differs from the coordinator's")
    _welcome_in(registry, process)
    reply(process, frame.request, Status.OK)


def bye(registry: Registry, process: Process, frame, body, now: int) -> None:
    process.state = "ended"
    registry.processes.discard(process)
    members, process.members = process.members, {}
    for comm, rank in members.values():
        comm.members[rank] = None
        registry.abandon(comm, rank)
        how = f"(global rank {comm.global_ranks[rank]}, {process.where}) ended"
        registry.apply(comm, comm.leave(rank, how))
        registry.forget_empty(comm)
    carry_out(registry, registry.membership.leave(process, f"{process.where} ended"), now)


def ping(registry: Registry, process: Process, frame, body, now: int) -> None:
    reply(process, frame.request, Status.OK)


def status(registry: Registry, process: Process, frame, body, now: int) -> None:
    process.send(wire.encode_status(text=json.dumps(registry.status()), request=frame.request))


def shutdown(registry: Registry, process: Process, frame, body, now: int) -> None:
    if not process.privileged and not registry.token:
        text = f"SHUTDOWN from {process.peer}: allowed from the coordinator's own host only; use a token"
        reply(process, frame.request, Status.AUTH, text)
        return
    reply(process, frame.request, Status.OK)
    registry.stopping = True


def note(registry: Registry, process: Process, frame, body, now: int) -> None:
    rank = process.rank if process.rank >= 0 else None
    if body.kind == wire.NOTE_FAULT:
        registry.recorder.injected(InjectedFault("out_of_memory", body.text, global_rank=rank))
    else:
        registry.recorder.note(body.text, rank, body.status)


def query(registry: Registry, process: Process, frame, body, now: int) -> None:
    """{"query": "simulate", "operations": [...]}: the modelled time of a group on the described cluster."""
    try:
        asked = json.loads(body)
        if asked.get("query") != "simulate":
            raise ValueError(f"query {asked.get('query')!r}, expected 'simulate'")
        operations = [_operation(registry, item) for item in asked["operations"]]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reply(process, frame.request, Status.INVALID_ARGUMENT, f"QUERY: {error}")
        return
    model = TimeModel(registry.recorder.snapshot().cluster)
    answer = {"time_us": estimate_group(model, operations)}
    process.send(wire.encode_query(text=json.dumps(answer), request=frame.request))


def _operation(registry: Registry, item: dict) -> Operation:
    comm = registry.communicators.get(item["comm"])
    if comm is None:
        raise ValueError(f"communicator {item['comm']} does not exist")
    kind, ranks, root = Kind(item["kind"]), comm.global_ranks, item["root"]
    other = ranks[root] if 0 <= root < comm.nranks else None
    pair = (ranks[item["rank"]], other) if kind in POINT_TO_POINT else (None, None)
    if kind is Kind.RECV:
        pair = pair[::-1]
    return Operation(
        kind="send" if kind in POINT_TO_POINT else KIND_LABELS[kind],
        ranks=pair if kind in POINT_TO_POINT else ranks,
        count=item["count"],
        element_bytes=SIZES[item["dtype"]],
        root=None if kind in POINT_TO_POINT else other,
        src=pair[0],
        dst=pair[1],
    )


HANDLERS = {
    wire.T_HELLO: hello,
    wire.T_AUTH: auth,
    wire.T_BYE: bye,
    wire.T_PING: ping,
    wire.T_STATUS: status,
    wire.T_SHUTDOWN: shutdown,
    wire.T_NOTE: note,
    wire.T_QUERY: query,
}
