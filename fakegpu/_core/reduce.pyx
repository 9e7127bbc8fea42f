# distutils: extra_compile_args = -ffp-contract=off
"""Reductions over all NCCL dtypes: the arithmetic every rank, transport and test of fakegpu relies on.

Inputs are combined in rank order, element by element, so the bits depend on nothing else (not on chunking, the
number of outputs or threads). One input under anything but premulsum is a copy.
Integers: sum, prod and premulsum wrap; avg is the wrapped sum divided by the number of inputs, toward zero.
Floats, sum and prod: fp64 in fp64, all others in fp32; fp16, bf16 and fp8 are rounded once, to nearest even, at the
end; fp16 and bf16 overflow to infinity, fp8 saturates (an infinite e5m2 sum, too) to the largest finite value.
Floats, avg and premulsum: each element times the scalar (avg: 1/n), which is rounded to the dtype first; products
and sums as above, no fused multiply-add.
Floats, max and min: one of the inputs, unrounded; -0 is below +0; any NaN makes the result NaN.
Every NaN that comes out of arithmetic is CUDA's canonical one (all bits but the sign set), hence the same everywhere.
Infinities are e5m2's only: e4m3 is "fn", 0x7f is NaN and 0x7e 448.
"""

from array import array

from cpython.buffer cimport PyBUF_ANY_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from fakegpu._core.fg cimport *
from fakegpu._core.minifloat cimport F32_INF, Bits64, narrow, widen

cdef enum:
    BLOCK = 2048  # elements worked on at once: the working blocks stay in the L1 cache
    BLOCK_BYTES = 16384  # of the widest type
    WORK_WORDS = 4096  # two such blocks

cdef struct Job:  # one block of a reduction
    int dtype, redop
    size_t size  # of an element
    size_t offset, n  # elements
    uint32_t nin, nout
    const void *const *inputs
    const uint64_t *scalars
    void *const *outputs

ctypedef fused Real:
    float
    double

ctypedef fused Word:  # sums and products of integers, wrapping
    uint8_t
    uint32_t
    uint64_t

ctypedef fused Key:  # floats as integers of the same order
    int8_t
    int16_t
    int32_t
    int64_t

ctypedef fused Ordered:
    int8_t
    uint8_t
    int16_t
    int32_t
    uint32_t
    int64_t
    uint64_t


cdef size_t dtype_size(int dtype) noexcept nogil:
    if dtype == FG_INT8 or dtype == FG_UINT8 or dtype == FG_FLOAT8_E4M3 or dtype == FG_FLOAT8_E5M2:
        return 1
    if dtype == FG_FLOAT16 or dtype == FG_BFLOAT16:
        return 2
    if dtype == FG_INT32 or dtype == FG_UINT32 or dtype == FG_FLOAT32:
        return 4
    if dtype == FG_INT64 or dtype == FG_UINT64 or dtype == FG_FLOAT64:
        return 8
    return 0


# ---- one block -----------------------------------------------------------------------------------------------

cdef inline const void *input_at(const Job *job, uint32_t k) noexcept nogil:
    return <const uint8_t *>job.inputs[k] + job.offset * job.size


cdef inline void *output_at(const Job *job, uint32_t j) noexcept nogil:
    return <uint8_t *>job.outputs[j] + job.offset * job.size


cdef Real real_scalar(const Job *job, uint32_t k, Real *kind) noexcept nogil:
    """The multiplier of input k in the dtype; 1/n of narrow types goes through fp32, as in NCCL's host code."""
    cdef float value
    cdef uint64_t raw
    cdef Bits64 wide
    if Real is double:
        wide.u = job.scalars[k] if job.redop == FG_PREMULSUM else 0
        return wide.f if job.redop == FG_PREMULSUM else 1.0 / <double>job.nin
    else:
        value = <float>(1.0 / <double>job.nin)
        if job.redop == FG_PREMULSUM:
            raw = job.scalars[k]
        elif job.dtype == FG_FLOAT32:
            return value
        else:
            narrow(job.dtype, &value, &raw, 1)
        if job.dtype == FG_FLOAT32:
            memcpy(&value, &raw, sizeof(value))
        else:
            widen(job.dtype, &raw, &value, 1)
        return value


