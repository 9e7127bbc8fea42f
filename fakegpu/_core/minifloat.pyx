"""fp16, bf16 and fp8 to and from float32 in blocks, for reduce.pyx alone: rounding to nearest even, fp8 saturates.

Integer arithmetic without branches, so that the loops vectorise on any processor. A format is described by its
mantissa bits and by bias = 127 - its own exponent bias. bf16 needs no bias: its subnormals are those of float32.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t

from fakegpu._core.fg cimport FG_BFLOAT16, FG_FLOAT16, FG_FLOAT8_E4M3, FG_FLOAT8_E5M2


cdef inline uint32_t pick(bint which, uint32_t yes, uint32_t no) noexcept nogil:
    # a conditional expression becomes a branch in Cython's C, and branches keep gcc from vectorising
    return no ^ ((yes ^ no) & (0 - <uint32_t>which))


cdef inline float widen_bits(uint32_t code, uint32_t sign, int mantissa, uint32_t bias,
                             uint32_t special) noexcept nogil:
    """The value of a code without its sign bit; codes >= special are infinity or NaN."""
    cdef Bits x, tiny, unit
    x.u = (code << (23 - mantissa)) + (bias << 23)
    unit.u = (bias + 1) << 23
    tiny.u = (code << (23 - mantissa)) + unit.u  # a subnormal is 2**emin * (1 + m) - 2**emin, exactly
    tiny.f = tiny.f - unit.f
    x.u = pick(<int32_t>code < (<int32_t>1 << mantissa), tiny.u, x.u)
    x.u = pick(<int32_t>code >= <int32_t>special, x.u | <uint32_t>F32_INF, x.u) | sign
    return x.f


cdef inline uint32_t narrow_bits(float value, int mantissa, uint32_t bias, uint32_t most, uint32_t over,
                                 uint32_t nan) noexcept nogil:
    """The code (sign in bit 31) of a float rounded to nearest even; above `most` it is `over`."""
    cdef Bits x, tiny, unit
    cdef uint32_t sign, code
    x.f = value
    sign = x.u & <uint32_t>0x80000000
    x.u ^= sign
    # adding 2**(emin - mantissa + 23) leaves the rounded number of subnormal steps in the low bits
    unit.u = (bias + 1 + 23 - mantissa) << 23
    tiny.f = x.f + unit.f
    code = x.u + ((<uint32_t>1 << (22 - mantissa)) - 1) + ((x.u >> (23 - mantissa)) & 1)
    code = (code >> (23 - mantissa)) - (bias << mantissa)
    code = pick(<int32_t>x.u < <int32_t>((bias + 1) << 23), tiny.u - unit.u, code)
    code = pick(<int32_t>code > <int32_t>most, over, code) | sign
    return pick(<int32_t>x.u > F32_INF, nan, code)


cdef void widen(int dtype, const void *source, float *target, size_t n) noexcept nogil:
    cdef size_t i
    cdef const uint16_t *half = <const uint16_t *>source
    cdef const uint8_t *byte = <const uint8_t *>source
    cdef Bits x
    if dtype == FG_FLOAT16:
        for i in range(n):
            target[i] = widen_bits(half[i] & 0x7fff, (<uint32_t>half[i] & 0x8000) << 16, 10, 112, 0x7c00)
    elif dtype == FG_BFLOAT16:
        for i in range(n):
            x.u = <uint32_t>half[i] << 16
            target[i] = x.f
    elif dtype == FG_FLOAT8_E4M3:
        for i in range(n):
            target[i] = widen_bits(byte[i] & 0x7f, (<uint32_t>byte[i] & 0x80) << 24, 3, 120, 0x7f)
    elif dtype == FG_FLOAT8_E5M2:
        for i in range(n):
            target[i] = widen_bits(byte[i] & 0x7f, (<uint32_t>byte[i] & 0x80) << 24, 2, 112, 0x7c)


cdef void narrow(int dtype, const float *source, void *target, size_t n) noexcept nogil:
    cdef size_t i
    cdef uint32_t code
    cdef uint16_t *half = <uint16_t *>target
    cdef uint8_t *byte = <uint8_t *>target
    if dtype == FG_FLOAT16:
        for i in range(n):
            code = narrow_bits(source[i], 10, 112, 0x7bff, 0x7c00, 0x7fff)
            half[i] = <uint16_t>(code | code >> 16)
    elif dtype == FG_BFLOAT16:
        for i in range(n):
            code = narrow_bits(source[i], 7, 0, 0x7f7f, 0x7f80, 0x7fff)
            half[i] = <uint16_t>(code | code >> 16)
    elif dtype == FG_FLOAT8_E4M3:
        for i in range(n):
            code = narrow_bits(source[i], 3, 120, 0x7e, 0x7e, 0x7f)
            byte[i] = <uint8_t>(code | code >> 24)
    elif dtype == FG_FLOAT8_E5M2:
        for i in range(n):
            code = narrow_bits(source[i], 2, 112, 0x7b, 0x7b, 0x7f)
            byte[i] = <uint8_t>(code | code >> 24)
