"""Frames for Python. Constants are fg_wire.h's without FG_ (frame types: T_HELLO, ...); values are plain ints.

decode_body answers, by frame type:
  HELLO Hello, WELCOME Welcome, AUTH Auth, ERROR Error, COMM_INIT CommInit, COMM_READY CommReady, COMM_SPLIT CommSplit,
  COMM_SHRINK CommShrink, COMM_GROW CommGrow, COMM_FINALIZE / DESTROY / ABORT / REVOKE CommEnd (text: ABORT only),
  SUBMIT Submit, DATA Data, NOTE Note, UNIQUE_ID UniqueId or None (the request is empty),
  GO list[Go], DONE list[Done], COMPLETE list[Complete], STATUS and QUERY str (JSON; "" when empty),
  ACK, PING, SHUTDOWN, BYE None.
Encoders take fields by keyword. A field left out is zero or empty, or -1 for those that the header calls "not known";
counts (nops, nranks of COMM_READY, nexclude, text_bytes) come from what is given; COMM_READY's member field is its
header's member.
"""

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

from typing_extensions import Buffer

HEADER_BYTES: int
WIRE_MAGIC: int
WIRE_VERSION_MAJOR: int
WIRE_VERSION_MINOR: int
MAX_CONTROL_BYTES: int
MAX_DATA_BYTES: int
MAX_OPS_PER_FRAME: int
MAX_RANKS: int
UNIQUE_ID_BYTES: int
NAME_BYTES: int
TEXT_BYTES: int
FEATURE_SHM: int
FEATURE_TOKEN: int
ROLE_RANK: int
ROLE_TOOL: int
COMM_GROW_NEW: int
COMM_NONBLOCKING: int
COMM_SHM: int
COMM_SHRINK_ABORT: int
OP_BIT_SHIFT: int
OP_CORRUPT: int
OP_CRASH: int
OP_DEVICE_ERROR: int
OP_EAGER: int
OP_GROUPED: int
OP_IN_PLACE: int
OP_SOCKET: int
OP_STAGED: int
NOTE_FAULT: int
NOTE_RECOVERY: int
NOTE_TEXT: int
T_ACK: int
T_AUTH: int
T_BYE: int
T_COMM_ABORT: int
T_COMM_DESTROY: int
T_COMM_FINALIZE: int
T_COMM_GROW: int
T_COMM_INIT: int
T_COMM_READY: int
T_COMM_REVOKE: int
T_COMM_SHRINK: int
T_COMM_SPLIT: int
T_COMPLETE: int
T_DATA: int
T_DONE: int
T_ERROR: int
T_GO: int
T_HELLO: int
T_NOTE: int
T_PING: int
T_QUERY: int
T_SHUTDOWN: int
T_STATUS: int
T_SUBMIT: int
T_UNIQUE_ID: int
T_WELCOME: int
ALL_GATHER: int
ALL_REDUCE: int
ALL_TO_ALL: int
AVG: int
BARRIER: int
BFLOAT16: int
BROADCAST: int
DTYPE_COUNT: int
FLOAT16: int
FLOAT32: int
FLOAT64: int
FLOAT8_E4M3: int
FLOAT8_E5M2: int
GATHER: int
INT32: int
INT64: int
INT8: int
KIND_COUNT: int
MAX: int
MIN: int
PREMULSUM: int
PROD: int
PUT_SIGNAL: int
RECV: int
REDOP_COUNT: int
REDUCE: int
REDUCE_SCATTER: int
SCATTER: int
SEND: int
SIGNAL: int
SUM: int
UINT32: int
UINT64: int
UINT8: int
WAIT_SIGNAL: int
FRAME_NAMES: dict[int, str]
"""Frame type number to its name without T_."""

class WireError(ValueError):
    """A malformed frame, or a field that does not fit: one line naming frame type, field, found, expected."""

class Field:
    name: str
    offset: int
    bytes: int
    kind: str

class Record:
    BYTES: int
    FIELDS: tuple[Field, ...]
    def __init__(self, **fields: Any) -> None: ...
    def __bytes__(self) -> builtins.bytes: ...

class Frame(Record):
    magic: int
    type: int
    flags: int
    body_bytes: int
    request: int
    member: int

class Hello(Record):
    version_major: int
    version_minor: int
    features: int
    pid: int
    role: int
    timeout_ms: int
    rank: int
    world_size: int
    local_rank: int
    node: int
    generation: int
    compute_capability: int
    host: str
    boot_id: str
    session: str
    program: str

class Welcome(Record):
    version_major: int
    version_minor: int
    features: int
    job: int
    chunk_bytes: int
    window: int
    max_payload_frame: int
    eager_bytes: int
    world_size: int
    challenge: builtins.bytes

class Auth(Record):
    digest: builtins.bytes

class Error(Record):
    status: int
    text_bytes: int
    opid: int
    text: str

class UniqueId(Record):
    bytes: builtins.bytes

