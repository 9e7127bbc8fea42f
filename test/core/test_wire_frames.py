"""Every frame type survives a round trip; whatever is not a right frame is a WireError and nothing worse."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakegpu._core import wire
from fakegpu._core.wire import WireError

BY_NAME = {name: number for number, name in wire.FRAME_NAMES.items()}
letters = st.characters(codec="utf-8", exclude_characters="\0")
names = st.text(letters, max_size=64).filter(lambda s: len(s.encode()) <= 64)
texts = st.text(st.characters(codec="utf-8"), max_size=300)
statuses = st.integers(-(2**31), 2**31 - 1)


def unsigned(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) | st.sampled_from([0, 1, 2**bits - 1])


def values_of(field: wire.Field) -> st.SearchStrategy:
    return {
        "u": unsigned(8 * field.bytes),
        "i": statuses,
        "s": names,
        "b": st.binary(min_size=field.bytes, max_size=field.bytes),
        "r": st.none() | st.deferred(lambda: buffer_refs),
    }[field.kind]


ENUMS = {
    ("Hello", "role"): st.sampled_from([wire.ROLE_RANK, wire.ROLE_TOOL]),
    ("Note", "kind"): st.integers(1, 3),
    ("Op", "kind"): st.integers(0, wire.KIND_COUNT - 1),
    ("Op", "dtype"): st.integers(0, wire.DTYPE_COUNT - 1),
    ("Op", "redop"): st.integers(0, wire.REDOP_COUNT - 1),
    ("BufferRef", "pid"): st.integers(1, 2**32 - 1),
}
COUNTS = {"nops", "nexclude", "text_bytes"}


def fields_of(record: type) -> st.SearchStrategy[dict]:
    """Some of a record's fields; the others are left to their defaults."""
    all_of = {f.name: ENUMS.get((record.__name__, f.name), values_of(f)) for f in record.FIELDS if f.name not in COUNTS}
    needed = {name: all_of.pop(name) for name in list(all_of) if (record.__name__, name) in ENUMS}
    return st.fixed_dictionaries(needed, optional=all_of)


def records(record: type) -> st.SearchStrategy:
    return fields_of(record).map(lambda fields: record(**fields))


buffer_refs = records(wire.BufferRef)
PLAIN = {  # body record, fields after it
    "HELLO": (wire.Hello, {}),
    "WELCOME": (wire.Welcome, {}),
    "AUTH": (wire.Auth, {}),
    "UNIQUE_ID": (wire.UniqueId, {}),
    "COMM_INIT": (wire.CommInit, {}),
    "COMM_SPLIT": (wire.CommSplit, {}),
    "COMM_GROW": (wire.CommGrow, {}),
    "COMM_FINALIZE": (wire.CommEnd, {}),
    "COMM_DESTROY": (wire.CommEnd, {}),
    "COMM_REVOKE": (wire.CommEnd, {}),
    "COMM_ABORT": (wire.CommEnd, {"text": texts}),
    "ERROR": (wire.Error, {"text": texts}),
    "NOTE": (wire.Note, {"text": texts}),
    "COMM_SHRINK": (wire.CommShrink, {"exclude": st.lists(statuses, max_size=5)}),
    "COMM_READY": (wire.CommReady, {"members": st.lists(records(wire.Member), max_size=5)}),
    "SUBMIT": (wire.Submit, {"ops": st.lists(records(wire.Op), min_size=1, max_size=4)}),
    "DATA": (wire.Data, {"payload": st.binary(max_size=100)}),
}
ARRAYS = {"GO": wire.Go, "DONE": wire.Done, "COMPLETE": wire.Complete}
BARE = ["ACK", "PING", "SHUTDOWN", "BYE"]
JSON = ["STATUS", "QUERY"]
COMM_READY_HEADER = {"nranks", "member"}  # from members and from the header


def encoder(name: str):
    return getattr(wire, f"encode_{name.lower()}")


def split(frame: bytes):
    header = wire.decode_header(frame[: wire.HEADER_BYTES])
    return header, frame[wire.HEADER_BYTES :]


def decode(frame: bytes):
    return wire.decode_body(*split(frame))


