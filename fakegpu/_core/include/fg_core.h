/* What fakegpu._core offers to C without the GIL, and the shared control segment of a communicator.
 *
 * The capsule "fakegpu._core.capi.C_API" holds a const fg_core_api_t *. Import fakegpu._core.capi first, then
 * PyCapsule_Import. Check abi_version and struct_size before use. Every function is thread-safe, needs no GIL,
 * never raises, returns an fg_status_t and, where it takes `why`, leaves one line of text there on failure.
 */
#ifndef FG_CORE_H
#define FG_CORE_H
#include <stddef.h>
#include <stdint.h>
#include "fg_status.h"
#include "fg_wire.h"

#define FG_CORE_ABI_VERSION 1u
#define FG_CORE_CAPSULE "fakegpu._core.capi.C_API"

/* An anonymous shared segment (memfd). It has no name, so nothing can outlive its last user. */
typedef struct fg_segment {
    uint8_t *base; /* NULL = not mapped */
    uint64_t bytes;
    uint64_t inode;
    int32_t fd; /* -1 = not owned */
    uint32_t flags;
} fg_segment_t;

typedef struct fg_core_api {
    uint32_t abi_version;
    uint32_t struct_size;

    /* wire */
    int (*frame_write)(uint8_t out[32], uint16_t type, uint32_t request, uint64_t member, uint64_t body_bytes);
    int (*frame_check)(const uint8_t head[32], fg_frame_t *out, char *why, size_t why_bytes);
    /* body length fits the type: fixed part, whole records, stated text length, limits; enums in range */
    int (*body_check)(const fg_frame_t *frame, const uint8_t *body, char *why, size_t why_bytes);

    /* reduce: out[j][i] = op over k = 0..nin-1 of in[k][i], the same bits in every out. An out may be the same
     * pointer as an in (in place); partial overlaps are the caller's bug. scalars: nin raw multipliers in dtype
     * for FG_PREMULSUM, else NULL. Arithmetic: see fakegpu/_core/reduce.pyx. nin, nout >= 1. */
    int (*reduce)(int dtype, int redop, size_t count, uint32_t nin, const void *const *in,
                  const uint64_t *scalars, uint32_t nout, void *const *out);
    size_t (*dtype_size)(int dtype); /* 0 = unknown */

    /* staging */
    int (*segment_create)(uint64_t bytes, fg_segment_t *out, char *why, size_t why_bytes);
    int (*segment_open)(const fg_buffer_ref_t *ref, fg_segment_t *out, char *why, size_t why_bytes); /* whole segment */
    int (*segment_map)(int fd, fg_segment_t *out, char *why, size_t why_bytes); /* takes the descriptor over */
    void (*segment_close)(fg_segment_t *segment);
    int (*segment_check)(const fg_segment_t *segment, uint64_t offset, uint64_t bytes); /* FG_OK or FG_LIMIT */
} fg_core_api_t;

/* ---- control segment: one per shared-memory communicator, made by the coordinator ------------------------- */

#define FG_CONTROL_MAGIC 0x4c525443u /* "CTRL" */
#define FG_CONTROL_SLOTS 64u         /* collectives a member may have outstanding */
#define FG_INLINE_BYTES 4096u        /* inputs up to this may lie in the control segment itself, one area per slot ... */
#define FG_INLINE_RANKS 64u          /* ... in communicators of up to so many ranks */

typedef struct fg_slot { /* what rank r brought to the collective with seq % FG_CONTROL_SLOTS == index; 128 bytes */
    uint64_t seq;
    uint64_t scalar;
    fg_buffer_ref_t in;  /* pid 0: read the staging area instead */
    fg_buffer_ref_t out;
    fg_buffer_ref_t stage; /* 2 * stage_bytes: input area, then output area; pid 0 when both in and out are mappable */
    uint64_t stage_bytes;
    uint64_t reserved;
} fg_slot_t;

typedef struct fg_control_rank { /* one cache line */
    uint32_t busy; /* atomic: 1 while this rank may read or write peers' memory (set, then check abort) */
    uint32_t dead; /* atomic: set by the coordinator when the rank's process is gone */
    uint32_t pad[14];
} fg_control_rank_t;

typedef struct fg_control_barrier { /* one cache line per slot index */
    uint32_t arrived; /* atomic and futex word: counts arrivals for ever; every operation on a slot takes the same
                         number of rounds on all ranks, so each rank knows the value to wait for */
    uint32_t pad[15];
} fg_control_barrier_t;

