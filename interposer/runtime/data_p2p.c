/* Payloads of sends over shared memory: where the receiver finds them, and copies in segments of our own.
 *
 * A send from device memory is read in place. A small send (eager) is copied, so that it completes without its receive;
 * a send from memory that nobody else can map is copied too. Segments are kept for reuse, up to a bound.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "comm.h"

#define LEAST_SEGMENT (64u << 10)
#define IDLE_LIMIT (64u << 20)   /* bytes kept for reuse in the process */
#define EAGER_LIMIT (256u << 20) /* bytes a communicator may have on their way; beyond it sends wait for receives */

static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static fg_block_t *idle;
static uint64_t idle_bytes;

static fg_block_t *take_idle(uint64_t bytes) {
    pthread_mutex_lock(&idle_lock);
    fg_block_t **at = &idle, *found = NULL;
    while (*at && ((*at)->segment.bytes < bytes || (*at)->segment.bytes > 4 * bytes + LEAST_SEGMENT)) {
        at = &(*at)->next;
    }
    if ((found = *at)) {
        *at = found->next;
        idle_bytes -= found->segment.bytes;
    }
    pthread_mutex_unlock(&idle_lock);
    return found;
}

/* A shared block with a copy of [data, data + bytes). */
static int copy_block(fg_comm_t *comm, const void *data, uint64_t bytes, fg_block_t **out) {
    char why[FG_TEXT_BYTES] = "";
    fg_block_t *block = take_idle(bytes);
    if (!block) {
        uint64_t size = LEAST_SEGMENT;
        while (size < bytes) {
            size = size < (1u << 30) ? size * 2 : (bytes + 4095) & ~(uint64_t)4095;
        }
        if (!(block = calloc(1, sizeof *block))) {
            return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a send's record");
        }
        int status = comm->client->core->segment_create(size, &block->segment, why, sizeof why);
        if (status) {
            free(block);
            return fg_rt_set_error(status, "creating a segment of %llu bytes for a send: %s",
                                   (unsigned long long)size, why);
        }
    }
    memcpy(block->segment.base, data, bytes);
    *out = block;
    return FG_OK;
}

void fg_p2p_drop(fg_comm_t *comm, fg_block_t *block) {
    bool keep = !fg_comm_broken(comm); /* after a failure a late peer may still look at it */
    pthread_mutex_lock(&idle_lock);
    keep = keep && idle_bytes + block->segment.bytes <= IDLE_LIMIT;
    if (keep) {
        block->next = idle;
        idle = block;
        idle_bytes += block->segment.bytes;
    }
    pthread_mutex_unlock(&idle_lock);
    if (!keep) {
        comm->client->core->segment_close(&block->segment);
        free(block);
    }
}

int fg_p2p_prepare(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    uint64_t bytes = call->count * task->elem;
    uint64_t most = comm->client->welcome.eager_bytes, own = fg_rt_config()->eager_bytes;
    pthread_mutex_lock(&comm->lock);
    bool eager = bytes <= (own < most ? own : most) && comm->eager_bytes + bytes <= EAGER_LIMIT;
    pthread_mutex_unlock(&comm->lock);
    if (eager) {
        task->op.flags |= FG_OP_EAGER;
    }
    if (!bytes) {
        return FG_OK;
    }
    if (!eager) {
        fg_rt_memory_ref(call->in, bytes, &task->op.buffer);
        if (task->op.buffer.pid) {
            return FG_OK;
        }
    }
    fg_block_t *block;
    int status = copy_block(comm, call->in, bytes, &block);
    if (status) {
        return status;
    }
    task->op.buffer = (fg_buffer_ref_t){.pid = (uint32_t)getpid(), .fd = block->segment.fd,
                                        .inode = block->segment.inode, .bytes = bytes};
    if (!eager) {
        task->block = block;
        return FG_OK;
    }
    pthread_mutex_lock(&comm->lock);
    block->opid = task->op.opid;
    block->next = comm->eager;
    comm->eager = block;
    comm->eager_bytes += block->segment.bytes;
    pthread_mutex_unlock(&comm->lock);
    return FG_OK;
}

void fg_p2p_complete(fg_comm_t *comm, uint64_t opid) {
    for (fg_block_t **at = &comm->eager; *at; at = &(*at)->next) {
        if ((*at)->opid == opid) {
            fg_block_t *block = *at;
            *at = block->next;
            comm->eager_bytes -= block->segment.bytes;
            fg_p2p_drop(comm, block);
            return;
        }
    }
}

int fg_shm_put(fg_comm_t *comm, fg_task_t *task) {
    const fg_call_t *call = &task->call;
    uint64_t bytes = call->count * task->elem;
    uint8_t *window = NULL;
    if (!bytes) {
        return FG_OK;
    }
    fg_shm_enter(comm);
    int status = fg_shm_stopped(comm) ? FG_ABORTED : fg_cache_map(comm->client->core, &call->target, &window);
    if (!status) {
        memmove(window + call->peer_offset, call->in, bytes); /* a rank may put into its own window */
    }
    return fg_shm_leave(comm, status);
}
