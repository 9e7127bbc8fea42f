/* Writes to memory and waits for a value in memory, in stream order. A wait sleeps on the word itself: a write made by
 * one of these calls, in any process, wakes it at once; a word that something else changes is seen within a millisecond.
 */
#include "driver.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY_NS 1000000
#define WAIT_FLUSH (1u << 30)

enum { WAIT_GEQ = 0, WAIT_EQ = 1, WAIT_AND = 2, WAIT_NOR = 3, WAIT_KINDS = 3 };
enum { OP_WAIT_32 = 1, OP_WRITE_32 = 2, OP_FLUSH = 3, OP_WAIT_64 = 4, OP_WRITE_64 = 5, OP_BARRIER = 6 };

typedef struct memop {
    bool wait, wide;
    unsigned kind;
    uint64_t value;
    void *address;
} memop_t;

static uint64_t load(const memop_t *op) {
    return op->wide ? __atomic_load_n((uint64_t *)op->address, __ATOMIC_ACQUIRE)
                    : __atomic_load_n((uint32_t *)op->address, __ATOMIC_ACQUIRE);
}

/* the cyclic comparison of CU_STREAM_WAIT_VALUE_GEQ, and the bit tests */
static bool holds(const memop_t *op, uint64_t found) {
    switch (op->kind) {
    case WAIT_GEQ: return op->wide ? (int64_t)(found - op->value) >= 0 : (int32_t)((uint32_t)found - (uint32_t)op->value) >= 0;
    case WAIT_EQ: return found == op->value;
    case WAIT_AND: return (found & op->value) != 0;
    default: return (op->wide ? ~(found | op->value) : (uint64_t)(uint32_t)~(found | op->value)) != 0;
    }
}

static void run(void *arg) {
    memop_t *op = arg;
    if (!op->wait) {
        if (op->wide)
            __atomic_store_n((uint64_t *)op->address, op->value, __ATOMIC_RELEASE);
        else
            __atomic_store_n((uint32_t *)op->address, (uint32_t)op->value, __ATOMIC_RELEASE);
        syscall(SYS_futex, op->address, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    while (op->wait) {
        uint64_t found = load(op);
        if (holds(op, found))
            break;
        struct timespec most = {0, LOOK_EVERY_NS};
        if (syscall(SYS_futex, op->address, FUTEX_WAIT, (uint32_t)found, &most, NULL, 0) && errno != EAGAIN &&
            errno != ETIMEDOUT && errno != EINTR)
            nanosleep(&most, NULL); /* a word nobody can sleep on */
    }
    free(op);
}

static int give(const char *api, fg_stream_t *stream, memop_t op, unsigned flags) {
    uintptr_t at = (uintptr_t)op.address;
    if (!at || at % (op.wide ? 8 : 4))
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: address %p: expected an aligned word", api, op.address);
    if (op.wait ? (flags & ~WAIT_FLUSH) > WAIT_KINDS : flags > 1)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: flags 0x%x: unknown", api, flags);
    if (fg_rt_memory_kind(op.address) == FG_MEMORY_UNKNOWN)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: %p is not memory of a device or registered", api, op.address);
    if (fg_rt_stream_capturing(stream))
        return fg_rt_set_error(FG_CUDA(900), "%s: not possible while the stream captures", api);
    op.kind = flags & ~WAIT_FLUSH;
    memop_t *job = malloc(sizeof *job);
    if (!job)
        return fg_rt_set_error(FG_SYSTEM, "%s: out of host memory", api);
    *job = op;
    bool at_once = !op.wait || holds(&op, load(&op));
    int status = at_once ? fg_rt_stream_run(stream, run, job) : fg_rt_stream_enqueue(stream, run, job);
    if (status)
        free(job);
    return status;
}

static CUresult one(const char *api, CUstream handle, memop_t op, unsigned flags) {
    int status;
    FG_ENTER_CONTEXT();
    fg_stream_t *stream = fg_driver_stream(handle, &status);
    return fg_driver_answer(stream ? give(api, stream, op, flags) : status);
}

#define WORD(pointer) (void *)(uintptr_t)(pointer)
#define FORMS(bits, suffix)                                                                                       \
    FG_EXPORT CUresult cuStreamWriteValue##bits##suffix(CUstream s, CUdeviceptr at, uint##bits##_t value, unsigned f) { \
        return one("cuStreamWriteValue" #bits, s, (memop_t){false, bits == 64, 0, value, WORD(at)}, f);            \
    }                                                                                                             \
    FG_EXPORT CUresult cuStreamWaitValue##bits##suffix(CUstream s, CUdeviceptr at, uint##bits##_t value, unsigned f) { \
        return one("cuStreamWaitValue" #bits, s, (memop_t){true, bits == 64, 0, value, WORD(at)}, f);              \
    }

FORMS(32, _v2)
FORMS(64, _v2)
FORMS(32, )
FORMS(64, )

FG_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *ops,
                                         unsigned flags) {
    int status;
    FG_ENTER_CONTEXT();
    FG_REQUIRE(ops && count && count <= 256 && !flags, "cuStreamBatchMemOp: count %u, flags %u: expected 1 to 256, and 0",
               count, flags);
    fg_stream_t *stream = fg_driver_stream(handle, &status);
    for (unsigned i = 0; stream && !status && i < count; i++) {
        int kind = ops[i].operation;
        bool wide = kind == OP_WAIT_64 || kind == OP_WRITE_64, wait = kind == OP_WAIT_32 || kind == OP_WAIT_64;
        if (kind == OP_FLUSH || kind == OP_BARRIER)
            continue; /* one coherent memory: writes before are visible already */
        FG_REQUIRE(kind >= OP_WAIT_32 && kind <= OP_WRITE_64, "cuStreamBatchMemOp: operation %d: unknown", kind);
        memop_t op = {wait, wide, 0, wide ? ops[i].value.value64 : ops[i].value.value, WORD(ops[i].value.address)};
        status = give("cuStreamBatchMemOp", stream, op, ops[i].value.flags);
    }
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, const CUstreamBatchMemOpParams *ops, unsigned flags) {
    return cuStreamBatchMemOp_v2(stream, count, ops, flags);
}
