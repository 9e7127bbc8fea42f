/* Collectives over shared memory: slots, barriers, direct and staged rounds, and what keeps an abort safe.
 *
 * A rank announces its buffers in its slot of the control segment before it submits. After GO every rank does its share
 * (data_move.c) in everybody's memory and meets the others at the slot's barrier. A rank is `busy` while it may touch
 * peers' memory; a rank that leaves after a failure waits until no live peer is.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "comm.h"

#define SPINS 200
#define SLICE_MS 50

static void futex_wait(uint32_t *word, uint32_t value, long ms) {
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

static void futex_wake(uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

bool fg_shm_stopped(fg_comm_t *comm) {
    return fg_comm_broken(comm) || (comm->control && __atomic_load_n(&comm->control->abort, __ATOMIC_ACQUIRE));
}

/* The error of a communicator that stopped; its text follows from the coordinator within moments. */
static int stopped_status(fg_comm_t *comm) {
    for (int i = 0; i < 100 && !fg_comm_broken(comm); i++) {
        usleep(10000);
    }
    int status = atomic_load(&comm->status);
    return status ? status : fg_rt_set_error(FG_ABORTED, "the communicator was aborted by a peer");
}

void fg_barrier_wake(fg_comm_t *comm) {
    unsigned slot = atomic_load(&comm->waiting_slot);
    if (comm->control && slot) {
        futex_wake(&fg_control_barrier_at(comm->control, slot - 1)->arrived);
    }
}

void fg_barrier_arrive(fg_comm_t *comm, uint64_t seq) {
    fg_control_barrier_t *barrier = fg_control_barrier_at(comm->control, seq);
    uint32_t target = comm->barrier_target[seq % FG_CONTROL_SLOTS] += (uint32_t)comm->nranks;
    uint32_t now = __atomic_add_fetch(&barrier->arrived, 1, __ATOMIC_SEQ_CST);
    if (now == target && __atomic_load_n(&barrier->pad[0], __ATOMIC_SEQ_CST)) {
        futex_wake(&barrier->arrived);
    }
}

int fg_barrier_wait(fg_comm_t *comm, uint64_t seq) {
    fg_control_barrier_t *barrier = fg_control_barrier_at(comm->control, seq);
    uint32_t *arrived = &barrier->arrived, *sleepers = &barrier->pad[0];
    uint32_t slot = (uint32_t)(seq % FG_CONTROL_SLOTS), target = comm->barrier_target[slot], now;
    for (int i = 0; i < SPINS; i++) {
        now = __atomic_load_n(arrived, __ATOMIC_ACQUIRE);
        if ((int32_t)(now - target) >= 0) {
            return FG_OK;
        }
        __builtin_ia32_pause();
    }
    atomic_store(&comm->waiting_slot, slot + 1);
    __atomic_add_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    while ((int32_t)((now = __atomic_load_n(arrived, __ATOMIC_SEQ_CST)) - target) < 0) {
        if (fg_shm_stopped(comm)) {
            break;
        }
        futex_wait(arrived, now, SLICE_MS);
    }
    __atomic_sub_fetch(sleepers, 1, __ATOMIC_SEQ_CST);
    atomic_store(&comm->waiting_slot, 0);
    return (int32_t)(now - target) >= 0 ? FG_OK : FG_ABORTED;
}

int fg_barrier(fg_comm_t *comm, uint64_t seq) {
    fg_barrier_arrive(comm, seq);
    return fg_barrier_wait(comm, seq);
}

static void set_busy(fg_comm_t *comm, uint32_t busy) {
    __atomic_store_n(&fg_control_rank_at(comm->control, (uint32_t)comm->rank)->busy, busy, __ATOMIC_SEQ_CST);
}

void fg_shm_enter(fg_comm_t *comm) {
    fg_cache_enter();
    set_busy(comm, 1);
}

int fg_shm_leave(fg_comm_t *comm, int status) {
    set_busy(comm, 0);
    fg_cache_leave();
    return status && fg_shm_stopped(comm) ? stopped_status(comm) : status;
}

void fg_shm_settle(fg_comm_t *comm, uint32_t timeout_ms) {
    if (!comm->control) {
        return;
    }
    uint64_t limit = fg_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (int r = 0; r < comm->nranks; r++) {
        fg_control_rank_t *peer = fg_control_rank_at(comm->control, (uint32_t)r);
        while (r != comm->rank && __atomic_load_n(&peer->busy, __ATOMIC_SEQ_CST) &&
               !__atomic_load_n(&peer->dead, __ATOMIC_ACQUIRE) && fg_now_ns() < limit) {
            usleep(200);
        }
    }
}

