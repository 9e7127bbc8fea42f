/* A communicator's record: life, first permanent error, and how its end is told to everybody who waits.
 *
 * References: one of the caller's handle, one per job, one while the receiver works on it. The record outlives the
 * handle, so that jobs still queued on a stream find the error and not freed memory.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "comm.h"

fg_comm_t *fg_comm_new(fg_client_t *client) {
    fg_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm) {
        fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a communicator");
        return NULL;
    }
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->client = client;
    atomic_store(&comm->references, 1);
    atomic_store(&comm->status, FG_IN_PROGRESS);
    comm->stage.fd = comm->control_segment.fd = -1;
    comm->next_opid = 1;
    return comm;
}

void fg_comm_hold(fg_comm_t *comm) {
    atomic_fetch_add(&comm->references, 1);
}

void fg_comm_release(fg_comm_t *comm) {
    if (atomic_fetch_sub(&comm->references, 1) != 1) {
        return;
    }
    const fg_core_api_t *core = comm->client->core;
    while (comm->eager) {
        fg_block_t *block = comm->eager;
        comm->eager = block->next;
        fg_p2p_drop(comm, block);
    }
    if (comm->control_segment.base) {
        core->segment_close(&comm->control_segment);
    }
    if (comm->stage.base) {
        core->segment_close(&comm->stage);
    }
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm->making);
    free(comm->ending);
    free(comm->members);
    free(comm->send_seq);
    free(comm->recv_seq);
    free(comm->text);
    free(comm);
    fg_cache_trim(core);
}

fg_comm_t *fg_comm_find(fg_client_t *client, uint64_t member) {
    pthread_mutex_lock(&client->lock);
    fg_comm_t *comm = client->comms;
    while (comm && comm->member != member) {
        comm = comm->next;
    }
    if (comm) {
        fg_comm_hold(comm);
    }
    pthread_mutex_unlock(&client->lock);
    return comm;
}

void fg_comm_unlink(fg_comm_t *comm) {
    fg_client_t *client = comm->client;
    pthread_mutex_lock(&client->lock);
    for (fg_comm_t **at = &client->comms; *at; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&client->lock);
}

void fg_comm_tell(fg_comm_t *comm) {
    comm->events++;
    pthread_cond_broadcast(&comm->changed);
    if (comm->waiting) { /* from now on, and not only when its thread has woken up */
        comm->waiting = false;
        fg_client_wait_end(comm->client);
    }
}

/* Failures of the program's communication are always told; a local abort is what the program asked for. */
static bool told_always(int status) {
    return status != FG_ABORTED && status != FG_INVALID_ARGUMENT && status != FG_INVALID_USAGE;
}

/* The error's text; a time-out also says which operator the host waits in, since that may hold back the missing one. */
static char *full_text(int status, const char *text) {
    const char *operator = fg_rt_host_operator_current();
    bool late = status == FG_TIMEOUT || status == FG_MISSING_RANK || status == FG_DEADLOCK;
    char *made = NULL;
    if (!late || !*operator) {
        return strdup(text);
    }
    return asprintf(&made, "%s; here the host is blocked in %s behind it", text, operator) < 0 ? NULL : made;
}

