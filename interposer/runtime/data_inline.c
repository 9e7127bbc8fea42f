/* Small collectives: every rank leaves its input in the control segment before it submits, and after GO computes its own
 * output from all of them. Nobody waits for anybody: a slot's area is free again when all have read it, which is looked
 * at when the slot comes round. Whether an operation goes this way follows from its size alone, so all ranks agree.
 */
#include <string.h>
#include "comm.h"

bool fg_inline_fits(const fg_comm_t *comm, const fg_task_t *task) {
    uint32_t n = (uint32_t)comm->nranks;
    uint64_t blocks = fg_kind_in_blocks(task->call.kind, n), bytes = blocks * task->call.count * task->elem;
    return task->call.kind != FG_BARRIER && bytes > 0 && task->call.count <= FG_INLINE_BYTES &&
           bytes <= FG_INLINE_BYTES && comm->control->bytes >= fg_control_bytes(n) && n <= FG_INLINE_RANKS;
}

int fg_inline_prepare(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    uint32_t me = (uint32_t)comm->rank;
    fg_slot_t *slot = fg_control_slot_at(comm->control, me, task->op.seq);
    slot->seq = task->op.seq;
    slot->scalar = task->op.scalar;
    if (fg_task_has_input(comm, task)) {
        uint64_t bytes = fg_kind_in_blocks(call->kind, (uint32_t)comm->nranks) * call->count * task->elem;
        memcpy(fg_control_inputs_at(comm->control, me, task->op.seq), call->in, bytes);
    }
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return FG_OK;
}

/* out = op over all ranks of block `block` of their inputs. */
static int reduce_block(fg_comm_t *comm, const fg_task_t *task, uint32_t block) {
    const fg_call_t *call = &task->call;
    uint32_t n = (uint32_t)comm->nranks;
    const void *in[FG_INLINE_RANKS];
    uint64_t scalars[FG_INLINE_RANKS];
    void *out = call->out;
    for (uint32_t r = 0; r < n; r++) {
        in[r] = fg_control_inputs_at(comm->control, r, task->op.seq) + block * call->count * task->elem;
        scalars[r] = fg_control_slot_at(comm->control, r, task->op.seq)->scalar;
    }
    int status = comm->client->core->reduce(call->dtype, call->redop, call->count, n, in,
                                            call->redop == FG_PREMULSUM ? scalars : NULL, 1, &out);
    return status ? fg_rt_set_error(status, "reducing dtype %d with operation %d is not possible", call->dtype,
                                    call->redop) : FG_OK;
}

/* Block `block` of every rank's input, one after the other. */
static int gather_blocks(fg_comm_t *comm, const fg_task_t *task, uint32_t block) {
    uint64_t bytes = task->call.count * task->elem;
    for (uint32_t r = 0; r < (uint32_t)comm->nranks; r++) {
        const uint8_t *from = fg_control_inputs_at(comm->control, r, task->op.seq) + block * bytes;
        memcpy((uint8_t *)task->call.out + r * bytes, from, bytes);
    }
    return FG_OK;
}

static int copy_from(fg_comm_t *comm, const fg_task_t *task, uint32_t rank, uint32_t block) {
    uint64_t bytes = task->call.count * task->elem;
    memcpy(task->call.out, fg_control_inputs_at(comm->control, rank, task->op.seq) + block * bytes, bytes);
    return FG_OK;
}

static int compute(fg_comm_t *comm, const fg_task_t *task) {
    uint32_t me = (uint32_t)comm->rank, root = (uint32_t)task->call.root;
    if (!fg_task_has_output(comm, task)) {
        return FG_OK;
    }
    switch (task->call.kind) {
    case FG_ALL_REDUCE:
    case FG_REDUCE: return reduce_block(comm, task, 0);
    case FG_REDUCE_SCATTER: return reduce_block(comm, task, me);
    case FG_BROADCAST: return copy_from(comm, task, root, 0);
    case FG_SCATTER: return copy_from(comm, task, root, me);
    case FG_ALL_GATHER:
    case FG_GATHER: return gather_blocks(comm, task, 0);
    case FG_ALL_TO_ALL: return gather_blocks(comm, task, me);
    default: return fg_rt_set_error(FG_INTERNAL, "kind %d has no data plane", task->call.kind);
    }
}

int fg_inline_collective(fg_comm_t *comm, fg_task_t *task) {
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    int status = compute(comm, task);
    fg_barrier_arrive(comm, task->op.seq);
    return status;
}
