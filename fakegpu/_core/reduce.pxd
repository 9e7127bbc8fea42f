from libc.stdint cimport uint32_t, uint64_t

cdef size_t dtype_size(int dtype) noexcept nogil
cdef int reduce_blocks(int dtype, int redop, size_t count, uint32_t nin, const void *const *inputs,
                       const uint64_t *scalars, uint32_t nout, void *const *outputs) noexcept nogil
