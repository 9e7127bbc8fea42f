/* Jobs: the operations of one call or of one group on one communicator, from their number to their end.
 *
 * fg_rt_job_new numbers the operations in the order of the calls; fg_rt_job_run waits for the job's turn, tells the
 * coordinator, and moves each operation's bytes when it matched. A job's point-to-point operations make progress
 * together; its collectives go one after the other, as on every other rank.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "fault.h"
#include "comm.h"

static void number_task(fg_comm_t *comm, fg_task_t *task, bool grouped) {
    const fg_call_t *call = &task->call;
    fg_op_t *op = &task->op;
    *op = (fg_op_t){.opid = comm->next_opid++, .count = call->count, .stream = call->stream, .kind = call->kind,
                    .dtype = call->dtype, .redop = call->redop, .root = call->root, .scalar = call->scalar,
                    .peer_offset = call->peer_offset, .flags = grouped ? FG_OP_GROUPED : 0};
    if (fg_kind_collective(call->kind)) {
        op->seq = comm->next_collective++;
    } else if (call->kind == FG_SEND || call->kind == FG_RECV) {
        op->seq = (call->kind == FG_RECV ? comm->recv_seq : comm->send_seq)[call->root]++;
    }
    task->elem = comm->client->core->dtype_size(call->dtype);
}

int fg_rt_job_new(fg_comm_t *comm, const fg_call_t *calls, size_t count, fg_job_t **out) {
    fg_job_t *job = calloc(1, sizeof *job + count * sizeof job->tasks[0]);
    if (!job) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", count);
    }
    fg_comm_hold(comm);
    job->comm = comm;
    job->ntasks = count;
    pthread_mutex_lock(&comm->lock);
    job->ticket = comm->next_ticket++;
    for (size_t i = 0; i < count; i++) {
        job->tasks[i].call = calls[i];
        number_task(comm, &job->tasks[i], count > 1);
    }
    pthread_mutex_unlock(&comm->lock);
    *out = job;
    return FG_OK;
}

fg_task_t *fg_job_task(fg_comm_t *comm, uint64_t opid) {
    fg_job_t *job = comm->current;
    if (!job || !job->ntasks || opid < job->tasks[0].op.opid) {
        return NULL;
    }
    uint64_t index = opid - job->tasks[0].op.opid;
    return index < job->ntasks ? &job->tasks[index] : NULL;
}

bool fg_task_has_input(const fg_comm_t *comm, const fg_task_t *task) {
    int kind = task->call.kind;
    if (kind == FG_BROADCAST || kind == FG_SCATTER) {
        return comm->rank == task->call.root;
    }
    return fg_kind_in_blocks(kind, (uint32_t)comm->nranks) > 0;
}

bool fg_task_has_output(const fg_comm_t *comm, const fg_task_t *task) {
    int kind = task->call.kind;
    if (kind == FG_REDUCE || kind == FG_GATHER) {
        return comm->rank == task->call.root;
    }
    return fg_kind_out_blocks(kind, (uint32_t)comm->nranks) > 0;
}

/* What must be known before the coordinator hears of the operation; runs in stream order. */
static int prepare(fg_comm_t *comm, fg_task_t *task) {
    if (task->call.scalar_from) {
        memcpy(&task->op.scalar, task->call.scalar_from, task->elem);
    }
    if (fg_kind_one_sided(task->call.kind)) {
        return task->call.kind == FG_PUT_SIGNAL ? fg_shm_put(comm, task) : FG_OK;
    }
    if (!comm->shm) {
        fg_socket_prepare(comm, task);
        return FG_OK;
    }
    if (fg_kind_collective(task->call.kind)) {
        return fg_shm_prepare(comm, task);
    }
    return task->call.kind == FG_SEND ? fg_p2p_prepare(comm, task) : FG_OK;
}

