/* The fields of the wire structs by name, for fakegpu/_core/wire.pyx alone.
 *
 * Only names are listed here, in the order of fg_wire.h; offsets, sizes and types are the compiler's. A test
 * checks that the listed fields tile each struct without a gap, so a field added to fg_wire.h cannot be missed.
 */
#ifndef FG_WIRE_TABLES_H
#define FG_WIRE_TABLES_H
#include <stddef.h>
#include "fg_wire.h"

typedef struct fg_field {
    const char *name;
    uint16_t offset, bytes;
    char kind; /* u unsigned, i signed, s string, b raw bytes, r fg_buffer_ref_t */
} fg_field_t;

typedef struct fg_record {
    const char *name; /* of the Python class */
    const fg_field_t *fields;
    uint16_t nfields, bytes;
} fg_record_t;

#define FG_FIELD_KIND(x)                                                                            \
    _Generic((x), uint8_t : 'u', uint16_t : 'u', uint32_t : 'u', uint64_t : 'u', int32_t : 'i',     \
             char * : 's', uint8_t * : 'b', fg_buffer_ref_t : 'r')
#define FG_FIELD(t, f) {#f, offsetof(t, f), sizeof(((t *)0)->f), FG_FIELD_KIND(((t *)0)->f)},

/* X(id, Python class, C type, fields) */
#define FG_RECORD_TABLE(X)                                                                          \
    X(FRAME, Frame, fg_frame_t, FG_FRAME_FIELDS)                                                    \
    X(HELLO, Hello, fg_hello_t, FG_HELLO_FIELDS)                                                    \
    X(WELCOME, Welcome, fg_welcome_t, FG_WELCOME_FIELDS)                                            \
    X(AUTH, Auth, fg_auth_t, FG_AUTH_FIELDS)                                                        \
    X(ERROR, Error, fg_error_t, FG_ERROR_FIELDS)                                                    \
    X(UNIQUE_ID, UniqueId, fg_unique_id_t, FG_UNIQUE_ID_FIELDS)                                     \
    X(COMM_INIT, CommInit, fg_comm_init_t, FG_COMM_INIT_FIELDS)                                     \
    X(COMM_SPLIT, CommSplit, fg_comm_split_t, FG_COMM_SPLIT_FIELDS)                                 \
    X(COMM_SHRINK, CommShrink, fg_comm_shrink_t, FG_COMM_SHRINK_FIELDS)                             \
    X(COMM_GROW, CommGrow, fg_comm_grow_t, FG_COMM_GROW_FIELDS)                                     \
    X(COMM_END, CommEnd, fg_comm_end_t, FG_COMM_END_FIELDS)                                         \
    X(COMM_READY, CommReady, fg_comm_ready_t, FG_COMM_READY_FIELDS)                                 \
    X(MEMBER, Member, fg_member_t, FG_MEMBER_FIELDS)                                                \
    X(BUFFER_REF, BufferRef, fg_buffer_ref_t, FG_BUFFER_REF_FIELDS)                                 \
    X(SUBMIT, Submit, fg_submit_t, FG_SUBMIT_FIELDS)                                                \
    X(OP, Op, fg_op_t, FG_OP_FIELDS)                                                                \
    X(GO, Go, fg_go_t, FG_GO_FIELDS)                                                                \
    X(DONE, Done, fg_done_t, FG_DONE_FIELDS)                                                        \
    X(COMPLETE, Complete, fg_complete_t, FG_COMPLETE_FIELDS)                                        \
    X(DATA, Data, fg_data_t, FG_DATA_FIELDS)                                                        \
    X(NOTE, Note, fg_note_t, FG_NOTE_FIELDS)