void fg_comm_fail(fg_comm_t *comm, int status, const char *text) {
    pthread_mutex_lock(&comm->lock);
    int before = atomic_load(&comm->status);
    bool first = before == FG_OK || before == FG_IN_PROGRESS;
    bool made = comm->nranks > 0;
    if (first) {
        comm->text = full_text(status, text && *text ? text : "the communicator failed");
        atomic_store_explicit(&comm->status, status, memory_order_release);
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    if (first) {
        fg_barrier_wake(comm);
        fg_rt_log(made && told_always(status) ? FG_LOG_ERROR : FG_LOG_INFO, "rank %d: %s", comm->rank,
                  comm->text ? comm->text : "");
    }
}

/* Maps the control segment and checks that it is this communicator's. */
static int take_control(fg_comm_t *comm, int fd) {
    char why[FG_TEXT_BYTES] = "";
    int status = comm->client->core->segment_map(fd, &comm->control_segment, why, sizeof why);
    if (status) {
        return fg_rt_set_error(status, "mapping the communicator's control segment: %s", why);
    }
    fg_control_t *control = (fg_control_t *)(void *)comm->control_segment.base;
    if (comm->control_segment.bytes < fg_control_fixed_bytes((uint32_t)comm->nranks) ||
        control->magic != FG_CONTROL_MAGIC || control->nranks != (uint32_t)comm->nranks ||
        control->slots != FG_CONTROL_SLOTS) {
        return fg_rt_set_error(FG_PROTOCOL, "the communicator's control segment does not fit %d ranks", comm->nranks);
    }
    comm->control = control;
    return FG_OK;
}

int fg_comm_made(fg_comm_t *comm, const fg_comm_ready_t *ready, const fg_member_t *members, int control_fd) {
    size_t n = ready->nranks > 0 ? (size_t)ready->nranks : 0;
    pthread_mutex_lock(&comm->lock);
    comm->comm_id = ready->comm;
    comm->member = ready->member;
    comm->rank = ready->rank;
    comm->nranks = ready->nranks;
    comm->no_color = n == 0;
    comm->shm = (ready->flags & FG_COMM_SHM) != 0;
    memcpy(comm->name, ready->name, FG_NAME_BYTES);
    comm->members = malloc((n + 1) * sizeof *comm->members);
    comm->send_seq = calloc(n + 1, sizeof *comm->send_seq);
    comm->recv_seq = calloc(n + 1, sizeof *comm->recv_seq);
    int status = FG_OK;
    if (!comm->members || !comm->send_seq || !comm->recv_seq) {
        status = fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a communicator of %zu ranks", n);
    } else {
        memcpy(comm->members, members, n * sizeof *members);
    }
    if (control_fd >= 0) {
        if (status) {
            close(control_fd);
        } else {
            status = take_control(comm, control_fd);
        }
    }
    pthread_mutex_unlock(&comm->lock);
    if (!status && n) { /* from here on frames for this member find it */
        pthread_mutex_lock(&comm->client->lock);
        comm->next = comm->client->comms;
        comm->client->comms = comm;
        pthread_mutex_unlock(&comm->client->lock);
    }
    if (status) {
        fg_comm_fail(comm, status, fg_rt_last_error());
        return status;
    }
    int expected = FG_IN_PROGRESS; /* an abort in the meantime stays */
    atomic_compare_exchange_strong(&comm->status, &expected, FG_OK);
    pthread_mutex_lock(&comm->lock);
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return FG_OK;
}

int fg_rt_comm_state(fg_comm_t *comm) {
    if (atomic_load(&comm->status) == FG_OK && comm->finalizing) {
        pthread_mutex_lock(&comm->client->lock);
        bool done = comm->ending->done;
        pthread_mutex_unlock(&comm->client->lock);
        if (!done) {
            return FG_IN_PROGRESS;
        }
    }
    return atomic_load(&comm->status);
}

bool fg_rt_comm_cut(fg_comm_t *comm) {
    return atomic_load(&comm->cut);
}

bool fg_rt_comm_unheard(fg_comm_t *comm) {
    return atomic_load(&comm->cut) && !atomic_exchange(&comm->heard, true);
}

void fg_rt_comm_text(fg_comm_t *comm, char *out, size_t bytes) {
    pthread_mutex_lock(&comm->lock);
    snprintf(out, bytes, "%s", comm->text ? comm->text : "");
    pthread_mutex_unlock(&comm->lock);
}

void fg_rt_comm_info(fg_comm_t *comm, fg_comm_info_t *out) {
    *out = (fg_comm_info_t){.comm = comm->comm_id, .rank = comm->rank, .nranks = comm->nranks, .shm = comm->shm,
                            .name = comm->name, .members = comm->members,
                            .stage_bytes = comm->stage.bytes + comm->control_segment.bytes + comm->eager_bytes};
}

bool fg_rt_comm_shared(const fg_comm_t *comm) {
    return comm->shm;
}
