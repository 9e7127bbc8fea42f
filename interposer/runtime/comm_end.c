/* The end of a communicator: finalize, destroy, abort, revoke, and a job's own failure.
 *
 * Whoever leaves makes sure of one thing first: no live peer still reads or writes this process's memory on behalf of
 * the communicator (fg_shm_settle). Waits are bounded, so that an abort returns from any state.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "comm.h"

/* Waits until `done` holds, at most timeout_ms (0 = for ever). Communicator lock held. */
static bool wait_until(fg_comm_t *comm, bool (*done)(const fg_comm_t *), uint32_t timeout_ms) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += timeout_ms / 1000;
    limit.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    limit.tv_sec += limit.tv_nsec / 1000000000;
    limit.tv_nsec %= 1000000000;
    int late = 0;
    while (!done(comm) && late != ETIMEDOUT) {
        late = timeout_ms ? pthread_cond_timedwait(&comm->changed, &comm->lock, &limit)
                          : pthread_cond_wait(&comm->changed, &comm->lock);
    }
    return done(comm);
}

static bool no_jobs(const fg_comm_t *comm) {
    return comm->turn == comm->next_ticket;
}

static bool no_current(const fg_comm_t *comm) {
    return comm->current == NULL;
}

static bool no_eager(const fg_comm_t *comm) {
    return comm->eager == NULL || atomic_load(&comm->status) != FG_OK;
}

static void send_end(fg_comm_t *comm, uint16_t type, int status, const char *text) {
    size_t bytes = text ? strlen(text) : 0;
    fg_comm_end_t body = {.status = status, .text_bytes = (uint32_t)bytes};
    struct iovec parts[2] = {{&body, sizeof body}, {(void *)text, bytes}};
    if (comm->member && !atomic_load(&comm->client->lost)) {
        fg_client_send(comm->client, type, 0, comm->member, parts, 2, NULL);
    }
}

void fg_comm_give_up(fg_comm_t *comm, int status, const char *text) {
    if (fg_comm_broken(comm)) {
        return; /* the coordinator told us */
    }
    char line[FG_TEXT_MAX];
    snprintf(line, sizeof line, "%s", text);
    fg_comm_fail(comm, status, line);
    send_end(comm, FG_T_COMM_ABORT, status, line);
}

int fg_rt_comm_drain(fg_comm_t *comm, uint32_t timeout_ms) {
    pthread_mutex_lock(&comm->lock);
    bool done = wait_until(comm, no_jobs, timeout_ms);
    pthread_mutex_unlock(&comm->lock);
    return done ? FG_OK : fg_rt_set_error(FG_TIMEOUT, "operations of the communicator did not end within %u ms",
                                          timeout_ms);
}

int fg_rt_comm_finalize_begin(fg_comm_t *comm) {
    fg_request_t *request = calloc(1, sizeof *request);
    if (!request) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a request");
    }
    pthread_mutex_lock(&comm->lock);
    wait_until(comm, no_eager, 0); /* sends that nobody received yet: the coordinator's deadline ends this */
    int status = atomic_load(&comm->status);
    pthread_mutex_unlock(&comm->lock);
    if (status) {
        free(request);
        return fg_rt_comm_wait(comm);
    }
    fg_comm_end_t body = {0};
    request->comm = comm;
    fg_comm_hold(comm);
    comm->ending = request;
    comm->finalizing = true;
    status = fg_request_send(comm->client, request, FG_T_COMM_FINALIZE, comm->member, &body, sizeof body, NULL, 0);
    if (status) {
        fg_comm_release(comm);
    }
    return status;
}

int fg_rt_comm_finalize(fg_comm_t *comm) {
    fg_rt_comm_drain(comm, 0);
    int status = fg_rt_comm_finalize_begin(comm);
    return status ? status : fg_request_wait(comm->client, comm->ending, 0);
}

/* Takes back a request that has no answer yet, with its reference. */
static void forget(fg_comm_t *comm, fg_request_t *request) {
    pthread_mutex_lock(&comm->client->lock);
    bool taken = request && !request->done && fg_request_take(comm->client, request->id);
    pthread_mutex_unlock(&comm->client->lock);
    if (taken) {
        fg_comm_release(comm);
    }
}

static void forget_requests(fg_comm_t *comm) {
    forget(comm, comm->making);
    forget(comm, comm->ending);
}

/* Streams that a failure stopped go on; they do when this returns. */
static void leave(fg_comm_t *comm) {
    pthread_mutex_lock(&comm->lock);
    comm->left = true;
    pthread_cond_broadcast(&comm->changed);
    while (comm->holding) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    pthread_mutex_unlock(&comm->lock);
}

void fg_rt_comm_hold_stream(fg_comm_t *comm) {
    char text[FG_TEXT_MAX];
    fg_rt_comm_text(comm, text, sizeof text);
    pthread_mutex_lock(&comm->lock);
    if (!comm->left && fg_rt_stream_fail(text)) {
        comm->holding++;
        while (!comm->left) {
            pthread_cond_wait(&comm->changed, &comm->lock);
        }
        fg_rt_stream_mend();
        comm->holding--;
        pthread_cond_broadcast(&comm->changed);
    }
    pthread_mutex_unlock(&comm->lock);
    fg_comm_release(comm);
}

void fg_rt_comm_drop(fg_comm_t *comm) {
    atomic_store(&comm->heard, true);
    fg_comm_release(comm);
}

void fg_rt_comm_destroy(fg_comm_t *comm) {
    fg_rt_comm_drain(comm, 0);
    leave(comm);
    pthread_mutex_lock(&comm->lock);
    wait_until(comm, no_eager, fg_rt_config()->timeout_ms);
    pthread_mutex_unlock(&comm->lock);
    send_end(comm, FG_T_COMM_DESTROY, 0, NULL);
    fg_comm_unlink(comm);
    forget_requests(comm);
    fg_comm_release(comm);
}

/* Stops this rank's operations and waits until nobody touches memory for them any more. */
void fg_rt_comm_stop(fg_comm_t *comm, const char *why) {
    fg_comm_fail(comm, FG_ABORTED, why);
    leave(comm);
    if (comm->control) {
        uint32_t none = 0;
        atomic_compare_exchange_strong((_Atomic uint32_t *)&comm->control->abort, &none, FG_ABORTED);
    }
    fg_barrier_wake(comm);
    pthread_mutex_lock(&comm->lock);
    wait_until(comm, no_current, 10000);
    pthread_mutex_unlock(&comm->lock);
    fg_shm_settle(comm, 2000);
}

void fg_rt_comm_abort(fg_comm_t *comm, const char *why) {
    fg_rt_comm_stop(comm, why);
    send_end(comm, FG_T_COMM_ABORT, FG_ABORTED, why);
    fg_comm_unlink(comm);
    forget_requests(comm);
    fg_comm_release(comm);
}

int fg_rt_comm_revoke(fg_comm_t *comm) {
    send_end(comm, FG_T_COMM_REVOKE, FG_ABORTED, NULL);
    fg_rt_comm_stop(comm, "the communicator was revoked");
    return FG_OK;
}