cdef void fold_real(Real *target, const Real *a, const Real *b, size_t n, bint multiply) noexcept nogil:
    cdef size_t i
    if multiply:
        for i in range(n):
            target[i] = a[i] * b[i]
    else:
        for i in range(n):
            target[i] = a[i] + b[i]


cdef void scale_real(Real *target, const Real *x, Real scalar, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = x[i] * scalar


cdef void copy_fixing_nan(Real *target, const Real *total, size_t n) noexcept nogil:
    """Which NaN an addition passes on depends on the order the compiler chose; make it one."""
    cdef size_t i
    cdef Real nan
    memset(&nan, 0xff, sizeof(nan))
    (<uint8_t *>&nan)[sizeof(nan) - 1] = 0x7f
    for i in range(n):
        target[i] = total[i] if total[i] == total[i] else nan


cdef const Real *load_real(const Job *job, uint32_t k, Real *scratch) noexcept nogil:
    """Input k as working type, multiplied if the operation says so: in scratch, or where it is."""
    cdef const Real *source = <const Real *>input_at(job, k)
    if Real is float:
        if job.size < sizeof(float):
            widen(job.dtype, source, scratch, job.n)
            source = scratch
    if job.redop == FG_AVG or job.redop == FG_PREMULSUM:
        scale_real(scratch, source, real_scalar(job, k, scratch), job.n)
        source = scratch
    return source


cdef void reduce_real(const Job *job, Real *total, Real *scratch) noexcept nogil:
    """sum, prod, avg and premulsum of floats."""
    cdef const Real *first = load_real(job, 0, total)
    cdef uint32_t k
    for k in range(1, job.nin):
        fold_real(total, first, load_real(job, k, scratch), job.n, job.redop == FG_PROD)
        first = total
    if Real is float:
        if job.size < sizeof(float):
            narrow(job.dtype, first, output_at(job, 0), job.n)
            return
    copy_fixing_nan(<Real *>output_at(job, 0), first, job.n)


cdef void divide_words(const Job *job, Word *total) noexcept nogil:
    cdef size_t i
    if job.dtype == FG_INT8:
        for i in range(job.n):
            total[i] = <Word>(<int32_t><int8_t>total[i] / <int32_t>job.nin)
    elif job.dtype == FG_INT32:
        for i in range(job.n):
            total[i] = <Word>(<int32_t>total[i] / <int32_t>job.nin)
    elif job.dtype == FG_INT64:
        for i in range(job.n):
            total[i] = <Word>(<int64_t>total[i] / <int64_t>job.nin)
    else:
        for i in range(job.n):
            total[i] = <Word>(total[i] / job.nin)


cdef void reduce_words(const Job *job, Word *total) noexcept nogil:
    """sum, prod, avg and premulsum of integers."""
    cdef const Word *x
    cdef const Word *first = <const Word *>input_at(job, 0)
    cdef Word *target = total
    cdef Word scalar
    cdef uint32_t k
    cdef size_t i
    if job.redop == FG_PREMULSUM:
        memset(total, 0, job.n * sizeof(Word))
        first = total
    for k in range(0 if job.redop == FG_PREMULSUM else 1, job.nin):
        x = <const Word *>input_at(job, k)
        if k == job.nin - 1:
            target = <Word *>output_at(job, 0)  # in place is fine: element i is read before it is written
        if job.redop == FG_PREMULSUM:
            scalar = <Word>job.scalars[k]
            for i in range(job.n):
                target[i] = <Word>(first[i] + x[i] * scalar)
        elif job.redop == FG_PROD:
            for i in range(job.n):
                target[i] = <Word>(first[i] * x[i])
        else:
            for i in range(job.n):
                target[i] = <Word>(first[i] + x[i])
        first = total
    if job.redop == FG_AVG:
        divide_words(job, target)


cdef void keys_of_codes(Key *keys, const Key *codes, Key infinity, bint greatest, size_t n) noexcept nogil:
    """Floats as integers in the order of their values: magnitudes of negative ones are flipped; a NaN beats all."""
    cdef Key most = <Key>((<uint64_t>1 << (8 * sizeof(Key) - 1)) - 1), winner = most if greatest else <Key>(-most - 1)
    cdef Key key, nan
    cdef size_t i
    for i in range(n):
        key = codes[i] ^ (most & (codes[i] >> (8 * sizeof(Key) - 1)))
        nan = <Key>-<Key>((codes[i] & most) > infinity)
        keys[i] = key ^ ((key ^ winner) & nan)


cdef void codes_of_keys(Key *codes, const Key *keys, size_t n) noexcept nogil:
    cdef Key most = <Key>((<uint64_t>1 << (8 * sizeof(Key) - 1)) - 1)
    cdef Key code, nan
    cdef size_t i
    for i in range(n):
        code = keys[i] ^ (most & (keys[i] >> (8 * sizeof(Key) - 1)))
        nan = <Key>-<Key>(keys[i] == -most - 1)  # a NaN that won a minimum
        codes[i] = code & <Key>(most | ~nan)


cdef void fold_order(Ordered *target, const Ordered *a, const Ordered *b, size_t n, bint greatest) noexcept nogil:
    cdef size_t i
    if greatest:
        for i in range(n):
            target[i] = a[i] if a[i] > b[i] else b[i]
    else:
        for i in range(n):
            target[i] = a[i] if a[i] < b[i] else b[i]


cdef void order_integers(const Job *job, Ordered *total) noexcept nogil:
    cdef const Ordered *first = <const Ordered *>input_at(job, 0)
    cdef Ordered *target = total
    cdef uint32_t k
    for k in range(1, job.nin):
        if k == job.nin - 1:
            target = <Ordered *>output_at(job, 0)
        fold_order(target, first, <const Ordered *>input_at(job, k), job.n, job.redop == FG_MAX)
        first = total


cdef void order_floats(const Job *job, Key *total, Key *scratch, Key infinity) noexcept nogil:
    """infinity: the code above which, sign apart, all are NaN."""
    cdef uint32_t k
    keys_of_codes(total, <const Key *>input_at(job, 0), infinity, job.redop == FG_MAX, job.n)
    for k in range(1, job.nin):
        keys_of_codes(scratch, <const Key *>input_at(job, k), infinity, job.redop == FG_MAX, job.n)
        fold_order(total, total, scratch, job.n, job.redop == FG_MAX)
    codes_of_keys(<Key *>output_at(job, 0), total, job.n)


cdef void order_block(const Job *job, uint8_t *work, uint8_t *more) noexcept nogil:
    cdef int t = job.dtype
    if t == FG_INT8:
        order_integers(job, <int8_t *>work)
    elif t == FG_UINT8:
        order_integers(job, <uint8_t *>work)
    elif t == FG_INT32:
        order_integers(job, <int32_t *>work)
    elif t == FG_UINT32:
        order_integers(job, <uint32_t *>work)
    elif t == FG_INT64:
        order_integers(job, <int64_t *>work)
    elif t == FG_UINT64:
        order_integers(job, <uint64_t *>work)
    elif t == FG_FLOAT64:
        order_floats(job, <int64_t *>work, <int64_t *>more, <int64_t>0x7ff0000000000000)
    elif t == FG_FLOAT32:
        order_floats(job, <int32_t *>work, <int32_t *>more, F32_INF)
    elif t == FG_FLOAT16 or t == FG_BFLOAT16:
        order_floats(job, <int16_t *>work, <int16_t *>more, 0x7c00 if t == FG_FLOAT16 else 0x7f80)
    else:
        order_floats(job, <int8_t *>work, <int8_t *>more, 0x7e if t == FG_FLOAT8_E4M3 else 0x7c)


cdef void reduce_block(const Job *job, uint8_t *work) noexcept nogil:
    """The block into output 0, and copies of it into the others."""
    cdef int t = job.dtype
    cdef uint8_t *more = work + BLOCK_BYTES
    cdef uint32_t j
    if job.redop == FG_MAX or job.redop == FG_MIN:
        order_block(job, work, more)
    elif t == FG_FLOAT64:
        reduce_real(job, <double *>work, <double *>more)
    elif t >= FG_FLOAT16:
        reduce_real(job, <float *>work, <float *>more)
    elif job.size == 1:
        reduce_words(job, <uint8_t *>work)
    elif job.size == 4:
        reduce_words(job, <uint32_t *>work)
    else:
        reduce_words(job, <uint64_t *>work)
    for j in range(1, job.nout):
        memcpy(output_at(job, j), output_at(job, 0), job.n * job.size)


cdef int reduce_blocks(int dtype, int redop, size_t count, uint32_t nin, const void *const *inputs,
                       const uint64_t *scalars, uint32_t nout, void *const *outputs) noexcept nogil:
    cdef uint64_t work[WORK_WORDS]
    cdef Job job
    cdef uint32_t j
    cdef size_t size = dtype_size(dtype)
    if size == 0 or redop < 0 or redop >= FG_REDOP_COUNT or nin == 0 or nout == 0 or inputs == NULL or outputs == NULL:
        return FG_INVALID_ARGUMENT
    if redop == FG_PREMULSUM and scalars == NULL:
        return FG_INVALID_ARGUMENT
    if count == 0:
        return FG_OK
    if nin == 1 and redop != FG_PREMULSUM:
        for j in range(nout):
            if outputs[j] != inputs[0]:
                memcpy(outputs[j], inputs[0], count * size)
        return FG_OK
    job.dtype, job.redop, job.nin, job.nout = dtype, redop, nin, nout
    job.inputs, job.scalars, job.outputs = inputs, scalars, outputs
    job.size, job.offset = size, 0
    while job.offset < count:
        job.n = min(<size_t>BLOCK, count - job.offset)
        reduce_block(&job, <uint8_t *>work)
        job.offset += job.n
    return FG_OK


# ---- Python --------------------------------------------------------------------------------------------------

cdef class Views:
    """Contiguous buffers of Python objects, held until this object goes."""
    cdef Py_buffer *views
    cdef void **pointers
    cdef Py_ssize_t held, bytes

    def __cinit__(self, str what, buffers, int flags):
        cdef Py_ssize_t n = len(buffers)
        if n == 0:
            raise ValueError(f"reduce: {what}: found none, expected at least one buffer")
        self.views = <Py_buffer *>calloc(n, sizeof(Py_buffer))
        self.pointers = <void **>calloc(n, sizeof(void *))
        if self.views == NULL or self.pointers == NULL:
            raise MemoryError
        for buffer in buffers:
            PyObject_GetBuffer(buffer, &self.views[self.held], flags)
            self.pointers[self.held] = self.views[self.held].buf
            self.held += 1
            if self.views[self.held - 1].len != self.views[0].len:
                raise ValueError(f"reduce: {what}[{self.held - 1}]: found {self.views[self.held - 1].len} bytes, "
                                 f"expected {self.views[0].len}")
        self.bytes = self.views[0].len

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])
        free(self.views)
        free(self.pointers)


