/* Payloads through the coordinator: rounds out from the job's thread, within the window; rounds in on the receiver's
 * thread, straight into the caller's memory.
 */
#include <stdlib.h>
#include "comm.h"

#define MAX_BLOCKS 32 /* parts of one sendmsg; more blocks are copied together first */

static uint64_t round_elems(const fg_comm_t *comm, const fg_task_t *task) {
    bool pair = !fg_kind_collective(task->call.kind);
    return fg_round_elems(task->call.kind, pair ? 1 : (uint32_t)comm->nranks, task->elem,
                          comm->client->welcome.chunk_bytes);
}

void fg_socket_prepare(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    bool pair = !fg_kind_collective(call->kind);
    uint64_t bytes = call->count * task->elem;
    uint64_t most = comm->client->welcome.eager_bytes, own = fg_rt_config()->eager_bytes;
    if (call->kind != FG_BARRIER) {
        task->rounds = fg_round_count(call->kind, pair ? 1 : (uint32_t)comm->nranks, call->count, task->elem,
                                      comm->client->welcome.chunk_bytes);
    }
    if (call->kind == FG_SEND && bytes <= (own < most ? own : most)) {
        task->op.flags |= FG_OP_EAGER;
    }
}

/* Sends round r: this member's slices of every input block, back to back. */
static int send_round(fg_comm_t *comm, fg_task_t *task, uint64_t r) {
    const fg_call_t *call = &task->call;
    uint32_t blocks = fg_kind_in_blocks(call->kind, (uint32_t)comm->nranks);
    uint64_t room = round_elems(comm, task), first = r * room;
    uint64_t bytes = (call->count - first < room ? call->count - first : room) * task->elem;
    const uint8_t *from = (const uint8_t *)call->in + first * task->elem;
    fg_data_t data = {.opid = task->op.opid, .round = r};
    struct iovec few[MAX_BLOCKS + 1], *parts = blocks <= MAX_BLOCKS ? few : NULL;
    uint8_t *joined = NULL;
    if (!parts) {
        if (!(joined = malloc(blocks * bytes))) {
            return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a round of %u blocks", blocks);
        }
        for (uint32_t b = 0; b < blocks; b++) {
            __builtin_memcpy(joined + b * bytes, from + b * call->count * task->elem, bytes);
        }
        parts = few;
        parts[1] = (struct iovec){joined, blocks * bytes};
        blocks = 1;
    } else {
        for (uint32_t b = 0; b < blocks; b++) {
            parts[b + 1] = (struct iovec){(void *)(uintptr_t)(from + b * call->count * task->elem), bytes};
        }
    }
    parts[0] = (struct iovec){&data, sizeof data};
    int status = fg_client_send(comm->client, FG_T_DATA, 0, comm->member, parts, (int)blocks + 1, comm);
    free(joined);
    return status;
}

int fg_socket_advance(fg_comm_t *comm, fg_task_t *task) {
    bool eager = (task->op.flags & FG_OP_EAGER) != 0;
    if (!fg_task_has_input(comm, task)) {
        return FG_OK;
    }
    while (task->tx_round < task->rounds) {
        pthread_mutex_lock(&comm->lock);
        bool open = eager || task->tx_round < task->rx_round + comm->client->welcome.window;
        pthread_mutex_unlock(&comm->lock);
        if (!open) {
            return FG_OK;
        }
        int status = send_round(comm, task, task->tx_round);
        if (status) {
            return status;
        }
        if (fg_comm_broken(comm)) {
            return atomic_load(&comm->status);
        }
        task->tx_round++;
    }
    return FG_OK;
}

static int refuse(fg_client_t *client, fg_comm_t *comm, size_t bytes, uint64_t round) {
    char text[160];
    __builtin_snprintf(text, sizeof text, "the coordinator sent %zu bytes as round %llu of an operation, which does "
                       "not fit it", bytes, (unsigned long long)round);
    fg_comm_fail(comm, FG_PROTOCOL, text);
    return fg_client_skip(client, bytes);
}

int fg_socket_receive(fg_client_t *client, fg_comm_t *comm, const fg_data_t *data, size_t bytes) {
    fg_call_t call;
    uint64_t elem = 0, room = 0;
    uint32_t blocks = 0;
    pthread_mutex_lock(&comm->lock);
    fg_task_t *task = fg_job_task(comm, data->opid);
    bool over = !task || fg_comm_broken(comm) || task->state == FG_TASK_ENDED;
    bool expected = !over && task->rx_round == data->round && task->rx_round < task->rounds;
    if (expected) { /* copied: the task may go while its bytes are read */
        bool pair = !fg_kind_collective(task->call.kind);
        call = task->call;
        elem = task->elem;
        room = round_elems(comm, task);
        blocks = fg_task_has_output(comm, task)
                     ? fg_kind_out_blocks(call.kind, pair ? 1 : (uint32_t)comm->nranks) : 0;
    }
    pthread_mutex_unlock(&comm->lock);
    if (over) {
        return fg_client_skip(client, bytes); /* of an operation that is over: an eager send's, or a failed one's */
    }
    uint64_t first = data->round * room;
    uint64_t elems = expected ? (call.count - first < room ? call.count - first : room) : 0;
    if (!expected || bytes != blocks * elems * elem) {
        return refuse(client, comm, bytes, data->round);
    }
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *to = (uint8_t *)call.out + (b * call.count + first) * elem;
        if (fg_client_read_task(client, comm, data->opid, to, elems * elem)) {
            return FG_COORDINATOR_LOST;
        }
    }
    pthread_mutex_lock(&comm->lock);
    if ((task = fg_job_task(comm, data->opid))) {
        task->rx_round++;
        fg_comm_tell(comm);
    }
    pthread_mutex_unlock(&comm->lock);
    return FG_OK;
}