@st.composite
def frames(draw, name: str) -> bytes:
    """An encoded frame of the type; right by construction."""
    head = {"request": draw(unsigned(32)), "member": draw(unsigned(64))}
    if name in ARRAYS:
        return encoder(name)(draw(st.lists(records(ARRAYS[name]), min_size=1, max_size=4)), **head)
    if name in JSON:
        return encoder(name)(text=draw(texts), **head)
    if name in BARE:
        return encoder(name)(**head)
    record, after = PLAIN[name]
    fields = draw(fields_of(record))
    for extra in COMM_READY_HEADER if name == "COMM_READY" else ():
        fields.pop(extra, None)
    return encoder(name)(**fields, **{k: draw(s) for k, s in after.items()}, **head)


def test_every_type_is_tested():
    assert {*PLAIN, *ARRAYS, *BARE, *JSON} == set(BY_NAME)


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=25)
@given(data=st.data(), request=unsigned(32), member=unsigned(64))
def test_round_trip(name, data, request, member):
    record, after = PLAIN[name]
    fields = data.draw(fields_of(record)) | {key: data.draw(strategy) for key, strategy in after.items()}
    if name == "COMM_READY":
        fields = {k: v for k, v in fields.items() if k not in COMM_READY_HEADER}
    header, body = split(encoder(name)(request=request, member=member, **fields))
    assert (header.type, header.request, header.member) == (BY_NAME[name], request, member)
    assert header.body_bytes == len(body)
    found = wire.decode_body(header, body)
    if name == "UNIQUE_ID" and not fields:
        assert found is None  # the request for an id is an empty UNIQUE_ID
        return
    assert type(found) is record
    for key, value in fields.items():
        assert getattr(found, key) == value, key
    assert found == wire.decode_body(header, bytearray(body))
    if name == "COMM_READY":
        assert (found.member, found.nranks) == (member, len(fields["members"]))


@pytest.mark.parametrize("name", ARRAYS)
@settings(max_examples=25)
@given(data=st.data(), member=unsigned(64))
def test_round_trip_of_arrays(name, data, member):
    items = data.draw(st.lists(fields_of(ARRAYS[name]), min_size=1, max_size=4))
    frame = encoder(name)([ARRAYS[name](**fields) for fields in items], member=member)
    found = decode(frame)
    assert [type(item) for item in found] == [ARRAYS[name]] * len(items)
    for item, fields in zip(found, items, strict=True):
        assert {key: getattr(item, key) for key in fields} == fields


@pytest.mark.parametrize("name", BARE)
def test_round_trip_without_body(name):
    header, body = split(encoder(name)(request=5))
    assert (header.type, header.request, body) == (BY_NAME[name], 5, b"")
    assert wire.decode_body(header, body) is None


@pytest.mark.parametrize("name", JSON)
@given(text=texts)
def test_round_trip_of_text(name, text):
    assert decode(encoder(name)(text=text)) == text


def test_defaults_mean_not_known():
    hello = decode(wire.encode_hello(role=wire.ROLE_RANK))
    assert (hello.version_major, hello.version_minor) == (wire.WIRE_VERSION_MAJOR, wire.WIRE_VERSION_MINOR)
    assert (hello.rank, hello.world_size, hello.local_rank, hello.node, hello.generation) == (-1,) * 5


@pytest.mark.parametrize("name", BY_NAME)
@settings(max_examples=20)
@given(data=st.data())
def test_truncated_or_stretched_is_an_error(name, data):
    header, body = split(data.draw(frames(name)))
    with pytest.raises(WireError):
        wire.decode_header(bytes(header)[: data.draw(st.integers(0, wire.HEADER_BYTES - 1))])
    with pytest.raises(WireError):
        wire.decode_body(header, body + b"\0")
    if body:
        with pytest.raises(WireError):
            wire.decode_body(header, body[:-1])


@pytest.mark.parametrize("name", BY_NAME)
@settings(max_examples=40)
@given(data=st.data())
def test_garbled_never_crashes(name, data):
    """Any bytes after a right header, and a right body with a few bytes changed: a record or a WireError."""
    frame = bytearray(data.draw(frames(name)))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    body = data.draw(st.binary(max_size=400))
    junk = struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, BY_NAME[name], 0, len(body), 0, 0, 0) + body
    for candidate in (bytes(frame), junk):
        try:
            repr(decode(candidate))
        except WireError as error:
            assert "\n" not in str(error)


