/* One rank's share of a collective, straight in everybody's memory.
 *
 * Reductions: rank r reduces slice r (all_reduce, reduce) or block r (reduce_scatter) of all inputs in rank order.
 * Copies: pull where each rank has an output, push where only the root has. all_to_all: each pair of ranks is swapped
 * by one of the two, so that blocks in place survive. Work is cut into pieces; between two the communicator's end is
 * looked for.
 */
#include <stdlib.h>
#include <string.h>
#include "comm.h"

#define REDUCE_PIECE (128u << 10) /* bytes of each input: the pieces of a few ranks stay in a core's cache */
#define SWAP_BYTES (32u << 10)

static int copy(const fg_move_t *move, uint8_t *to, const uint8_t *from, uint64_t bytes) {
    if (to == from) {
        return FG_OK;
    }
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = bytes - done < FG_PIECE_BYTES ? bytes - done : FG_PIECE_BYTES;
        memcpy(to + done, from + done, piece);
        done += piece;
        if (fg_shm_stopped(move->comm)) {
            return FG_ABORTED;
        }
    }
    return FG_OK;
}

/* Reduces `count` elements from `first` of block `block` of every input into the outputs of [begin, end). */
static int reduce(const fg_move_t *move, uint32_t block, uint64_t first, uint64_t count, uint32_t begin, uint32_t end) {
    uint32_t n = (uint32_t)move->comm->nranks, nout = end - begin;
    const void *few_in[16], **in = n <= 16 ? few_in : malloc(n * sizeof *in);
    void *few_out[16], **out = n <= 16 ? few_out : malloc(n * sizeof *out);
    uint64_t few_scalars[16], *scalars = n <= 16 ? few_scalars : malloc(n * sizeof *scalars);
    uint64_t room = REDUCE_PIECE / move->elem;
    int status = in && out && scalars ? FG_OK : fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %u ranks", n);
    for (uint32_t r = 0; !status && r < n; r++) {
        scalars[r] = move->views[r].scalar;
    }
    for (uint64_t at = first; !status && at < first + count; at += room) {
        uint64_t elems = first + count - at < room ? first + count - at : room;
        for (uint32_t r = 0; r < n; r++) {
            in[r] = move->views[r].in + block * move->views[r].in_stride + at * move->elem;
        }
        for (uint32_t r = begin; r < end; r++) {
            out[r - begin] = move->views[r].out + at * move->elem;
        }
        status = move->core->reduce(move->dtype, move->redop, elems, n, in,
                                    move->redop == FG_PREMULSUM ? scalars : NULL, nout, out);
        if (status) {
            fg_rt_set_error(status, "reducing dtype %d with operation %d is not possible", move->dtype, move->redop);
        } else if (fg_shm_stopped(move->comm)) {
            status = FG_ABORTED;
        }
    }
    if (n > 16) {
        free(in);
        free(out);
        free(scalars);
    }
    return status;
}

/* Slice r of n: equal parts, the first ones an element longer. */
static void slice(uint64_t count, uint32_t n, uint32_t r, uint64_t *first, uint64_t *elems) {
    uint64_t each = count / n, more = count % n;
    *first = r * each + (r < more ? r : more);
    *elems = each + (r < more);
}

static int reduce_slice(const fg_move_t *move) {
    uint32_t n = (uint32_t)move->comm->nranks, me = (uint32_t)move->comm->rank;
    bool rooted = move->kind == FG_REDUCE;
    uint32_t begin = rooted ? (uint32_t)move->root : 0, end = rooted ? begin + 1 : n;
    uint64_t first, elems;
    slice(move->elems, n, me, &first, &elems);
    return reduce(move, 0, first, elems, begin, end);
}

static int gather_all(const fg_move_t *move) {
    int n = move->comm->nranks, me = move->comm->rank, status = FG_OK;
    const fg_view_t *own = &move->views[me];
    for (int i = 0; !status && i < n; i++) {
        int from = (me + i) % n; /* every rank starts at another place */
        status = copy(move, own->out + (uint64_t)from * own->out_stride, move->views[from].in,
                      move->elems * move->elem);
    }
    return status;
}

/* Exchanges block b of rank a with block a of rank b through a bounded temporary. */
static int swap(const fg_move_t *move, int a, int b) {
    const fg_view_t *va = &move->views[a], *vb = &move->views[b];
    uint8_t *in_a = va->in + (uint64_t)b * va->in_stride, *out_a = va->out + (uint64_t)b * va->out_stride;
    uint8_t *in_b = vb->in + (uint64_t)a * vb->in_stride, *out_b = vb->out + (uint64_t)a * vb->out_stride;
    uint64_t bytes = move->elems * move->elem;
    uint8_t held[SWAP_BYTES];
    if (in_a != out_a && in_b != out_b) {
        int status = copy(move, out_a, in_b, bytes);
        return status ? status : copy(move, out_b, in_a, bytes);
    }
    for (uint64_t at = 0; at < bytes; at += sizeof held) {
        uint64_t piece = bytes - at < sizeof held ? bytes - at : sizeof held;
        memcpy(held, in_a + at, piece);
        memcpy(out_a + at, in_b + at, piece);
        memcpy(out_b + at, held, piece);
        if (fg_shm_stopped(move->comm)) {
            return FG_ABORTED;
        }
    }
    return FG_OK;
}

static int exchange_all(const fg_move_t *move) {
    int n = move->comm->nranks, me = move->comm->rank;
    const fg_view_t *own = &move->views[me];
    int status = copy(move, own->out + (uint64_t)me * own->out_stride, own->in + (uint64_t)me * own->in_stride,
                      move->elems * move->elem);
    for (int other = 0; !status && other < n; other++) {
        int low = me < other ? me : other, high = me < other ? other : me;
        bool mine = other != me && ((low + high) % 2 == 0 ? low : high) == me;
        if (mine) {
            status = swap(move, low, high);
        }
    }
    return status;
}

int fg_move_share(const fg_move_t *move) {
    int me = move->comm->rank;
    const fg_view_t *own = &move->views[me], *root = move->root >= 0 ? &move->views[move->root] : own;
    uint64_t bytes = move->elems * move->elem;
    switch (move->kind) {
    case FG_ALL_REDUCE:
    case FG_REDUCE: return reduce_slice(move);
    case FG_REDUCE_SCATTER: return reduce(move, (uint32_t)me, 0, move->elems, (uint32_t)me, (uint32_t)me + 1);
    case FG_BROADCAST: return copy(move, own->out, root->in, bytes);
    case FG_ALL_GATHER: return gather_all(move);
    case FG_GATHER: return copy(move, root->out + (uint64_t)me * root->out_stride, own->in, bytes);
    case FG_SCATTER: return copy(move, own->out, root->in + (uint64_t)me * root->in_stride, bytes);
    case FG_ALL_TO_ALL: return exchange_all(move);
    default: return fg_rt_set_error(FG_INTERNAL, "kind %d has no data plane", move->kind);
    }
}
