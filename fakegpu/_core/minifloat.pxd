from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    F32_INF = 0x7f800000

cdef union Bits:
    uint32_t u
    float f

cdef union Bits64:
    uint64_t u
    double f

cdef void widen(int dtype, const void *source, float *target, size_t n) noexcept nogil
cdef void narrow(int dtype, const float *source, void *target, size_t n) noexcept nogil
