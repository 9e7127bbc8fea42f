"""The reader of the frame layout in include/fg_wire.h, in C and without the GIL.

frame_write, frame_check and body_check serve the C interposer through the capsule; body_parse serves wire.pyx, the
Python side. Every length goes through one cursor (`take`), and is checked before anybody takes memory for it. What a
frame means, a wrong protocol version included, is not judged here. Unknown bits and reserved fields are ignored.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset

from fakegpu._core.fg cimport *


cdef struct Cursor:
    const char *frame
    const uint8_t *at
    size_t left
    char *why
    size_t why_bytes


cdef const uint8_t *take(Cursor *c, size_t n, const char *field) noexcept nogil:
    """The next n bytes, or NULL and the reason. The one bounds check of this module."""
    cdef const uint8_t *at = c.at
    if n > c.left:
        snprintf(c.why, c.why_bytes, "%s: %s: needs %zu bytes, found %zu", c.frame, field, n, c.left)
        return NULL
    c.at += n
    c.left -= n
    return at


cdef int bad(Cursor *c, const char *field, uint64_t found, uint64_t least, uint64_t most) noexcept nogil:
    if found < least or found > most:
        snprintf(c.why, c.why_bytes, "%s: %s: found %llu, expected %llu to %llu", c.frame, field,
                 <unsigned long long>found, <unsigned long long>least, <unsigned long long>most)
        return 1
    return 0


cdef const fg_shape_t *shape_of(uint16_t type) noexcept nogil:
    return &FG_SHAPES[type] if 0 < type < FG_SHAPE_COUNT else NULL


cdef int frame_write(uint8_t *out, uint16_t type, uint32_t request, uint64_t member,
                     uint64_t body_bytes) noexcept nogil:
    cdef const fg_shape_t *shape = shape_of(type)
    cdef fg_frame_t head
    if shape == NULL:
        return FG_INVALID_ARGUMENT
    if body_bytes > shape.max_bytes:
        return FG_LIMIT
    memset(&head, 0, sizeof(head))
    head.magic = FG_WIRE_MAGIC
    head.type = type
    head.body_bytes = <uint32_t>body_bytes
    head.request = request
    head.member = member
    memcpy(out, &head, sizeof(head))
    return FG_OK


cdef int frame_check(const uint8_t *head, fg_frame_t *out, char *why, size_t why_bytes) noexcept nogil:
    cdef const fg_shape_t *shape
    memcpy(out, head, sizeof(fg_frame_t))
    if out.magic != FG_WIRE_MAGIC:
        snprintf(why, why_bytes, "header: magic: found 0x%08x, expected 0x%08x", out.magic, <uint32_t>FG_WIRE_MAGIC)
        return FG_PROTOCOL
    shape = shape_of(out.type)
    if shape == NULL:
        snprintf(why, why_bytes, "header: type: found %u, expected 1 to %u", <unsigned>out.type,
                 <unsigned>(FG_SHAPE_COUNT - 1))
        return FG_PROTOCOL
    if out.body_bytes > shape.max_bytes:
        snprintf(why, why_bytes, "%s: body_bytes: found %u, expected at most %u", shape.name, out.body_bytes,
                 shape.max_bytes)
        return FG_PROTOCOL
    return FG_OK


cdef int check_items(Cursor *c, uint16_t type, const Body *body) noexcept nogil:
    """Enumerations and limits that the layout alone cannot show; non-zero: bad."""
    cdef size_t i
    cdef const fg_op_t *op = <const fg_op_t *>body.tail
    if type == FG_T_HELLO:
        return bad(c, "role", (<const fg_hello_t *>body.fixed).role, FG_ROLE_RANK, FG_ROLE_TOOL)
    if type == FG_T_NOTE:
        return bad(c, "kind", (<const fg_note_t *>body.fixed).kind, FG_NOTE_TEXT, FG_NOTE_RECOVERY)
    if type == FG_T_COMM_READY:
        return bad(c, "nranks", body.items, 0, FG_MAX_RANKS)
    if type == FG_T_SUBMIT:
        if bad(c, "nops", body.items, 1, FG_MAX_OPS_PER_FRAME):
            return 1
        for i in range(body.items):
            if (bad(c, "kind", op[i].kind, 0, FG_KIND_COUNT - 1) or bad(c, "dtype", op[i].dtype, 0, FG_DTYPE_COUNT - 1)
                    or bad(c, "redop", op[i].redop, 0, FG_REDOP_COUNT - 1)):
                return 1
    return 0


cdef int body_parse(const fg_frame_t *frame, const uint8_t *bytes, Body *out, char *why,
                    size_t why_bytes) noexcept nogil:
    cdef const fg_shape_t *shape = shape_of(frame.type)
    cdef Cursor c
    cdef uint32_t stated
    memset(out, 0, sizeof(Body))
    if shape == NULL:
        snprintf(why, why_bytes, "header: type: found %u, unknown", <unsigned>frame.type)
        return FG_PROTOCOL
    c.frame, c.at, c.left, c.why, c.why_bytes = shape.name, bytes, frame.body_bytes, why, why_bytes
    if frame.body_bytes > shape.max_bytes:
        bad(&c, "body_bytes", frame.body_bytes, 0, shape.max_bytes)
        return FG_PROTOCOL
    if shape.optional and c.left == 0:
        return FG_OK
    if shape.fixed >= 0:
        out.fixed = take(&c, FG_RECORDS[shape.fixed].bytes, "body")
        if out.fixed == NULL:
            return FG_PROTOCOL
    if shape.tail == FG_TAIL_TEXT or shape.tail == FG_TAIL_RECORDS:
        memcpy(&stated, out.fixed + shape.count_at, sizeof(stated))
        out.items = stated
    elif shape.tail == FG_TAIL_ARRAY:
        out.items = c.left // shape.item_bytes + (c.left % shape.item_bytes != 0 or c.left == 0)
    elif shape.tail != FG_TAIL_NONE:
        out.items = c.left
    out.tail_bytes = out.items * shape.item_bytes
    out.tail = take(&c, out.tail_bytes, shape.tail_name)
    if out.tail == NULL:
        return FG_PROTOCOL
    if c.left:
        snprintf(why, why_bytes, "%s: body_bytes: found %u, expected %zu", shape.name, frame.body_bytes,
                 frame.body_bytes - c.left)
        return FG_PROTOCOL
    return FG_PROTOCOL if check_items(&c, frame.type, out) else FG_OK


cdef int body_check(const fg_frame_t *frame, const uint8_t *body, char *why, size_t why_bytes) noexcept nogil:
    cdef Body parts
    return body_parse(frame, body, &parts, why, why_bytes)