/* ---- before SUBMIT ---- */

static int need_stage(fg_comm_t *comm) {
    const fg_client_t *client = comm->client;
    uint64_t least = (uint64_t)comm->nranks * 8, chunk = client->welcome.chunk_bytes;
    char why[FG_TEXT_BYTES] = "";
    if (comm->stage.base) {
        return FG_OK;
    }
    comm->stage_bytes = ((chunk > least ? chunk : least) + 4095) & ~(uint64_t)4095;
    int status = client->core->segment_create(2 * comm->stage_bytes, &comm->stage, why, sizeof why);
    return status ? fg_rt_set_error(status, "creating the staging area: %s", why) : FG_OK;
}

int fg_shm_prepare(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    fg_slot_t slot = {.seq = task->op.seq, .scalar = task->op.scalar};
    uint32_t n = (uint32_t)comm->nranks;
    bool staged = false;
    uint64_t bytes = call->count * task->elem;
    if (fg_barrier_wait(comm, slot.seq)) { /* the slot's last use: over, but for a small one's slow readers */
        return stopped_status(comm);
    }
    if (fg_inline_fits(comm, task)) {
        return fg_inline_prepare(comm, task);
    }
    if (bytes && fg_task_has_input(comm, task)) {
        fg_rt_memory_ref(call->in, bytes * fg_kind_in_blocks(call->kind, n), &slot.in);
        staged |= !slot.in.pid;
    }
    if (bytes && fg_task_has_output(comm, task)) {
        fg_rt_memory_ref(call->out, bytes * fg_kind_out_blocks(call->kind, n), &slot.out);
        staged |= !slot.out.pid;
    }
    if (staged) {
        int status = need_stage(comm);
        if (status) {
            return status;
        }
        slot.stage = (fg_buffer_ref_t){.pid = (uint32_t)getpid(), .fd = comm->stage.fd, .inode = comm->stage.inode,
                                       .bytes = comm->stage.bytes};
        slot.stage_bytes = comm->stage_bytes;
        task->op.flags |= FG_OP_STAGED;
    }
    *fg_control_slot_at(comm->control, (uint32_t)comm->rank, slot.seq) = slot;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    return FG_OK;
}

/* ---- after GO ---- */

/* Where rank r's buffers are in this process: its own pointers, or mappings of its memory. */
static int find_views(fg_comm_t *comm, fg_task_t *task, fg_view_t *views, fg_view_t *staged) {
    const fg_core_api_t *core = comm->client->core;
    for (int r = 0; r < comm->nranks; r++) {
        const fg_slot_t *slot = fg_control_slot_at(comm->control, (uint32_t)r, task->op.seq);
        uint8_t *stage = NULL;
        int status = FG_OK;
        if (slot->seq != task->op.seq) {
            return fg_rt_set_error(FG_INTERNAL, "rank %d's slot holds collective %llu, expected %llu", r,
                                   (unsigned long long)slot->seq, (unsigned long long)task->op.seq);
        }
        if (r == comm->rank) {
            views[r].in = (uint8_t *)(uintptr_t)task->call.in;
            views[r].out = task->call.out;
            stage = comm->stage.base;
        } else {
            if (slot->in.pid) {
                status = fg_cache_map(core, &slot->in, &views[r].in);
            }
            if (!status && slot->out.pid) {
                status = fg_cache_map(core, &slot->out, &views[r].out);
            }
            if (!status && slot->stage.pid) {
                status = fg_cache_map(core, &slot->stage, &stage);
            }
        }
        if (status) {
            return status;
        }
        views[r].scalar = staged[r].scalar = slot->scalar;
        staged[r].in = slot->in.pid ? NULL : stage; /* NULL: addressed directly */
        staged[r].out = slot->out.pid || !stage ? NULL : stage + slot->stage_bytes;
    }
    return FG_OK;
}

static int run_direct(fg_comm_t *comm, fg_task_t *task, fg_move_t *move, fg_view_t *views) {
    for (int r = 0; r < comm->nranks; r++) {
        views[r].in_stride = views[r].out_stride = task->call.count * task->elem;
    }
    move->elems = task->call.count;
    move->views = views;
    int status = fg_move_share(move);
    return status ? status : fg_barrier(comm, task->op.seq);
}

