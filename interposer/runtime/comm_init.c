/* Making communicators: init, split, shrink and grow send their request and return; COMM_READY finishes them on the
 * receiver thread, so that one thread can make several at once and non-blocking communicators need no helper thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm.h"

static uint32_t init_flags(bool nonblocking) {
    const fg_config_t *config = fg_rt_config();
    uint32_t flags = nonblocking ? FG_COMM_NONBLOCKING : 0;
    return config->shares_memory ? flags | FG_COMM_SHM : flags;
}

static void put_name(char out[FG_NAME_BYTES], const char *name) {
    memset(out, 0, FG_NAME_BYTES);
    if (name) {
        memcpy(out, name, strnlen(name, FG_NAME_BYTES));
    }
}

/* Sends the request that COMM_READY answers. */
static int begin(fg_client_t *client, uint16_t type, uint64_t member, const void *body, size_t bytes,
                 const void *tail, size_t tail_bytes, fg_comm_t **out) {
    fg_comm_t *comm = fg_comm_new(client);
    if (!comm) {
        return FG_OUT_OF_MEMORY;
    }
    comm->making = calloc(1, sizeof *comm->making);
    if (!comm->making) {
        fg_comm_release(comm);
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a request");
    }
    comm->making->comm = comm;
    fg_comm_hold(comm);
    int status = fg_request_send(client, comm->making, type, member, body, bytes, tail, tail_bytes);
    if (status) {
        fg_comm_release(comm);
        fg_comm_release(comm);
        return status;
    }
    *out = comm;
    return FG_OK;
}

int fg_rt_comm_init(const fg_comm_args_t *args, fg_comm_t **out) {
    fg_client_t *client;
    int status = fg_client_get(&client);
    if (status) {
        return status;
    }
    fg_comm_init_t body = {.nranks = args->nranks, .rank = args->rank, .device = args->device,
                           .flags = init_flags(args->nonblocking), .timeout_ms = fg_rt_config()->timeout_ms,
                           .compute_capability = (uint32_t)args->compute_capability};
    memcpy(body.unique_id, args->unique_id, sizeof body.unique_id);
    put_name(body.name, args->name);
    return begin(client, FG_T_COMM_INIT, 0, &body, sizeof body, NULL, 0, out);
}

int fg_rt_comm_split(fg_comm_t *parent, int color, int key, bool nonblocking, const char *name, fg_comm_t **out) {
    fg_comm_split_t body = {.color = color, .key = key, .flags = init_flags(nonblocking),
                            .timeout_ms = fg_rt_config()->timeout_ms};
    put_name(body.name, name);
    return begin(parent->client, FG_T_COMM_SPLIT, parent->member, &body, sizeof body, NULL, 0, out);
}

int fg_rt_comm_shrink(fg_comm_t *parent, const int *exclude, int nexclude, uint32_t flags, const char *name,
                      fg_comm_t **out) {
    fg_comm_shrink_t body = {.nexclude = (uint32_t)nexclude, .flags = init_flags(false) | flags,
                             .timeout_ms = fg_rt_config()->timeout_ms};
    put_name(body.name, name);
    return begin(parent->client, FG_T_COMM_SHRINK, parent->member, &body, sizeof body, exclude,
                 (size_t)nexclude * sizeof *exclude, out);
}

int fg_rt_comm_grow(fg_comm_t *parent, const fg_comm_args_t *args, bool with_id, fg_comm_t **out) {
    fg_client_t *client = parent ? parent->client : NULL;
    int status = parent ? FG_OK : fg_client_get(&client);
    if (status) {
        return status;
    }
    fg_comm_grow_t body = {.nranks = args->nranks, .rank = args->rank, .device = args->device,
                           .flags = init_flags(args->nonblocking) | (parent ? 0 : FG_COMM_GROW_NEW),
                           .timeout_ms = fg_rt_config()->timeout_ms};
    if (with_id) {
        memcpy(body.unique_id, args->unique_id, sizeof body.unique_id);
    }
    put_name(body.name, args->name);
    return begin(client, FG_T_COMM_GROW, parent ? parent->member : 0, &body, sizeof body, NULL, 0, out);
}

int fg_rt_comm_wait(fg_comm_t *comm) {
    fg_client_wait_begin(comm->client);
    pthread_mutex_lock(&comm->lock);
    while (atomic_load(&comm->status) == FG_IN_PROGRESS) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    int status = atomic_load(&comm->status);
    if (status) {
        fg_rt_set_error(status, "%s", comm->text ? comm->text : "");
    }
    pthread_mutex_unlock(&comm->lock);
    fg_client_wait_end(comm->client);
    return status;
}
