"""The C headers of include/ as Cython sees them. Declarations only; the headers are the truth."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "fg_status.h" nogil:
    enum:
        FG_OK
        FG_SYSTEM
        FG_INTERNAL
        FG_INVALID_ARGUMENT
        FG_PROTOCOL
        FG_LIMIT
        FG_OUT_OF_MEMORY


cdef extern from "fg_wire.h" nogil:
    enum:
        FG_WIRE_MAGIC
        FG_WIRE_VERSION_MAJOR
        FG_WIRE_VERSION_MINOR
        FG_MAX_OPS_PER_FRAME
        FG_MAX_RANKS
    enum:
        FG_T_HELLO
        FG_T_COMM_READY
        FG_T_SUBMIT
        FG_T_NOTE
        FG_KIND_COUNT
        FG_DTYPE_COUNT
        FG_REDOP_COUNT
        FG_ROLE_RANK
        FG_ROLE_TOOL
        FG_NOTE_TEXT
        FG_NOTE_RECOVERY
    enum:
        FG_INT8, FG_UINT8, FG_INT32, FG_UINT32, FG_INT64, FG_UINT64, FG_FLOAT16, FG_FLOAT32, FG_FLOAT64,
        FG_BFLOAT16, FG_FLOAT8_E4M3, FG_FLOAT8_E5M2
    enum:
        FG_SUM, FG_PROD, FG_MAX, FG_MIN, FG_AVG, FG_PREMULSUM
    ctypedef struct fg_frame_t:
        uint32_t magic
        uint16_t type
        uint16_t flags
        uint32_t body_bytes
        uint32_t request
        uint64_t member
        uint64_t reserved
    ctypedef struct fg_hello_t:
        uint32_t role
    ctypedef struct fg_data_t:
        uint64_t opid, round
    ctypedef struct fg_note_t:
        uint32_t kind
    ctypedef struct fg_buffer_ref_t:
        uint32_t pid
        int32_t fd
        uint64_t inode
        uint64_t offset
        uint64_t bytes
    ctypedef struct fg_op_t:
        uint8_t kind, dtype, redop


cdef extern from "fg_core.h" nogil:
    enum:
        FG_CORE_ABI_VERSION
        FG_CONTROL_MAGIC
        FG_CONTROL_SLOTS
    const char *FG_CORE_CAPSULE
    ctypedef struct fg_segment_t:
        uint8_t *base
        uint64_t bytes
        uint64_t inode
        int32_t fd
        uint32_t flags
    ctypedef struct fg_core_api_t:
        uint32_t abi_version
        uint32_t struct_size
        int (*frame_write)(uint8_t *out, uint16_t type, uint32_t request, uint64_t member,
                           uint64_t body_bytes) noexcept nogil
        int (*frame_check)(const uint8_t *head, fg_frame_t *out, char *why, size_t why_bytes) noexcept nogil
        int (*body_check)(const fg_frame_t *frame, const uint8_t *body, char *why, size_t why_bytes) noexcept nogil
        int (*reduce)(int dtype, int redop, size_t count, uint32_t nin, const void **inputs,
                      const uint64_t *scalars, uint32_t nout, void **outputs) noexcept nogil
        size_t (*dtype_size)(int dtype) noexcept nogil
        int (*segment_create)(uint64_t bytes, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
        int (*segment_open)(const fg_buffer_ref_t *ref, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
        int (*segment_map)(int fd, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
        void (*segment_close)(fg_segment_t *segment) noexcept nogil
        int (*segment_check)(const fg_segment_t *segment, uint64_t offset, uint64_t bytes) noexcept nogil
    ctypedef struct fg_control_barrier_t:
        uint32_t arrived
    ctypedef struct fg_control_rank_t:
        uint32_t busy, dead
    ctypedef struct fg_control_t:
        uint32_t magic, version, nranks, slots
        uint64_t comm, bytes
        uint32_t abort
    uint64_t fg_control_bytes(uint32_t nranks)
    fg_control_barrier_t *fg_control_barrier_at(fg_control_t *c, uint64_t seq)
    fg_control_rank_t *fg_control_rank_at(fg_control_t *c, uint32_t rank)


cdef extern from "fg_wire_tables.h" nogil:
    ctypedef struct fg_field_t:
        const char *name
        uint16_t offset, bytes
        char kind
    ctypedef struct fg_record_t:
        const char *name
        const fg_field_t *fields
        uint16_t nfields, bytes
    ctypedef struct fg_shape_t:
        const char *name
        int16_t fixed, record
        uint8_t tail, optional
        uint16_t count_at
        uint32_t item_bytes, max_bytes
        const char *tail_name
        const char *count_name
    ctypedef struct fg_constant_t:
        const char *name
        uint32_t value
    enum:
        FG_TAIL_NONE, FG_TAIL_TEXT, FG_TAIL_RECORDS, FG_TAIL_ARRAY, FG_TAIL_RAW, FG_TAIL_JSON
    enum:
        FG_R_COUNT, FG_R_FRAME, FG_R_BUFFER_REF
    const fg_record_t FG_RECORDS[]
    const fg_shape_t FG_SHAPES[]
    const fg_constant_t FG_CONSTANTS[]
    size_t FG_SHAPE_COUNT
    size_t FG_CONSTANT_COUNT
