from libc.stdint cimport uint64_t

from fakegpu._core.fg cimport fg_buffer_ref_t, fg_segment_t

cdef int segment_create(uint64_t bytes, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
cdef int segment_open(const fg_buffer_ref_t *ref, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
cdef int segment_map(int fd, fg_segment_t *out, char *why, size_t why_bytes) noexcept nogil
cdef void segment_close(fg_segment_t *segment) noexcept nogil
cdef int segment_check(const fg_segment_t *segment, uint64_t offset, uint64_t bytes) noexcept nogil