/* Tells the coordinator as many operations as may be outstanding; sets *advanced if there were any. */
static int submit(fg_comm_t *comm, fg_job_t *job, bool *advanced) {
    size_t first = job->submitted, last = first;
    while (last < job->ntasks && last - first < FG_MAX_OPS_PER_FRAME) {
        bool collective = fg_kind_collective(job->tasks[last].call.kind);
        if (collective && job->open_collectives == FG_CONTROL_SLOTS) {
            break;
        }
        int status = fg_fault_check(comm, &job->tasks[last]);
        status = status ? status : prepare(comm, &job->tasks[last]);
        if (status) {
            return status;
        }
        job->open_collectives += collective;
        last++;
    }
    if (first == last) {
        return FG_OK;
    }
    fg_submit_t head = {.nops = (uint32_t)(last - first), .timeout_ms = fg_rt_config()->timeout_ms,
                        .issue_ns = fg_now_ns()};
    fg_op_t one, *ops = last - first == 1 ? &one : malloc((last - first) * sizeof *ops);
    if (!ops) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", last - first);
    }
    pthread_mutex_lock(&comm->lock);
    for (size_t i = first; i < last; i++) {
        ops[i - first] = job->tasks[i].op;
        job->tasks[i].state = FG_TASK_SUBMITTED;
    }
    job->submitted = last;
    pthread_mutex_unlock(&comm->lock);
    struct iovec parts[2] = {{&head, sizeof head}, {ops, (last - first) * sizeof *ops}};
    int status = fg_client_send(comm->client, FG_T_SUBMIT, 0, comm->member, parts, 2, NULL);
    if (ops != &one) {
        free(ops);
    }
    *advanced = true;
    return status;
}

static int end_task(fg_comm_t *comm, fg_job_t *job, fg_task_t *task, bool tell) {
    uint64_t bytes = task->call.count * task->elem;
    fg_done_t done = {.opid = task->op.opid, .bytes = bytes,
                      .exec_ns = task->go_ns ? fg_now_ns() - task->go_ns : 0};
    struct iovec part = {&done, sizeof done};
    int status = tell ? fg_client_send(comm->client, FG_T_DONE, 0, comm->member, &part, 1, NULL) : FG_OK;
    pthread_mutex_lock(&comm->lock);
    task->state = FG_TASK_ENDED;
    fg_block_t *block = task->block;
    task->block = NULL;
    pthread_mutex_unlock(&comm->lock);
    if (block) {
        fg_p2p_drop(comm, block);
    }
    task->over = true;
    job->ended++;
    job->open_collectives -= fg_kind_collective(task->call.kind);
    return status;
}

/* Gives one submitted task what can be done for it now; *advanced tells whether anything was. */
static int step(fg_comm_t *comm, fg_job_t *job, fg_task_t *task, bool *advanced) {
    pthread_mutex_lock(&comm->lock);
    fg_task_state_t state = task->state;
    bool completed = task->completed, received = task->rx_round == task->rounds;
    pthread_mutex_unlock(&comm->lock);
    int kind = task->call.kind, status = FG_OK;
    bool eager = (task->op.flags & FG_OP_EAGER) != 0;
    if (fg_kind_one_sided(kind)) { /* the payload is there already; only a wait waits */
        if (kind == FG_WAIT_SIGNAL && state != FG_TASK_GO) {
            return FG_OK;
        }
    } else if (!comm->shm) {
        if (state != FG_TASK_GO && !(eager && state == FG_TASK_SUBMITTED)) {
            return FG_OK;
        }
        uint64_t before = task->tx_round;
        if ((status = fg_socket_advance(comm, task))) {
            return status;
        }
        bool sent = !fg_task_has_input(comm, task) || task->tx_round == task->rounds;
        *advanced |= task->tx_round != before;
        if (!sent || !(received || eager)) {
            return FG_OK;
        }
    } else if (kind == FG_SEND) {
        if (!eager && !completed) {
            return FG_OK;
        }
    } else if (state != FG_TASK_GO) {
        return FG_OK;
    } else {
        status = fg_kind_collective(kind) ? fg_shm_collective(comm, task)
                 : kind == FG_RECV        ? fg_shm_receive(comm, task)
                                          : FG_OK;
        if (status) {
            return status;
        }
    }
    *advanced = true;
    fg_fault_corrupt(comm, task);
    return end_task(comm, job, task, kind != FG_SEND && !fg_kind_one_sided(kind));
}

