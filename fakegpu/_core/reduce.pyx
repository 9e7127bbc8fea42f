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

ctypedef fused Signed:  # divided by a count; ordered as they are, or as the keys of floats
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

cdef inline const uint8_t *input_at(const Job *job, uint32_t k) noexcept nogil:
    return <const uint8_t *>job.inputs[k] + job.offset * dtype_size(job.dtype)


cdef void store(const Job *job, const void *block) noexcept nogil:
    cdef size_t size = dtype_size(job.dtype)
    cdef uint32_t j
    for j in range(job.nout):
        memcpy(<uint8_t *>job.outputs[j] + job.offset * size, block, job.n * size)


cdef Real real_scalar(const Job *job, uint32_t k, Real *kind) noexcept nogil:
    """The multiplier of input k in the dtype; 1/n of narrow types is rounded to fp32 first, as NCCL's host code does."""
    cdef float value, single
    cdef uint64_t raw
    cdef Bits64 wide
    if job.redop == FG_PREMULSUM:
        raw = job.scalars[k]
        if Real is double:
            wide.u = raw
            return wide.f
    elif Real is double:
        return 1.0 / <double>job.nin
    else:
        single = <float>(1.0 / <double>job.nin)
        memcpy(&raw, &single, sizeof(single))
        if job.dtype != FG_FLOAT32:
            raw = 0
            narrow(job.dtype, &single, &raw, 1)
    if job.dtype == FG_FLOAT32:
        memcpy(&value, &raw, sizeof(value))
    else:
        widen(job.dtype, &raw, &value, 1)
    return value


cdef void fold_real(Real *total, const Real *x, size_t n, bint multiply) noexcept nogil:
    cdef size_t i
    if multiply:
        for i in range(n):
            total[i] = total[i] * x[i]
    else:
        for i in range(n):
            total[i] = total[i] + x[i]


cdef void scale_real(Real *target, const Real *x, Real scalar, size_t n) noexcept nogil:
    cdef size_t i
    for i in range(n):
        target[i] = x[i] * scalar


cdef void fix_nan(Real *total, size_t n) noexcept nogil:
    """Which NaN an addition passes on depends on the order the compiler chose; make it one."""
    cdef size_t i
    cdef Real nan
    memset(&nan, 0xff, sizeof(nan))
    (<uint8_t *>&nan)[sizeof(nan) - 1] = 0x7f
    for i in range(n):
        total[i] = total[i] if total[i] == total[i] else nan


cdef void reduce_real(const Job *job, Real *total, Real *x) noexcept nogil:
    """sum, prod, avg and premulsum of floats."""
    cdef bint is_narrow = dtype_size(job.dtype) < 4
    cdef bint scaled = job.redop == FG_AVG or job.redop == FG_PREMULSUM
    cdef const Real *source
    cdef uint32_t k
    for k in range(job.nin):
        source = <const Real *>input_at(job, k)
        if is_narrow:
            if Real is float:
                widen(job.dtype, source, x if k else total, job.n)
            source = x if k else total
        if scaled:
            scale_real(x if k else total, source, real_scalar(job, k, x), job.n)
            source = x
        if k:
            fold_real(total, source, job.n, job.redop == FG_PROD)
        elif not is_narrow and not scaled:
            memcpy(total, source, job.n * sizeof(Real))
    if is_narrow:
        if Real is float:
            narrow(job.dtype, total, x, job.n)
        store(job, x)
    else:
        fix_nan(total, job.n)
        store(job, total)


cdef void divide(Signed *total, size_t n, int64_t by) noexcept nogil:
    cdef size_t i
    for i in range(n):
        total[i] = <Signed>(total[i] / by)


cdef void reduce_words(const Job *job, Word *total) noexcept nogil:
    """sum, prod, avg and premulsum of integers."""
    cdef const Word *x
    cdef Word scalar
    cdef uint32_t k
    cdef size_t i
    for k in range(job.nin):
        x = <const Word *>input_at(job, k)
        if job.redop == FG_PREMULSUM:
            scalar = <Word>job.scalars[k]
            for i in range(job.n):
                total[i] = <Word>((total[i] if k else 0) + x[i] * scalar)
        elif k == 0:
            memcpy(total, x, job.n * sizeof(Word))
        elif job.redop == FG_PROD:
            for i in range(job.n):
                total[i] = <Word>(total[i] * x[i])
        else:
            for i in range(job.n):
                total[i] = <Word>(total[i] + x[i])
    if job.redop == FG_AVG:
        if job.dtype == FG_INT8:
            divide(<int8_t *>total, job.n, job.nin)
        elif job.dtype == FG_INT32:
            divide(<int32_t *>total, job.n, job.nin)
        elif job.dtype == FG_INT64:
            divide(<int64_t *>total, job.n, job.nin)
        else:
            for i in range(job.n):
                total[i] = <Word>(total[i] / job.nin)
    store(job, total)