/* Copies one round of this rank's blocks between its buffer and its staging area. */
static void copy_round(const fg_task_t *task, uint32_t blocks, uint64_t first, uint64_t elems, uint64_t room,
                       uint8_t *buffer, uint8_t *stage, bool in) {
    uint64_t bytes = elems * task->elem, stride = task->call.count * task->elem;
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *at = buffer + b * stride + first * task->elem, *area = stage + b * room * task->elem;
        memcpy(in ? area : at, in ? at : area, bytes);
    }
}

static int run_staged(fg_comm_t *comm, fg_task_t *task, fg_move_t *move, fg_view_t *views, fg_view_t *staged) {
    const fg_call_t *call = &task->call;
    uint32_t n = (uint32_t)comm->nranks;
    uint64_t stride = call->count * task->elem;
    uint64_t room = fg_round_elems(call->kind, n, task->elem, comm->client->welcome.chunk_bytes);
    fg_view_t *round = move->scratch, *mine = &staged[comm->rank], *own = &views[comm->rank];
    bool copy_in = mine->in && fg_task_has_input(comm, task), copy_out = mine->out && fg_task_has_output(comm, task);
    move->views = round;
    for (uint64_t first = 0; first < call->count; first += room) {
        uint64_t elems = call->count - first < room ? call->count - first : room;
        if (copy_in) {
            copy_round(task, fg_kind_in_blocks(call->kind, n), first, elems, room, own->in, mine->in, true);
        }
        for (uint32_t r = 0; r < n; r++) {
            round[r] = (fg_view_t){
                .in = staged[r].in ? staged[r].in : views[r].in + first * task->elem,
                .out = staged[r].out ? staged[r].out : views[r].out + first * task->elem,
                .in_stride = staged[r].in ? room * task->elem : stride,
                .out_stride = staged[r].out ? room * task->elem : stride,
                .scalar = views[r].scalar,
            };
        }
        move->elems = elems;
        int status = fg_barrier(comm, task->op.seq);
        if (status || (status = fg_move_share(move)) || (status = fg_barrier(comm, task->op.seq))) {
            return status;
        }
        if (copy_out) {
            copy_round(task, fg_kind_out_blocks(call->kind, n), first, elems, room, own->out, mine->out, false);
        }
    }
    return FG_OK;
}

int fg_shm_collective(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    if (!call->count || call->kind == FG_BARRIER) {
        return FG_OK;
    }
    if (fg_inline_fits(comm, task)) {
        return fg_inline_collective(comm, task);
    }
    size_t n = (size_t)comm->nranks;
    fg_view_t few[3 * 16] = {0}, *views = n <= 16 ? few : calloc(3 * n, sizeof *views);
    if (!views) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for views of %zu ranks", n);
    }
    fg_move_t move = {.core = comm->client->core, .comm = comm, .kind = call->kind, .dtype = call->dtype,
                      .redop = call->redop, .root = call->root, .elem = task->elem, .scratch = views + 2 * n};
    fg_shm_enter(comm);
    int status = fg_shm_stopped(comm) ? FG_ABORTED : find_views(comm, task, views, views + n);
    if (!status) {
        status = task->go.flags & FG_OP_STAGED ? run_staged(comm, task, &move, views, views + n)
                                               : run_direct(comm, task, &move, views);
    }
    status = fg_shm_leave(comm, status);
    if (views != few) {
        free(views);
    }
    return status;
}

int fg_shm_receive(fg_comm_t *comm, fg_task_t *task) {
    uint64_t bytes = task->call.count * task->elem;
    uint8_t *from = NULL, *to = task->call.out;
    if (!bytes) {
        return FG_OK;
    }
    fg_shm_enter(comm);
    int status = fg_shm_stopped(comm) ? FG_ABORTED : fg_cache_map(comm->client->core, &task->go.buffer, &from);
    for (uint64_t done = 0; !status && done < bytes;) {
        uint64_t piece = bytes - done < FG_PIECE_BYTES ? bytes - done : FG_PIECE_BYTES;
        memmove(to + done, from + done, piece); /* a rank may send to itself in place */
        done += piece;
        status = fg_shm_stopped(comm) ? FG_ABORTED : FG_OK;
    }
    return fg_shm_leave(comm, status);
}