@given(junk=st.binary(min_size=32, max_size=32).filter(lambda b: b[:4] != b"FGP1"))
def test_any_other_protocol_is_refused(junk):
    with pytest.raises(WireError, match="header: magic: found 0x[0-9a-f]{8}, expected 0x31504746"):
        wire.decode_header(junk)


def raw_header(type: int, body_bytes: int, flags: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<IHHIIQQ", wire.WIRE_MAGIC, type, flags, body_bytes, 0, 0, reserved)


@pytest.mark.parametrize("number", [0, 27, 65535])
def test_unknown_types_are_refused(number):
    with pytest.raises(WireError, match=f"header: type: found {number}, expected 1 to 26"):
        wire.decode_header(raw_header(number, 0))


@pytest.mark.parametrize(
    ("name", "limit"),
    [("PING", 0), ("HELLO", 304), ("SUBMIT", 16 << 20), ("STATUS", 16 << 20), ("DATA", 64 << 20)],
)
def test_length_is_refused_with_the_header_alone(name, limit):
    assert wire.decode_header(raw_header(BY_NAME[name], limit)).body_bytes == limit
    with pytest.raises(WireError, match=f"{name}: body_bytes: found {limit + 1}, expected at most {limit}"):
        wire.decode_header(raw_header(BY_NAME[name], limit + 1))


def patched(frame: bytes, offset: int, code: str, value: int) -> bytes:
    out = bytearray(frame)
    struct.pack_into("<" + code, out, wire.HEADER_BYTES + offset, value)
    return bytes(out)


ONE_OP = wire.encode_submit(ops=[wire.Op(opid=1)])
ERROR = wire.encode_error(text="abc")
READY = wire.encode_comm_ready(members=[wire.Member()])


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        pytest.param(patched(ONE_OP, 0, "I", 0xFFFFFFFF), "SUBMIT: ops: needs 412316860320 bytes, found 96", id="nops"),
        pytest.param(patched(ONE_OP, 0, "I", 0), "SUBMIT: body_bytes: found 112, expected 16", id="fewer-nops"),
        pytest.param(patched(ONE_OP, 16 + 32, "B", 14), "SUBMIT: kind: found 14, expected 0 to 13", id="kind"),
        pytest.param(patched(ONE_OP, 16 + 33, "B", 12), "SUBMIT: dtype: found 12, expected 0 to 11", id="dtype"),
        pytest.param(patched(ONE_OP, 16 + 34, "B", 6), "SUBMIT: redop: found 6, expected 0 to 5", id="redop"),
        pytest.param(patched(READY, 20, "i", -1), "COMM_READY: members: needs", id="negative-nranks"),
        pytest.param(patched(ERROR, 4, "I", 4), "ERROR: text: needs 4 bytes, found 3", id="text"),
        pytest.param(patched(ERROR, 4, "I", 2), "ERROR: body_bytes: found 19, expected 18", id="text-left-over"),
        pytest.param(raw_header(15, 0), "GO: records: needs 64 bytes, found 0", id="no-go"),
        pytest.param(raw_header(15, 65) + bytes(65), "GO: records: needs 128 bytes, found 65", id="part-of-a-go"),
        pytest.param(raw_header(6, 8) + bytes(8), "COMM_INIT: body: needs 216 bytes, found 8", id="fixed-part"),
        pytest.param(raw_header(5, 1) + bytes(1), "UNIQUE_ID: body: needs 128 bytes, found 1", id="unique-id"),
        pytest.param(raw_header(1, 304) + bytes(304), "HELLO: role: found 0, expected 1 to 2", id="role"),
        pytest.param(raw_header(24, 24) + bytes(24), "NOTE: kind: found 0, expected 1 to 3", id="note-kind"),
        pytest.param(raw_header(20, 1) + b"\xff", "STATUS: text: found invalid start byte, expected UTF-8", id="json"),
    ],
)
def test_errors_name_frame_field_found_and_expected(frame, text):
    with pytest.raises(WireError) as error:
        decode(frame)
    assert text in str(error.value)