cdef inline Ordered key_of(Ordered code, uint64_t infinity, bint greatest) noexcept nogil:
    """Floats in the order of their values: flip the negative ones; a NaN wins. Its own inverse without NaN."""
    cdef Ordered most
    if Ordered is int8_t or Ordered is int16_t or Ordered is int32_t or Ordered is int64_t:
        most = <Ordered>((<uint64_t>1 << (8 * sizeof(Ordered) - 1)) - 1)
        if infinity:
            if (code & most) > <Ordered>infinity:
                return most if greatest else <Ordered>(-most - 1)
            return code ^ most if code < 0 else code
    return code


cdef void reduce_order(const Job *job, Ordered *total, uint64_t infinity) noexcept nogil:
    """max and min; infinity: the code above which a float is NaN, 0 for integers."""
    cdef const Ordered *x
    cdef bint greatest = job.redop == FG_MAX
    cdef Ordered key
    cdef uint32_t k
    cdef size_t i
    for k in range(job.nin):
        x = <const Ordered *>input_at(job, k)
        if k == 0:
            for i in range(job.n):
                total[i] = key_of(x[i], infinity, greatest)
        elif greatest:
            for i in range(job.n):
                key = key_of(x[i], infinity, True)
                total[i] = key if key > total[i] else total[i]
        else:
            for i in range(job.n):
                key = key_of(x[i], infinity, False)
                total[i] = key if key < total[i] else total[i]
    if infinity:
        for i in range(job.n):
            total[i] = code_of(total[i])
    store(job, total)


cdef inline Ordered code_of(Ordered key) noexcept nogil:
    cdef Ordered most
    if Ordered is int8_t or Ordered is int16_t or Ordered is int32_t or Ordered is int64_t:
        most = <Ordered>((<uint64_t>1 << (8 * sizeof(Ordered) - 1)) - 1)
        # the key of a NaN that won a minimum is the least one
        return most if key == <Ordered>(-most - 1) else (key ^ most if key < 0 else key)
    return key


cdef void reduce_block(const Job *job, uint8_t *work) noexcept nogil:
    cdef int t = job.dtype
    if job.redop == FG_MAX or job.redop == FG_MIN:
        if t == FG_INT8:
            reduce_order(job, <int8_t *>work, 0)
        elif t == FG_UINT8:
            reduce_order(job, <uint8_t *>work, 0)
        elif t == FG_INT32:
            reduce_order(job, <int32_t *>work, 0)
        elif t == FG_UINT32:
            reduce_order(job, <uint32_t *>work, 0)
        elif t == FG_INT64:
            reduce_order(job, <int64_t *>work, 0)
        elif t == FG_UINT64:
            reduce_order(job, <uint64_t *>work, 0)
        elif t == FG_FLOAT64:
            reduce_order(job, <int64_t *>work, <uint64_t>0x7ff0000000000000)
        elif t == FG_FLOAT32:
            reduce_order(job, <int32_t *>work, F32_INF)
        elif t == FG_FLOAT16 or t == FG_BFLOAT16:
            reduce_order(job, <int16_t *>work, 0x7c00 if t == FG_FLOAT16 else 0x7f80)
        else:
            reduce_order(job, <int8_t *>work, 0x7e if t == FG_FLOAT8_E4M3 else 0x7c)
    elif t == FG_FLOAT64:
        reduce_real(job, <double *>work, <double *>(work + BLOCK_BYTES))
    elif t >= FG_FLOAT16:
        reduce_real(job, <float *>work, <float *>(work + BLOCK_BYTES))
    elif dtype_size(t) == 1:
        reduce_words(job, <uint8_t *>work)
    elif dtype_size(t) == 4:
        reduce_words(job, <uint32_t *>work)
    else:
        reduce_words(job, <uint64_t *>work)


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
    job.offset = 0
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
            raise ValueError(f"reduce: scalars: found {scalars if scalars is None else len(scalars)}, expected {ins.held}")
        factors = array("Q", scalars)
    refuse_overlap(ins, outs)
    cdef const uint64_t *raw = &factors[0] if factors is not None else NULL
    with nogil:
        reduce_blocks(dtype, redop, ins.bytes // size, ins.held, <const void *const *>ins.pointers, raw,
                      outs.held, <void *const *>outs.pointers)