#define FG_FRAME_FIELDS(X, t) X(t, magic) X(t, type) X(t, flags) X(t, body_bytes) X(t, request) X(t, member) X(t, reserved)
#define FG_HELLO_FIELDS(X, t)                                                                       \
    X(t, version_major) X(t, version_minor) X(t, features) X(t, pid) X(t, role) X(t, timeout_ms)    \
    X(t, rank) X(t, world_size) X(t, local_rank) X(t, node) X(t, generation) X(t, compute_capability) \
    X(t, reserved) X(t, host) X(t, boot_id) X(t, session) X(t, program)
#define FG_WELCOME_FIELDS(X, t)                                                                     \
    X(t, version_major) X(t, version_minor) X(t, features) X(t, job) X(t, chunk_bytes) X(t, window) \
    X(t, max_payload_frame) X(t, eager_bytes) X(t, world_size) X(t, reserved) X(t, challenge)
#define FG_AUTH_FIELDS(X, t) X(t, digest)
#define FG_ERROR_FIELDS(X, t) X(t, status) X(t, text_bytes) X(t, opid)
#define FG_UNIQUE_ID_FIELDS(X, t) X(t, bytes)
#define FG_COMM_INIT_FIELDS(X, t)                                                                   \
    X(t, unique_id) X(t, nranks) X(t, rank) X(t, device) X(t, flags) X(t, timeout_ms) X(t, compute_capability) X(t, name)
#define FG_COMM_SPLIT_FIELDS(X, t) X(t, color) X(t, key) X(t, flags) X(t, timeout_ms) X(t, name)
#define FG_COMM_SHRINK_FIELDS(X, t) X(t, nexclude) X(t, flags) X(t, timeout_ms) X(t, reserved) X(t, name)
#define FG_COMM_GROW_FIELDS(X, t)                                                                   \
    X(t, unique_id) X(t, nranks) X(t, rank) X(t, device) X(t, flags) X(t, timeout_ms) X(t, reserved) X(t, name)
#define FG_COMM_END_FIELDS(X, t) X(t, status) X(t, text_bytes)
#define FG_COMM_READY_FIELDS(X, t) X(t, comm) X(t, member) X(t, flags) X(t, nranks) X(t, rank) X(t, control_slots) X(t, name) \
    X(t, control)
#define FG_MEMBER_FIELDS(X, t) X(t, global_rank) X(t, node) X(t, device) X(t, pid)
#define FG_BUFFER_REF_FIELDS(X, t) X(t, pid) X(t, fd) X(t, inode) X(t, offset) X(t, bytes)
#define FG_SUBMIT_FIELDS(X, t) X(t, nops) X(t, timeout_ms) X(t, issue_ns)
#define FG_OP_FIELDS(X, t)                                                                          \
    X(t, opid) X(t, seq) X(t, count) X(t, stream) X(t, kind) X(t, dtype) X(t, redop) X(t, reserved0) \
    X(t, root) X(t, flags) X(t, reserved1) X(t, scalar) X(t, peer_offset) X(t, buffer)
#define FG_GO_FIELDS(X, t) X(t, opid) X(t, flags) X(t, peer) X(t, count) X(t, peer_opid) X(t, buffer)
#define FG_DONE_FIELDS(X, t) X(t, opid) X(t, status) X(t, reserved) X(t, exec_ns) X(t, bytes)
#define FG_COMPLETE_FIELDS(X, t) X(t, opid) X(t, status) X(t, reserved)
#define FG_DATA_FIELDS(X, t) X(t, opid) X(t, round)
#define FG_NOTE_FIELDS(X, t) X(t, kind) X(t, text_bytes) X(t, status) X(t, reserved) X(t, opid)

#define FG_DEFINE_FIELDS(id, cls, t, fields) static const fg_field_t fg_fields_##id[] = {fields(FG_FIELD, t)};
FG_RECORD_TABLE(FG_DEFINE_FIELDS)

enum {
#define FG_RECORD_ID(id, cls, t, fields) FG_R_##id,
    FG_RECORD_TABLE(FG_RECORD_ID) FG_R_COUNT
};
static const fg_record_t FG_RECORDS[FG_R_COUNT] = {
#define FG_RECORD_ROW(id, cls, t, fields) {#cls, fg_fields_##id, sizeof(fg_fields_##id) / sizeof(fg_field_t), sizeof(t)},
    FG_RECORD_TABLE(FG_RECORD_ROW)
};

