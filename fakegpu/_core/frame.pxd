from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from fakegpu._core.fg cimport fg_frame_t, fg_shape_t

cdef struct Body:  # where the parts of a checked body lie
    const uint8_t *fixed
    const uint8_t *tail
    size_t tail_bytes
    size_t items

cdef const fg_shape_t *shape_of(uint16_t type) noexcept nogil
cdef int frame_write(uint8_t *out, uint16_t type, uint32_t request, uint64_t member,
                     uint64_t body_bytes) noexcept nogil
cdef int frame_check(const uint8_t *head, fg_frame_t *out, char *why, size_t why_bytes) noexcept nogil
cdef int body_check(const fg_frame_t *frame, const uint8_t *body, char *why, size_t why_bytes) noexcept nogil
cdef int body_parse(const fg_frame_t *frame, const uint8_t *bytes, Body *out, char *why,
                    size_t why_bytes) noexcept nogil
