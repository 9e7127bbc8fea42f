"""The frame layout is what fg_wire.h says, field by field, and does not change unnoticed.

The header is parsed here with a few regular expressions, independently of the compiler and of fg_wire_tables.h.
"""

import re
from pathlib import Path

import pytest

from fakegpu._core import status, wire

INCLUDE = Path(wire.__file__).parent / "include"
HEADER = re.sub(r"/\*.*?\*/", "", (INCLUDE / "fg_wire.h").read_text(), flags=re.S)
DEFINES = {name: int(value) for name, value in re.findall(r"#define FG_(\w+) (\d+)u?\s*$", HEADER, re.M)}
BYTES = {"uint8_t": 1, "char": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "uint64_t": 8}
KINDS = {"char": "s", "int32_t": "i", "fg_buffer_ref_t": "r"}
# the protocol's version 2.0: whoever changes a size must raise the version
SIZES = {
    "fg_frame_t": 32, "fg_hello_t": 304, "fg_welcome_t": 72, "fg_auth_t": 32, "fg_error_t": 16, "fg_unique_id_t": 128,
    "fg_comm_init_t": 216, "fg_comm_split_t": 80, "fg_comm_shrink_t": 80, "fg_comm_grow_t": 216, "fg_comm_end_t": 8,
    "fg_comm_ready_t": 128, "fg_member_t": 16, "fg_buffer_ref_t": 32, "fg_submit_t": 16, "fg_op_t": 96, "fg_go_t": 64,
    "fg_done_t": 32, "fg_complete_t": 16, "fg_data_t": 16, "fg_note_t": 24,
}  # fmt: skip


def parse_structs() -> dict[str, tuple[int, list[tuple[str, int, int, str]]]]:
    """Struct name to (size, [(field, offset, bytes, kind)]) by C's natural alignment."""
    sizes, structs = dict(BYTES), {}
    alignments = dict(BYTES)
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (fg_\w+_t);", HEADER, re.S):
        offset, align, fields = 0, 1, []
        for kind, names in re.findall(r"(\w+) ([^;]+);", body):
            for field, length in re.findall(r"(\w+)(?:\[(\w+)\])?", names):
                count = int(DEFINES.get(length.removeprefix("FG_"), length or 1)) if length else 1
                offset += -offset % alignments[kind]
                code = "b" if length and kind == "uint8_t" else KINDS.get(kind, "u")
                fields.append((field, offset, sizes[kind] * count, code))
                offset += sizes[kind] * count
                align = max(align, alignments[kind])
        sizes[name], alignments[name] = offset + -offset % align, align
        structs[name] = (sizes[name], fields)
    return structs


STRUCTS = parse_structs()


def record_of(struct: str) -> type:
    return getattr(wire, "".join(part.capitalize() for part in struct[3:-2].split("_")))


def test_every_struct_is_covered():
    assert set(STRUCTS) == set(SIZES)


@pytest.mark.parametrize("struct", SIZES)
def test_size_and_fields(struct):
    size, fields = STRUCTS[struct]
    record = record_of(struct)
    assert record.BYTES == size == SIZES[struct]
    found = [(f.name, f.offset, f.bytes, f.kind) for f in record.FIELDS]
    assert found == [f for f in fields if not f[0].startswith("reserved")]


def test_frame_types_are_the_headers():
    types = {name: int(value) for name, value in re.findall(r"FG_T_(\w+) = (\d+)", HEADER)}
    assert {name: number for number, name in wire.FRAME_NAMES.items()} == types
    assert all(getattr(wire, f"T_{name}") == number for name, number in types.items())


def test_constants_are_the_headers():
    enums = {name: int(value) for name, value in re.findall(r"FG_(\w+) = (\d+)[,\s]", HEADER)}
    assert {name: getattr(wire, name) for name in DEFINES | enums} == DEFINES | enums
    assert wire.HEADER_BYTES == 32
    assert (wire.MAX_CONTROL_BYTES, wire.MAX_DATA_BYTES) == (16 << 20, 64 << 20)


def test_a_submit_frame_byte_for_byte():
    op = wire.Op(opid=1, seq=2, count=3, stream=4, kind=5, dtype=6, redop=4, root=-1, flags=8, scalar=9, peer_offset=10,
                 buffer=wire.BufferRef(pid=11, fd=12, inode=13, offset=14, bytes=15))  # fmt: skip
    frame = wire.encode_submit(ops=[op], timeout_ms=16, issue_ns=17, request=18, member=19)
    assert frame.hex() == (
        "46475031" "0e00" "0000" "70000000" "12000000" "1300000000000000" "0000000000000000"
        "01000000" "10000000" "1100000000000000"
        "0100000000000000" "0200000000000000" "0300000000000000" "0400000000000000"
        "05060400" "ffffffff" "08000000" "00000000" "0900000000000000" "0a00000000000000"
        "0b000000" "0c000000" "0d00000000000000" "0e00000000000000" "0f00000000000000"
    )  # fmt: skip


def test_status_table_is_the_headers():
    text = (INCLUDE / "fg_status.h").read_text()
    rows = re.findall(r'X\((\w+), (\d+), (\d+), "([^"]*)"\)', text)
    assert status.TABLE == tuple((name, int(code), int(nccl), line) for name, code, nccl, line in rows)
    assert len({code for _, code, _, _ in status.TABLE}) == len(status.TABLE)
