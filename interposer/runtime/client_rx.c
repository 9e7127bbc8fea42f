/* Receiving: reads frames and hands each to the request, communicator or task it is for.
 *
 * One thread reads at a time: the receiver thread, or a job's thread that has nothing to do but wait for its own next
 * frame (fg_client_lead), which saves a change of threads per operation. Reading waits for nobody and takes no GIL. When the connection ends or a frame is malformed, every request
 * and every communicator of this process fails at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "fault.h"
#include "comm.h"
#include "segment.h"

#define LEAD_IDLE_NS 2000000 /* after a job's thread has read the receiver leaves it the next frame for so long */

void fg_client_lose(fg_client_t *client, const char *why) {
    atomic_store(&client->lost, FG_COORDINATOR_LOST);
    for (;;) {
        pthread_mutex_lock(&client->lock);
        fg_request_t *request = client->requests;
        if (request) {
            client->requests = request->next;
        }
        pthread_mutex_unlock(&client->lock);
        if (!request) {
            break;
        }
        if (request->comm) {
            fg_comm_fail(request->comm, FG_COORDINATOR_LOST, why);
        }
        fg_request_finish(client, request, FG_COORDINATOR_LOST, why);
    }
    pthread_mutex_lock(&client->lock);
    for (fg_comm_t *comm = client->comms; comm; comm = comm->next) {
        fg_comm_fail(comm, FG_COORDINATOR_LOST, why);
    }
    pthread_mutex_unlock(&client->lock);
}

static int on_error(fg_client_t *client, const fg_frame_t *head, const uint8_t *body) {
    fg_error_t error;
    char text[FG_TEXT_MAX];
    memcpy(&error, body, sizeof error);
    snprintf(text, sizeof text, "%.*s", (int)error.text_bytes, (const char *)body + sizeof error);
    if (!head->request) {
        fg_comm_t *comm = fg_comm_find(client, head->member);
        if (comm && error.opid) { /* one operation was refused: without it the peers wait in vain */
            fg_comm_give_up(comm, error.status, text);
        } else if (comm) {
            fg_comm_fail(comm, error.status, text);
        }
        if (comm) {
            fg_comm_release(comm);
        }
        return FG_OK;
    }
    pthread_mutex_lock(&client->lock);
    fg_request_t *request = fg_request_take(client, head->request);
    pthread_mutex_unlock(&client->lock);
    if (request) {
        if (request->comm) {
            fg_comm_fail(request->comm, error.status, text);
        }
        fg_request_finish(client, request, error.status, text);
    }
    return FG_OK;
}

static int on_ready(fg_client_t *client, fg_request_t *request, const uint8_t *body) {
    fg_comm_ready_t ready;
    int fd = -1, status = FG_OK;
    memcpy(&ready, body, sizeof ready);
    if (ready.flags & FG_COMM_SHM) {
        if (client->nfds) {
            fd = client->fds[0];
            memmove(client->fds, client->fds + 1, (size_t)--client->nfds * sizeof client->fds[0]);
        } else if (!ready.control.pid) {
            return FG_PROTOCOL;
        } else if (fg_segment_reopen(ready.control.pid, ready.control.fd, ready.control.inode, &fd)) {
            status = fg_rt_set_error(FG_SYSTEM, "sharing memory with the coordinator's host: %s", fg_rt_last_error());
        }
    }
    if (!request || !request->comm) {
        if (fd >= 0) {
            close(fd);
        }
        return request ? FG_PROTOCOL : FG_OK;
    }
    status = status ? status : fg_comm_made(request->comm, &ready, (const fg_member_t *)(body + sizeof ready), fd);
    fg_request_finish(client, request, status, status ? fg_rt_last_error() : "");
    return FG_OK;
}

/* ACK, UNIQUE_ID, COMM_READY, QUERY: answers to a request. */
static int on_answer(fg_client_t *client, const fg_frame_t *head, uint8_t *body, bool *kept) {
    pthread_mutex_lock(&client->lock);
    fg_request_t *request = fg_request_take(client, head->request);
    pthread_mutex_unlock(&client->lock);
    if (head->type == FG_T_COMM_READY) {
        return on_ready(client, request, body);
    }
    if (request) { /* else nobody waits: an abort's or a destroy's ACK */
        if (head->body_bytes) {
            request->body = body;
            request->body_bytes = head->body_bytes;
            *kept = true;
        }
        fg_request_finish(client, request, FG_OK, "");
    }
    return FG_OK;
}

