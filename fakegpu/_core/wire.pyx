"""Frames between ranks and the coordinator for Python: decode_header, decode_body and encode_<type>.

Lengths, limits and enumerations are checked by frame.pyx, the one reader that C uses, too; this module turns checked
frames into immutable records (views of the C structs of include/fg_wire.h, fields listed in fg_wire_tables.h) and
back. Malformed input, and fields that do not fit, raise WireError with one line that names frame type, field, found
and expected. Used by the coordinator and by the Python client; wire.pyi lists every type and field.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from fakegpu._core.fg cimport *
from fakegpu._core.frame cimport Body, body_check, body_parse, frame_check, frame_write, shape_of

cdef enum:
    WHY_BYTES = 200
    HEADER = 32


class WireError(ValueError):
    """A malformed frame: one line that names frame type, field, found and expected."""


# ---- records -------------------------------------------------------------------------------------------------

cdef class Field:
    """One field of a record: a read-only attribute that reads the C struct."""
    cdef readonly str name
    cdef readonly int offset, bytes
    cdef readonly str kind
    cdef char code
    cdef int64_t default

    def __get__(self, Record record, owner):
        if record is None:
            return self
        cdef const uint8_t *at = record.base + self.offset
        if self.code == c'u':
            if self.bytes == 4:
                return (<const uint32_t *>at)[0]
            if self.bytes == 8:
                return (<const uint64_t *>at)[0]
            return at[0] if self.bytes == 1 else (<const uint16_t *>at)[0]
        if self.code == c'i':
            return (<const int32_t *>at)[0]
        if self.code == c's':
            # a name cut inside a character by a C client must not end the connection
            return at[:self.bytes].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        if self.code == c'b':
            return at[:self.bytes]
        if (<const fg_buffer_ref_t *>at).pid == 0:
            return None
        return make(FG_R_BUFFER_REF, at, None)

    cdef int refuse(self, object value, str where) except -1:
        bits = 8 * <object>self.bytes
        least, most = (0, 2 ** bits - 1) if self.code == c'u' else (-2 ** (bits - 1), 2 ** (bits - 1) - 1)
        raise WireError(f"{where}: {self.name}: found {value}, expected {least} to {most}")

    cdef int put(self, uint8_t *at, object value, str where) except -1:
        cdef bytes raw
        cdef uint64_t bits
        if self.code == c'u' or self.code == c'i':
            try:
                bits = <uint64_t>value if self.code == c'u' else <uint64_t><int32_t>value
            except OverflowError:
                self.refuse(value, where)
            if self.bytes < 8 and self.code == c'u' and bits >> (8 * self.bytes):
                self.refuse(value, where)
            memcpy(at + self.offset, &bits, <size_t>self.bytes)  # little endian, as the header insists
            return 0
        if self.code == c's':
            raw = value.encode() if isinstance(value, str) else bytes(value)
            if len(raw) > self.bytes or b"\0" in raw:
                raise WireError(f"{where}: {self.name}: found {len(raw)} bytes, "
                                f"expected at most {self.bytes} without NUL")
        elif self.code == c'b':
            raw = bytes(value)
            if len(raw) != self.bytes:
                raise WireError(f"{where}: {self.name}: found {len(raw)} bytes, expected {self.bytes}")
        else:
            if not isinstance(value, CLASSES[FG_R_BUFFER_REF]):
                raise WireError(f"{where}: {self.name}: found {type(value).__name__}, expected BufferRef or None")
            raw = (<Record>value).raw
        memcpy(at + self.offset, PyBytes_AS_STRING(raw), <size_t>PyBytes_GET_SIZE(raw))
        return 0


cdef class Record:
    """A C struct of the protocol, immutable; what follows it in the frame (text, ops, ...) is in `tail`."""
    cdef bytes raw
    cdef const uint8_t *base
    cdef readonly object tail

    def __init__(self, **fields):
        cls = type(self)
        cdef bytes raw = PyBytes_FromStringAndSize(NULL, cls.BYTES)
        pack(<uint8_t *>PyBytes_AS_STRING(raw), cls.FIELDS, fields, cls.__name__, cls.BYTES)
        self.raw, self.base = raw, <const uint8_t *>PyBytes_AS_STRING(raw)

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        return self.raw == (<Record>other).raw and self.tail == (<Record>other).tail

    __hash__ = None

    def __bytes__(self):
        return self.raw

    def __repr__(self):
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in type(self).FIELDS]
        tail = [] if self.tail is None else [f"tail={self.tail!r}"]
        return f"{type(self).__name__}({', '.join(shown + tail)})"


cdef Record make(int record, const uint8_t *at, object tail):
    cls = CLASSES[record]
    cdef Record self = Record.__new__(cls)
    self.raw = PyBytes_FromStringAndSize(<const char *>at, FG_RECORDS[record].bytes)
    self.base = <const uint8_t *>PyBytes_AS_STRING(self.raw)
    self.tail = tail
    return self


cdef int pack(uint8_t *at, tuple fields, dict values, str where, size_t size) except -1:
    """Fill a struct by field names; a field left out is zero, empty, or -1 where that means unknown."""
    cdef Field field
    cdef int32_t minus = -1
    cdef Py_ssize_t used = 0
    cdef PyObject *value
    memset(at, 0, size)
    for field in fields:
        value = PyDict_GetItem(values, field.name)
        if value != NULL:
            used += 1
            if <object>value is not None:
                field.put(at, <object>value, where)
        elif field.default < 0:
            memcpy(at + field.offset, &minus, sizeof(minus))
        elif field.default:
            at[field.offset] = <uint8_t>field.default  # version numbers
    if used != len(values):
        unknown = sorted(set(values) - {f.name for f in fields})
        raise TypeError(f"{where}: unknown field {', '.join(unknown)}")
    return 0


cdef dict DEFAULTS = {
    "version_major": FG_WIRE_VERSION_MAJOR, "version_minor": FG_WIRE_VERSION_MINOR, "rank": -1, "world_size": -1,
    "local_rank": -1, "node": -1, "generation": -1, "root": -1, "peer": -1, "global_rank": -1, "fd": -1, "color": -1,
}


def _record_class(int number):
    cdef const fg_record_t *record = &FG_RECORDS[number]
    cdef Field field
    cdef int i
    fields, space = [], {"__slots__": (), "__module__": __name__, "BYTES": record.bytes}
    for i in range(record.nfields):
        field = Field()
        field.name, field.code = record.fields[i].name.decode(), record.fields[i].kind
        field.offset, field.bytes, field.kind = record.fields[i].offset, record.fields[i].bytes, chr(field.code)
        if field.code == c'i' or field.name.startswith("version"):
            field.default = DEFAULTS.get(field.name, 0)
        if not field.name.startswith("reserved"):
            fields.append(field)
            space[field.name] = field
    space["FIELDS"] = tuple(fields)
    for i in range(1, <int>FG_SHAPE_COUNT):
        if FG_SHAPES[i].fixed == number and FG_SHAPES[i].tail != FG_TAIL_NONE:
            space[FG_SHAPES[i].tail_name.decode()] = Record.tail
    return type(record.name.decode(), (Record,), space)


cdef list CLASSES = [_record_class(i) for i in range(FG_R_COUNT)]


# ---- decode and encode ---------------------------------------------------------------------------------------

HEADER_BYTES = HEADER


def decode_header(buffer):
    """The Frame of the first HEADER_BYTES bytes; WireError: wrong magic, unknown type, body over the limit."""
    cdef Py_buffer view
    cdef fg_frame_t head
    cdef char why[WHY_BYTES]
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < <Py_ssize_t>sizeof(head):
            raise WireError(f"header: found {view.len} bytes, expected {sizeof(head)}")
        if frame_check(<const uint8_t *>view.buf, &head, why, WHY_BYTES):
            raise WireError(why.decode("utf-8", "replace"))
        return make(FG_R_FRAME, <const uint8_t *>view.buf, None)
    finally:
        PyBuffer_Release(&view)


cdef object decode_tail(const fg_shape_t *shape, const Body *body, object buffer):
    cdef size_t i
    if shape.tail == FG_TAIL_RAW:
        return memoryview(buffer).cast("B")[body.tail - body.fixed:]
    if shape.tail == FG_TAIL_TEXT:
        return body.tail[:body.tail_bytes].decode("utf-8", "backslashreplace")
    if shape.record < 0:
        return [(<const int32_t *>body.tail)[i] for i in range(body.items)]
    return [make(shape.record, body.tail + i * shape.item_bytes, None) for i in range(body.items)]


def decode_body(Record frame, body):
    """The record of a frame's body (see the .pyi for the type of each); the body must be exactly body_bytes long."""
    cdef Py_buffer view
    cdef Body parts
    cdef char why[WHY_BYTES]
    cdef const fg_frame_t *head = <const fg_frame_t *>frame.base
    cdef const fg_shape_t *shape
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        if view.len != head.body_bytes:
            raise WireError(f"body: found {view.len} bytes, expected {head.body_bytes}")
        if body_parse(head, <const uint8_t *>view.buf, &parts, why, WHY_BYTES):
            raise WireError(why.decode("utf-8", "replace"))
        shape = shape_of(head.type)
        if shape.tail == FG_TAIL_JSON:
            try:
                return (<const char *>view.buf)[:view.len].decode("utf-8")
            except UnicodeDecodeError as error:
                raise WireError(f"{shape.name.decode()}: text: found {error.reason}, expected UTF-8") from None
        if shape.fixed >= 0:
            if parts.fixed == NULL:
                return None
            return make(shape.fixed, parts.fixed, None if shape.tail == FG_TAIL_NONE
                        else decode_tail(shape, &parts, body))
        return None if shape.tail == FG_TAIL_NONE else decode_tail(shape, &parts, body)
    finally:
        PyBuffer_Release(&view)