/* What follows the fixed part of a body. */
enum { FG_TAIL_NONE, FG_TAIL_TEXT, FG_TAIL_RECORDS, FG_TAIL_ARRAY, FG_TAIL_RAW, FG_TAIL_JSON };

typedef struct fg_shape {
    const char *name;
    int16_t fixed;  /* FG_R_*, -1 = none */
    int16_t record; /* FG_R_* of the array, -1 = none */
    uint8_t tail;
    uint8_t optional;   /* an empty body is right, too */
    uint16_t count_at;  /* offset of the stated number of records or bytes of text in the fixed part */
    uint32_t item_bytes; /* of one record */
    uint32_t max_bytes; /* of the body */
    const char *tail_name; /* the field of the tail, as Python calls it */
    const char *count_name;
} fg_shape_t;

#define FG_ONLY(id, t) [FG_T_##id] = {#id, FG_R_##id, -1, FG_TAIL_NONE, 0, 0, 0, sizeof(t), "", ""}
#define FG_BARE(id) [FG_T_##id] = {#id, -1, -1, FG_TAIL_NONE, 0, 0, 0, 0, "", ""}
#define FG_END(id) [FG_T_##id] = {#id, FG_R_COMM_END, -1, FG_TAIL_NONE, 0, 0, 0, sizeof(fg_comm_end_t), "", ""}
#define FG_TEXT(id, r, t)                                                                           \
    [FG_T_##id] = {#id, FG_R_##r, -1, FG_TAIL_TEXT, 0, offsetof(t, text_bytes), 1, FG_MAX_CONTROL_BYTES, "text", "text_bytes"}
#define FG_ITEMS(id, t, count, rec, bytes, tail)                                                    \
    [FG_T_##id] = {#id, FG_R_##id, rec, FG_TAIL_RECORDS, 0, offsetof(t, count), bytes, FG_MAX_CONTROL_BYTES, tail, #count}
#define FG_ARRAY(id, t) [FG_T_##id] = {#id, -1, FG_R_##id, FG_TAIL_ARRAY, 0, 0, sizeof(t), FG_MAX_CONTROL_BYTES, "records", ""}
#define FG_JSON(id) [FG_T_##id] = {#id, -1, -1, FG_TAIL_JSON, 1, 0, 1, FG_MAX_CONTROL_BYTES, "text", ""}

static const fg_shape_t FG_SHAPES[] = {
    FG_ONLY(HELLO, fg_hello_t),
    FG_ONLY(WELCOME, fg_welcome_t),
    FG_TEXT(ERROR, ERROR, fg_error_t),
    FG_BARE(ACK),
    [FG_T_UNIQUE_ID] = {"UNIQUE_ID", FG_R_UNIQUE_ID, -1, FG_TAIL_NONE, 1, 0, 0, sizeof(fg_unique_id_t), "", ""},
    FG_ONLY(COMM_INIT, fg_comm_init_t),
    FG_ITEMS(COMM_READY, fg_comm_ready_t, nranks, FG_R_MEMBER, sizeof(fg_member_t), "members"),
    FG_ONLY(COMM_SPLIT, fg_comm_split_t),
    FG_ITEMS(COMM_SHRINK, fg_comm_shrink_t, nexclude, -1, 4, "exclude"),
    FG_ONLY(COMM_GROW, fg_comm_grow_t),
    FG_END(COMM_FINALIZE),
    FG_END(COMM_DESTROY),
    FG_TEXT(COMM_ABORT, COMM_END, fg_comm_end_t),
    FG_ITEMS(SUBMIT, fg_submit_t, nops, FG_R_OP, sizeof(fg_op_t), "ops"),
    FG_ARRAY(GO, fg_go_t),
    FG_ARRAY(DONE, fg_done_t),
    FG_ARRAY(COMPLETE, fg_complete_t),
    [FG_T_DATA] = {"DATA", FG_R_DATA, -1, FG_TAIL_RAW, 0, 0, 1, FG_MAX_DATA_BYTES, "payload", ""},
    FG_BARE(PING),
    FG_JSON(STATUS),
    FG_BARE(SHUTDOWN),
    FG_BARE(BYE),
    FG_ONLY(AUTH, fg_auth_t),
    FG_TEXT(NOTE, NOTE, fg_note_t),
    FG_END(COMM_REVOKE),
    FG_JSON(QUERY),
};
#define FG_SHAPE_COUNT (sizeof(FG_SHAPES) / sizeof(FG_SHAPES[0]))

typedef struct fg_constant {
    const char *name;
    uint32_t value;
} fg_constant_t;
#define FG_C(x) {#x, x}
static const fg_constant_t FG_CONSTANTS[] = {
    FG_C(FG_WIRE_MAGIC), FG_C(FG_WIRE_VERSION_MAJOR), FG_C(FG_WIRE_VERSION_MINOR), FG_C(FG_UNIQUE_ID_BYTES),
    FG_C(FG_NAME_BYTES), FG_C(FG_TEXT_BYTES), FG_C(FG_MAX_CONTROL_BYTES), FG_C(FG_MAX_DATA_BYTES), FG_C(FG_MAX_RANKS),
    FG_C(FG_MAX_OPS_PER_FRAME), FG_C(FG_FEATURE_SHM), FG_C(FG_FEATURE_TOKEN), FG_C(FG_ROLE_RANK), FG_C(FG_ROLE_TOOL),
    FG_C(FG_COMM_SHM), FG_C(FG_COMM_NONBLOCKING), FG_C(FG_COMM_SHRINK_ABORT), FG_C(FG_COMM_GROW_NEW),
    FG_C(FG_OP_IN_PLACE), FG_C(FG_OP_STAGED), FG_C(FG_OP_EAGER), FG_C(FG_OP_SOCKET), FG_C(FG_OP_GROUPED),
    FG_C(FG_OP_CRASH), FG_C(FG_OP_CORRUPT), FG_C(FG_OP_DEVICE_ERROR), FG_C(FG_OP_BIT_SHIFT),
    FG_C(FG_NOTE_TEXT), FG_C(FG_NOTE_FAULT), FG_C(FG_NOTE_RECOVERY),
    FG_C(FG_ALL_REDUCE), FG_C(FG_REDUCE), FG_C(FG_BROADCAST), FG_C(FG_ALL_GATHER), FG_C(FG_REDUCE_SCATTER),
    FG_C(FG_ALL_TO_ALL), FG_C(FG_GATHER), FG_C(FG_SCATTER), FG_C(FG_SEND), FG_C(FG_RECV), FG_C(FG_BARRIER),
    FG_C(FG_PUT_SIGNAL), FG_C(FG_SIGNAL), FG_C(FG_WAIT_SIGNAL), FG_C(FG_KIND_COUNT),
    FG_C(FG_INT8), FG_C(FG_UINT8), FG_C(FG_INT32), FG_C(FG_UINT32), FG_C(FG_INT64), FG_C(FG_UINT64), FG_C(FG_FLOAT16),
    FG_C(FG_FLOAT32), FG_C(FG_FLOAT64), FG_C(FG_BFLOAT16), FG_C(FG_FLOAT8_E4M3), FG_C(FG_FLOAT8_E5M2),
    FG_C(FG_DTYPE_COUNT),
    FG_C(FG_SUM), FG_C(FG_PROD), FG_C(FG_MAX), FG_C(FG_MIN), FG_C(FG_AVG), FG_C(FG_PREMULSUM), FG_C(FG_REDOP_COUNT),
};
#define FG_CONSTANT_COUNT (sizeof(FG_CONSTANTS) / sizeof(FG_CONSTANTS[0]))
#endif