static int on_go(fg_client_t *client, const fg_frame_t *head, const uint8_t *body) {
    fg_comm_t *comm = fg_comm_find(client, head->member);
    if (!comm) {
        return FG_OK;
    }
    uint64_t now = fg_now_ns();
    client->handed_over = comm->shm;
    pthread_mutex_lock(&comm->lock);
    for (size_t i = 0; i < head->body_bytes / sizeof(fg_go_t); i++) {
        fg_go_t go;
        memcpy(&go, body + i * sizeof go, sizeof go);
        fg_fault_obey(&go);
        if (go.flags & FG_OP_CRASH) {
            continue;
        }
        fg_task_t *task = fg_job_task(comm, go.opid);
        if (task && task->state == FG_TASK_SUBMITTED) {
            task->go = go;
            task->go_ns = now;
            task->state = FG_TASK_GO;
        }
    }
    fg_comm_tell(comm);
    pthread_mutex_unlock(&comm->lock);
    fg_comm_release(comm);
    return FG_OK;
}

static int on_complete(fg_client_t *client, const fg_frame_t *head, const uint8_t *body) {
    fg_comm_t *comm = fg_comm_find(client, head->member);
    if (!comm) {
        return FG_OK;
    }
    pthread_mutex_lock(&comm->lock);
    for (size_t i = 0; i < head->body_bytes / sizeof(fg_complete_t); i++) {
        fg_complete_t complete;
        memcpy(&complete, body + i * sizeof complete, sizeof complete);
        fg_task_t *task = fg_job_task(comm, complete.opid);
        if (task) {
            task->completed = true;
        }
        fg_p2p_complete(comm, complete.opid);
    }
    fg_comm_tell(comm);
    pthread_mutex_unlock(&comm->lock);
    fg_comm_release(comm);
    return FG_OK;
}

static int on_data(fg_client_t *client, const fg_frame_t *head) {
    fg_data_t data;
    if (head->body_bytes < sizeof data || fg_client_read(client, &data, sizeof data)) {
        return FG_COORDINATOR_LOST;
    }
    size_t bytes = head->body_bytes - sizeof data;
    fg_comm_t *comm = fg_comm_find(client, head->member);
    if (!comm) {
        return fg_client_skip(client, bytes);
    }
    int status = fg_socket_receive(client, comm, &data, bytes);
    fg_comm_release(comm);
    return status;
}

static int dispatch(fg_client_t *client, const fg_frame_t *head, uint8_t *body, bool *kept) {
    switch (head->type) {
    case FG_T_ERROR: return on_error(client, head, body);
    case FG_T_GO: return on_go(client, head, body);
    case FG_T_COMPLETE: return on_complete(client, head, body);
    case FG_T_ACK: case FG_T_UNIQUE_ID: case FG_T_COMM_READY: case FG_T_QUERY: case FG_T_STATUS:
        return on_answer(client, head, body, kept);
    default: return FG_PROTOCOL;
    }
}

/* Reads and handles one frame; anything but FG_OK ends the connection. */
static int receive_one(fg_client_t *client, char *why, size_t why_bytes) {
    uint8_t raw[sizeof(fg_frame_t)], small[4096];
    fg_frame_t head;
    if (fg_client_read(client, raw, sizeof raw)) {
        return FG_COORDINATOR_LOST;
    }
    int status = client->core->frame_check(raw, &head, why, why_bytes);
    if (status) {
        return status;
    }
    if (head.type == FG_T_DATA) {
        return on_data(client, &head);
    }
    bool answer = head.type == FG_T_UNIQUE_ID || head.type == FG_T_QUERY || head.type == FG_T_STATUS;
    bool kept = false, heap = answer || head.body_bytes > sizeof small;
    uint8_t *body = heap ? malloc((size_t)head.body_bytes + 1) : small;
    if (!body) {
        return FG_OUT_OF_MEMORY;
    }
    status = fg_client_read(client, body, head.body_bytes);
    if (!status && !(status = client->core->body_check(&head, body, why, why_bytes))) {
        status = dispatch(client, &head, body, &kept);
    }
    if (heap && !kept) {
        free(body);
    }
    return status;
}