cdef list LABELS = [("", "", "")] + [  # of frame type, tail and count, by frame type
    (FG_SHAPES[i].name.decode(), FG_SHAPES[i].tail_name.decode(), FG_SHAPES[i].count_name.decode())
    for i in range(1, <int>FG_SHAPE_COUNT)
]


cdef bytes encode_tail(const fg_shape_t *shape, object value, Py_ssize_t *items, str where):
    """The bytes of what follows the fixed part; items: how many records or bytes of text that is."""
    if shape.tail == FG_TAIL_TEXT or shape.tail == FG_TAIL_JSON:
        raw = value.encode() if isinstance(value, str) else bytes(value)
    elif shape.tail == FG_TAIL_RAW:
        raw = bytes(value)
    elif shape.record < 0:
        raw = b"".join([int(v).to_bytes(4, "little", signed=True) for v in value])
    else:
        cls = CLASSES[shape.record]
        for item in value:
            if type(item) is not cls:
                raise WireError(f"{where}: {shape.tail_name.decode()}: found {type(item).__name__}, "
                                f"expected {cls.__name__}")
        raw = (<Record>value[0]).raw if len(value) == 1 else b"".join([(<Record>item).raw for item in value])
    items[0] = len(raw) // shape.item_bytes
    return raw


cdef bytes encode(uint16_t type, object request, object member, dict fields, Py_ssize_t unsent):
    """A whole frame, checked as its reader will; unsent: payload bytes that the caller sends after it."""
    cdef const fg_shape_t *shape = shape_of(type)
    cdef bytes tail = b""
    cdef Py_ssize_t items = 0, fixed = 0
    cdef uint32_t stated
    cdef char why[WHY_BYTES]
    cdef fg_frame_t head
    where, tail_name, count_name = LABELS[type]
    if shape.tail != FG_TAIL_NONE:
        tail = encode_tail(shape, fields.pop(tail_name, ()), &items, where)
    if shape.fixed >= 0 and (fields or not shape.optional):
        fixed = FG_RECORDS[shape.fixed].bytes
    elif fields:
        raise TypeError(f"{where}: unknown field {', '.join(sorted(fields))}")
    if count_name and fields.setdefault(count_name, items) != items:
        raise WireError(f"{where}: {count_name}: found {fields[count_name]}, expected {items}")
    cdef Py_ssize_t body = fixed + len(tail) + unsent
    if body > shape.max_bytes:
        raise WireError(f"{where}: body_bytes: found {body}, expected at most {shape.max_bytes}")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, HEADER + body - unsent)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
    frame_write(at, type, request, member, <uint64_t>body)
    if fixed:
        pack(at + HEADER, CLASSES[shape.fixed].FIELDS, fields, where, <size_t>fixed)
    memcpy(at + HEADER + fixed, PyBytes_AS_STRING(tail), <size_t>len(tail))
    if not unsent and (frame_check(at, &head, why, WHY_BYTES) or body_check(&head, at + HEADER, why, WHY_BYTES)):
        raise WireError(why.decode("utf-8", "replace"))
    return out