typedef struct fg_control {
    uint32_t magic, version;
    uint32_t nranks, slots;
    uint64_t comm;
    uint64_t bytes;
    uint32_t abort; /* atomic and futex word: 0, or an fg_status_t */
    uint32_t pad[7];
    /* then, in this order, each 64-byte aligned:
     *   fg_control_barrier_t barrier[slots];
     *   fg_control_rank_t    rank[nranks];
     *   fg_slot_t            slot[nranks][slots];
     *   uint8_t              inputs[nranks][slots][FG_INLINE_BYTES]; (none above FG_INLINE_RANKS) */
} fg_control_t;

static inline uint64_t fg_control_fixed_bytes(uint32_t nranks) {
    return sizeof(fg_control_t) + FG_CONTROL_SLOTS * sizeof(fg_control_barrier_t) +
           (uint64_t)nranks * (sizeof(fg_control_rank_t) + FG_CONTROL_SLOTS * sizeof(fg_slot_t));
}
static inline uint64_t fg_control_bytes(uint32_t nranks) {
    uint64_t areas = nranks <= FG_INLINE_RANKS ? (uint64_t)nranks * FG_CONTROL_SLOTS : 0;
    return fg_control_fixed_bytes(nranks) + areas * FG_INLINE_BYTES;
}
static inline fg_control_barrier_t *fg_control_barrier_at(fg_control_t *c, uint64_t seq) {
    return (fg_control_barrier_t *)(c + 1) + seq % FG_CONTROL_SLOTS;
}
static inline fg_control_rank_t *fg_control_rank_at(fg_control_t *c, uint32_t rank) {
    return (fg_control_rank_t *)((fg_control_barrier_t *)(c + 1) + FG_CONTROL_SLOTS) + rank;
}
static inline fg_slot_t *fg_control_slot_at(fg_control_t *c, uint32_t rank, uint64_t seq) {
    return (fg_slot_t *)((fg_control_rank_t *)((fg_control_barrier_t *)(c + 1) + FG_CONTROL_SLOTS) + c->nranks) +
           (uint64_t)rank * FG_CONTROL_SLOTS + seq % FG_CONTROL_SLOTS;
}
static inline uint8_t *fg_control_inputs_at(fg_control_t *c, uint32_t rank, uint64_t seq) {
    return (uint8_t *)c + fg_control_fixed_bytes(c->nranks) +
           ((uint64_t)rank * FG_CONTROL_SLOTS + seq % FG_CONTROL_SLOTS) * FG_INLINE_BYTES;
}

/* ---- rounds: shared memory staging and socket payloads cut a collective the same way ---------------------- */

/* Blocks of `count` elements in a rank's input / output buffer. Only root has input for broadcast and scatter,
 * only root has output for reduce and gather. */
static inline uint32_t fg_kind_in_blocks(int kind, uint32_t nranks) {
    switch (kind) {
    case FG_REDUCE_SCATTER: case FG_ALL_TO_ALL: case FG_SCATTER: return nranks;
    case FG_RECV: case FG_BARRIER: case FG_SIGNAL: case FG_WAIT_SIGNAL: return 0;
    default: return 1;
    }
}
static inline uint32_t fg_kind_out_blocks(int kind, uint32_t nranks) {
    switch (kind) {
    case FG_ALL_GATHER: case FG_ALL_TO_ALL: case FG_GATHER: return nranks;
    case FG_SEND: case FG_BARRIER: case FG_SIGNAL: case FG_WAIT_SIGNAL: case FG_PUT_SIGNAL: return 0;
    default: return 1;
    }
}
static inline int fg_kind_rooted(int kind) {
    return kind == FG_REDUCE || kind == FG_BROADCAST || kind == FG_GATHER || kind == FG_SCATTER;
}
static inline int fg_kind_reduces(int kind) {
    return kind == FG_ALL_REDUCE || kind == FG_REDUCE || kind == FG_REDUCE_SCATTER;
}
/* Elements of one block that one round carries: chunk_bytes shared by the larger number of blocks, at least 1. */
static inline uint64_t fg_round_elems(int kind, uint32_t nranks, uint64_t elem_bytes, uint64_t chunk_bytes) {
    uint32_t a = fg_kind_in_blocks(kind, nranks), b = fg_kind_out_blocks(kind, nranks);
    uint32_t blocks = a > b ? a : b;
    uint64_t n = chunk_bytes / (elem_bytes * (blocks ? blocks : 1u));
    return n ? n : 1;
}
/* Rounds of an operation; 0 for an empty one. */
static inline uint64_t fg_round_count(int kind, uint32_t nranks, uint64_t count, uint64_t elem_bytes, uint64_t chunk_bytes) {
    uint64_t n = fg_round_elems(kind, nranks, elem_bytes, chunk_bytes);
    return count / n + (count % n != 0);
}

#ifndef __cplusplus
FG_ASSERT_SIZE(fg_slot_t, 128);
FG_ASSERT_SIZE(fg_control_t, 64);
FG_ASSERT_SIZE(fg_control_rank_t, 64);
#endif
#endif