def test_what_is_not_ours_to_judge_passes():
    """Unknown feature bits and flags, reserved fields, another major version: the coordinator judges them."""
    hello = patched(wire.encode_hello(role=1, features=0xFFFFFFFF), 0, "H", 99)
    hello = patched(hello, 44, "I", 0xDEAD)  # reserved
    frame = hello[:6] + b"\xff\xff" + hello[8:24] + b"\x01" * 8 + hello[32:]
    found = decode(frame)
    assert (found.version_major, found.features) == (99, 0xFFFFFFFF)


def test_a_name_cut_inside_a_character_is_still_readable():
    cut = ("x" * 63 + "é").encode()[:64]
    frame = bytearray(wire.encode_hello(role=1))
    frame[wire.HEADER_BYTES + 48 : wire.HEADER_BYTES + 112] = cut
    assert decode(bytes(frame)).host == "x" * 63 + "\\xc3"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        pytest.param(lambda: wire.encode_hello(role=1, host="h" * 65), "HELLO: host: found 65 bytes", id="long-name"),
        pytest.param(lambda: wire.encode_hello(role=1, host="é" * 33), "HELLO: host: found 66 bytes", id="utf8"),
        pytest.param(lambda: wire.encode_hello(role=1, host="a\0b"), "without NUL", id="nul"),
        pytest.param(lambda: wire.encode_hello(), "HELLO: role: found 0, expected 1 to 2", id="enumeration"),
        pytest.param(lambda: wire.encode_hello(role=1, pid=-1), "HELLO: pid: found -1, expected 0 to", id="negative"),
        pytest.param(lambda: wire.encode_auth(digest=b"x"), "AUTH: digest: found 1 bytes, expected 32", id="digest"),
        pytest.param(lambda: wire.Op(count=2**64), "Op: count: found 18446744073709551616", id="too-large"),
        pytest.param(lambda: wire.Op(root=2**31), "Op: root: found 2147483648", id="too-large-signed"),
        pytest.param(lambda: wire.Op(buffer=b"x"), "Op: buffer: found bytes, expected BufferRef", id="buffer"),
        pytest.param(lambda: wire.encode_submit(ops=[]), "SUBMIT: nops: found 0, expected 1 to 65536", id="no-ops"),
        pytest.param(lambda: wire.encode_submit(ops=[wire.Go()]), "SUBMIT: ops: found Go, expected Op", id="record"),
        pytest.param(lambda: wire.encode_go([]), "GO: records: needs 64 bytes, found 0", id="no-records"),
        pytest.param(lambda: wire.encode_comm_ready(nranks=2), "COMM_READY: nranks: found 2, expected 0", id="count"),
        pytest.param(
            lambda: wire.encode_data_header(opid=1, round=0, payload_bytes=64 << 20), "DATA: body_bytes", id="data"
        ),
    ],
)
def test_encoding_refuses_what_does_not_fit(call, text):
    with pytest.raises(WireError) as error:
        call()
    assert text in str(error.value)


@pytest.mark.parametrize("name", [n for n in BY_NAME if n not in ARRAYS])
def test_unknown_fields_are_a_mistake_of_the_caller(name):
    required = {"ops": [wire.Op()]} if name == "SUBMIT" else {}
    with pytest.raises(TypeError, match="colour"):
        encoder(name)(colour=1, **required)


def test_records_cannot_change_under_their_reader():
    body = bytearray(wire.encode_done([wire.Done(opid=7)])[wire.HEADER_BYTES :])
    (done,) = wire.decode_body(wire.decode_header(raw_header(wire.T_DONE, len(body))), body)
    body[0] = 9
    assert done.opid == 7
    with pytest.raises(AttributeError):
        done.opid = 8


def test_data_header_and_payload_make_the_data_frame():
    head = wire.encode_data_header(opid=3, round=4, payload_bytes=5, member=6)
    assert head + b"abcde" == wire.encode_data(opid=3, round=4, payload=b"abcde", member=6)
    assert decode(head + b"abcde").payload == b"abcde"