cdef int refuse_overlap(Views ins, Views outs) except -1:
    cdef Py_ssize_t j, k
    for j in range(outs.held):
        for k in range(ins.held):
            if 0 < abs(<Py_ssize_t>outs.pointers[j] - <Py_ssize_t>ins.pointers[k]) < ins.bytes:
                raise ValueError(f"reduce: outputs[{j}]: found a partial overlap with inputs[{k}], expected the same "
                                 "buffer or another")
    return 0


def reduce(int dtype, int redop, inputs, outputs, scalars=None):
    """outputs[j][i] = op over k of inputs[k][i]; any contiguous buffers of equal size; without the GIL.

    scalars: for PREMULSUM, one multiplier per input as raw bits in the dtype. An output may be one of the inputs.
    """
    cdef size_t size = dtype_size(dtype)
    cdef uint64_t[::1] factors = None
    if size == 0:
        raise ValueError(f"reduce: dtype: found {dtype}, expected 0 to {FG_DTYPE_COUNT - 1}")
    if not 0 <= redop < FG_REDOP_COUNT:
        raise ValueError(f"reduce: redop: found {redop}, expected 0 to {FG_REDOP_COUNT - 1}")
    cdef Views ins = Views("inputs", inputs, PyBUF_ANY_CONTIGUOUS)
    cdef Views outs = Views("outputs", outputs, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
    if outs.bytes != ins.bytes or ins.bytes % size:
        raise ValueError(f"reduce: outputs: found {outs.bytes} bytes, expected {ins.bytes}, a multiple of {size}")
    if redop == FG_PREMULSUM:
        if scalars is None or len(scalars) != ins.held:
            found = None if scalars is None else len(scalars)
            raise ValueError(f"reduce: scalars: found {found}, expected {ins.held}")
        factors = array("Q", scalars)
    refuse_overlap(ins, outs)
    cdef const uint64_t *raw = &factors[0] if factors is not None else NULL
    with nogil:
        reduce_blocks(dtype, redop, ins.bytes // size, ins.held, <const void *const *>ins.pointers, raw,
                      outs.held, <void *const *>outs.pointers)