def _encoder(uint16_t type):
    def encoder(*, request=0, member=0, **fields):
        if type == FG_T_COMM_READY:
            fields["member"] = member
        return encode(type, request, member, fields, 0)

    def array_encoder(records, *, request=0, member=0):
        return encode(type, request, member, {"records": records}, 0)

    made = array_encoder if FG_SHAPES[type].tail == FG_TAIL_ARRAY else encoder
    made.__name__ = made.__qualname__ = f"encode_{LABELS[type][0].lower()}"
    made.__doc__ = f"A whole {LABELS[type][0]} frame; fields as in wire.pyi."
    return made


def decode_data_head(buffer):
    """(opid, round) of a DATA body's fixed part, before its payload is there; the buffer may hold more."""
    cdef Py_buffer view
    cdef fg_data_t head
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < <Py_ssize_t>sizeof(head):
            raise WireError(f"DATA: body: needs {sizeof(head)} bytes, found {view.len}")
        memcpy(&head, view.buf, sizeof(head))
        return head.opid, head.round
    finally:
        PyBuffer_Release(&view)


def encode_data_header(*, opid, round, payload_bytes, request=0, member=0):
    """Header and fixed part of a DATA frame; the caller sends payload_bytes of payload right after it."""
    return encode(NAMES["DATA"], request, member, {"opid": opid, "round": round}, payload_bytes)


cdef dict NAMES = {}


def _publish(space):
    """Module constants without their FG_ prefix, frame types as T_<NAME>, record classes and encoders."""
    cdef size_t i
    for i in range(FG_CONSTANT_COUNT):
        space[FG_CONSTANTS[i].name.decode().removeprefix("FG_")] = FG_CONSTANTS[i].value
    for i in range(1, FG_SHAPE_COUNT):
        name = LABELS[i][0]
        NAMES[name] = space[f"T_{name}"] = i
        space[f"encode_{name.lower()}"] = _encoder(<uint16_t>i)
    for cls in CLASSES:
        space[cls.__name__] = cls


_publish(globals())
FRAME_NAMES = {number: name for name, number in NAMES.items()}