/* One frame; false when that was the end of the connection. */
static bool read_step(fg_client_t *client) {
    char why[FG_TEXT_BYTES] = "", text[FG_TEXT_BYTES + 100];
    int status = receive_one(client, why, sizeof why);
    if (!status) {
        return true;
    }
    if (status == FG_COORDINATOR_LOST && atomic_load(&client->leaving)) {
        return false;
    }
    if (status == FG_COORDINATOR_LOST) {
        snprintf(text, sizeof text, "the connection to the coordinator is gone (it ended, or was shut down)");
    } else {
        snprintf(text, sizeof text, "the coordinator sent a malformed frame: %s", why);
    }
    fg_client_lose(client, text);
    shutdown(client->fd, SHUT_RDWR); /* not closed: a sender must not meet a reused number */
    return false;
}

static bool has_news(fg_comm_t *comm, uint64_t seen) {
    pthread_mutex_lock(&comm->lock);
    bool news = comm->events != seen || fg_comm_broken(comm);
    pthread_mutex_unlock(&comm->lock);
    return news;
}

bool fg_client_lead(fg_client_t *client, fg_comm_t *comm, uint64_t seen) {
    pthread_mutex_lock(&client->rx_lock);
    bool free = !client->reading && !atomic_load(&client->lost);
    client->reading |= free;
    pthread_mutex_unlock(&client->rx_lock);
    if (!free) {
        return false;
    }
    while (!has_news(comm, seen)) {
        struct pollfd p = {.fd = client->fd, .events = POLLIN}; /* in slices: a local abort does not write here */
        if ((client->rx_begin < client->rx_end || poll(&p, 1, 50) > 0) && !read_step(client)) {
            break;
        }
    }
    pthread_mutex_lock(&client->rx_lock);
    client->reading = client->handed_over = false;
    client->last_led_ns = fg_now_ns();
    if (client->waiters || atomic_load(&client->lost)) {
        pthread_cond_signal(&client->rx_turn);
    }
    pthread_mutex_unlock(&client->rx_lock);
    return true;
}

void fg_client_wait_begin(fg_client_t *client) {
    pthread_mutex_lock(&client->rx_lock);
    client->waiters++;
    pthread_cond_signal(&client->rx_turn);
    pthread_mutex_unlock(&client->rx_lock);
}

void fg_client_wait_end(fg_client_t *client) {
    pthread_mutex_lock(&client->rx_lock);
    client->waiters--;
    pthread_mutex_unlock(&client->rx_lock);
}

/* The receiver's turn: nobody reads, and somebody waits or no job's thread has read for a moment. rx_lock held. */
static void await_turn(fg_client_t *client) {
    while (client->reading || (!client->waiters && fg_now_ns() - client->last_led_ns < LEAD_IDLE_NS)) {
        struct timespec limit;
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_nsec += LEAD_IDLE_NS;
        limit.tv_sec += limit.tv_nsec / 1000000000;
        limit.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&client->rx_turn, &client->rx_lock, &limit);
    }
}

void *fg_client_receive(void *argument) {
    fg_client_t *client = argument;
    pthread_setname_np(pthread_self(), "fakegpu-rx");
    while (!atomic_load(&client->lost)) {
        pthread_mutex_lock(&client->rx_lock);
        await_turn(client);
        client->reading = true;
        pthread_mutex_unlock(&client->rx_lock);
        bool more = !atomic_load(&client->lost) && read_step(client);
        pthread_mutex_lock(&client->rx_lock);
        client->reading = false;
        if (client->handed_over) {
            client->handed_over = false;
            client->last_led_ns = fg_now_ns();
        }
        pthread_mutex_unlock(&client->rx_lock);
        if (!more) {
            break;
        }
    }
    return NULL;
}