class CommInit(Record):
    unique_id: builtins.bytes
    nranks: int
    rank: int
    device: int
    flags: int
    timeout_ms: int
    compute_capability: int
    name: str

class CommSplit(Record):
    color: int
    key: int
    flags: int
    timeout_ms: int
    name: str

class CommShrink(Record):
    nexclude: int
    flags: int
    timeout_ms: int
    name: str
    exclude: list[int]

class CommGrow(Record):
    unique_id: builtins.bytes
    nranks: int
    rank: int
    device: int
    flags: int
    timeout_ms: int
    name: str

class CommEnd(Record):
    status: int
    text_bytes: int
    text: str | None

class CommReady(Record):
    comm: int
    member: int
    flags: int
    nranks: int
    rank: int
    control_slots: int
    name: str
    members: list[Member]

class Member(Record):
    global_rank: int
    node: int
    device: int
    pid: int

class BufferRef(Record):
    pid: int
    fd: int
    inode: int
    offset: int
    bytes: int

class Submit(Record):
    nops: int
    timeout_ms: int
    issue_ns: int
    ops: list[Op]

class Op(Record):
    opid: int
    seq: int
    count: int
    stream: int
    kind: int
    dtype: int
    redop: int
    root: int
    flags: int
    scalar: int
    peer_offset: int
    buffer: BufferRef | None

class Go(Record):
    opid: int
    flags: int
    peer: int
    count: int
    peer_opid: int
    buffer: BufferRef | None

class Done(Record):
    opid: int
    status: int
    exec_ns: int
    bytes: int

class Complete(Record):
    opid: int
    status: int

class Data(Record):
    opid: int
    round: int
    payload: memoryview

class Note(Record):
    kind: int
    text_bytes: int
    status: int
    opid: int
    text: str

def decode_header(buffer: Buffer) -> Frame: ...
def decode_body(frame: Frame, body: Buffer) -> Any: ...

def encode_hello(
    *, version_major: int = 1, version_minor: int = 0, features: int = 0, pid: int = 0, role: int = 0,
    timeout_ms: int = 0, rank: int = -1, world_size: int = -1, local_rank: int = -1, node: int = -1, generation:
    int = -1, compute_capability: int = 0, host: str = "", boot_id: str = "", session: str = "", program: str =
    "", request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_welcome(
    *, version_major: int = 1, version_minor: int = 0, features: int = 0, job: int = 0, chunk_bytes: int = 0,
    window: int = 0, max_payload_frame: int = 0, eager_bytes: int = 0, world_size: int = 0, challenge:
    builtins.bytes = ..., request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_error(
    *, status: int = 0, opid: int = 0, text: str = "", request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_ack(*, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_unique_id(*, bytes: builtins.bytes = ..., request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_comm_init(
    *, unique_id: builtins.bytes = ..., nranks: int = 0, rank: int = -1, device: int = 0, flags: int = 0,
    timeout_ms: int = 0, compute_capability: int = 0, name: str = "", request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_comm_ready(
    *, comm: int = 0, flags: int = 0, rank: int = -1, control_slots: int = 0, name: str = "",
    members: Sequence[Member] = (), request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_comm_split(
    *, color: int = -1, key: int = 0, flags: int = 0, timeout_ms: int = 0, name: str = "", request: int = 0,
    member: int = 0,
) -> builtins.bytes: ...
def encode_comm_shrink(
    *, flags: int = 0, timeout_ms: int = 0, name: str = "", exclude: Iterable[int] = (), request: int = 0,
    member: int = 0,
) -> builtins.bytes: ...
def encode_comm_grow(
    *, unique_id: builtins.bytes = ..., nranks: int = 0, rank: int = -1, device: int = 0, flags: int = 0,
    timeout_ms: int = 0, name: str = "", request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_comm_finalize(*, status: int = 0, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_comm_destroy(*, status: int = 0, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_comm_abort(*, status: int = 0, text: str = "", request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_submit(
    *, timeout_ms: int = 0, issue_ns: int = 0, ops: Sequence[Op], request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_go(records: Sequence[Go], *, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_done(records: Sequence[Done], *, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_complete(records: Sequence[Complete], *, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_data(
    *, opid: int = 0, round: int = 0, payload: Buffer, request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_ping(*, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_status(*, text: str = "", request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_shutdown(*, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_bye(*, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_auth(*, digest: builtins.bytes = ..., request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_note(
    *, kind: int = 0, status: int = 0, opid: int = 0, text: str = "", request: int = 0, member: int = 0,
) -> builtins.bytes: ...
def encode_comm_revoke(*, status: int = 0, request: int = 0, member: int = 0) -> builtins.bytes: ...
def encode_query(*, text: str = "", request: int = 0, member: int = 0) -> builtins.bytes: ...
def decode_data_head(buffer: Buffer) -> tuple[int, int]:
    """(opid, round) of a DATA body's fixed part, before its payload is there; the buffer may hold more."""

def encode_data_header(
    *, opid: int, round: int, payload_bytes: int, request: int = 0, member: int = 0
) -> builtins.bytes: ...