/* One pass over the open tasks. A collective waits for the collectives before it. */
static int sweep(fg_comm_t *comm, fg_job_t *job, bool *advanced) {
    bool collective_open = false;
    for (size_t i = job->first_open; i < job->submitted; i++) {
        fg_task_t *task = &job->tasks[i];
        bool collective = fg_kind_collective(task->call.kind);
        if (task->over || (collective && collective_open)) {
            continue;
        }
        int status = step(comm, job, task, advanced);
        if (status) {
            return status;
        }
        collective_open |= collective && !task->over;
    }
    while (job->first_open < job->submitted && job->tasks[job->first_open].over) {
        job->first_open++;
    }
    return FG_OK;
}

/* Waits until another thread has read something for this communicator. */
static void wait_for_news(fg_comm_t *comm, uint64_t seen) {
    pthread_mutex_lock(&comm->lock);
    comm->waiting = true;
    fg_client_wait_begin(comm->client);
    while (comm->events == seen && !fg_comm_broken(comm)) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    if (comm->waiting) {
        comm->waiting = false;
        fg_client_wait_end(comm->client);
    }
    pthread_mutex_unlock(&comm->lock);
}

static int run_tasks(fg_comm_t *comm, fg_job_t *job) {
    while (job->ended < job->ntasks) {
        bool advanced = false;
        pthread_mutex_lock(&comm->lock);
        uint64_t seen = comm->events;
        pthread_mutex_unlock(&comm->lock);
        int status = submit(comm, job, &advanced);
        if (status || (status = sweep(comm, job, &advanced))) {
            return status;
        }
        if (advanced) {
            continue;
        }
        if (!comm->shm || !fg_client_lead(comm->client, comm, seen)) {
            wait_for_news(comm, seen);
        }
        if (fg_comm_broken(comm)) {
            return atomic_load(&comm->status);
        }
    }
    return FG_OK;
}

/* Waits for the jobs before this one; false when the communicator failed. */
static bool take_turn(fg_comm_t *comm, fg_job_t *job) {
    pthread_mutex_lock(&comm->lock);
    while (comm->turn != job->ticket) { /* also after a failure: earlier jobs may still be leaving */
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    bool fine = !fg_comm_broken(comm);
    comm->current = fine ? job : NULL;
    pthread_mutex_unlock(&comm->lock);
    return fine;
}

static void drop_blocks(fg_comm_t *comm, fg_job_t *job) {
    for (size_t i = 0; i < job->ntasks; i++) {
        if (job->tasks[i].block) {
            fg_p2p_drop(comm, job->tasks[i].block);
        }
    }
}

/* A dead peer's memory cannot be mapped any more: the coordinator is about to say who died, which tells more. */
static void await_verdict(fg_comm_t *comm) {
    struct timespec step = {.tv_nsec = 10000000};
    for (int i = 0; i < 100 && !fg_comm_broken(comm); i++) {
        nanosleep(&step, NULL);
    }
}

int fg_rt_job_run(fg_job_t *job, fg_comm_t **cut) {
    fg_comm_t *comm = job->comm;
    int status = FG_OK;
    *cut = NULL;
    if (take_turn(comm, job)) {
        status = run_tasks(comm, job);
        if (status) { /* a local failure must reach the peers; the coordinator's own error came first otherwise */
            if (status == FG_SYSTEM && comm->shm) {
                await_verdict(comm);
            }
            fg_comm_give_up(comm, status, fg_rt_last_error());
            fg_shm_settle(comm, 2000);
        }
    }
    pthread_mutex_lock(&comm->lock);
    comm->current = NULL;
    comm->turn++;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    drop_blocks(comm, job);
    status = atomic_load(&comm->status);
    if (status && job->ended < job->ntasks) {
        atomic_store(&comm->cut, true);
        char text[FG_TEXT_MAX];
        fg_rt_comm_text(comm, text, sizeof text);
        fg_rt_set_error(status, "%s", text);
        *cut = comm;
    } else {
        status = FG_OK;
    }
    free(job);
    if (!*cut) {
        fg_comm_release(comm);
    }
    return status;
}
