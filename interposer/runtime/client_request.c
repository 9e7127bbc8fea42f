/* Requests: a frame with a number, its one answer, and the thread that waits for it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "comm.h"

int fg_request_send(fg_client_t *client, fg_request_t *request, uint16_t type, uint64_t member, const void *body,
                    size_t bytes, const void *tail, size_t tail_bytes) {
    pthread_mutex_lock(&client->lock);
    do {
        request->id = client->next_request++;
    } while (request->id == 0);
    request->next = client->requests;
    client->requests = request;
    pthread_mutex_unlock(&client->lock);
    struct iovec parts[2] = {{(void *)body, bytes}, {(void *)tail, tail_bytes}};
    int status = fg_client_send(client, type, request->id, member, parts, 2, NULL);
    if (status) {
        pthread_mutex_lock(&client->lock);
        fg_request_take(client, request->id);
        pthread_mutex_unlock(&client->lock);
    }
    return status;
}

fg_request_t *fg_request_take(fg_client_t *client, uint32_t id) {
    for (fg_request_t **at = &client->requests; *at; at = &(*at)->next) {
        if ((*at)->id == id) {
            fg_request_t *found = *at;
            *at = found->next;
            return found;
        }
    }
    return NULL;
}

void fg_request_finish(fg_client_t *client, fg_request_t *request, int status, const char *text) {
    fg_comm_t *comm = request->comm;
    pthread_mutex_lock(&client->lock);
    request->status = status;
    snprintf(request->text, sizeof request->text, "%s", text ? text : "");
    request->done = true;
    pthread_cond_broadcast(&client->answered);
    pthread_mutex_unlock(&client->lock);
    if (comm) {
        fg_comm_release(comm); /* the request may be gone with it */
    }
}

int fg_request_wait(fg_client_t *client, fg_request_t *request, uint32_t timeout_ms) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    limit.tv_sec += timeout_ms / 1000;
    limit.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (limit.tv_nsec >= 1000000000) {
        limit.tv_sec++;
        limit.tv_nsec -= 1000000000;
    }
    fg_client_wait_begin(client);
    pthread_mutex_lock(&client->lock);
    int late = 0;
    while (!request->done && late != ETIMEDOUT) {
        late = timeout_ms ? pthread_cond_timedwait(&client->answered, &client->lock, &limit)
                          : pthread_cond_wait(&client->answered, &client->lock);
    }
    bool answered = request->done;
    if (!answered) {
        fg_request_take(client, request->id);
    }
    pthread_mutex_unlock(&client->lock);
    fg_client_wait_end(client);
    if (!answered) {
        return fg_rt_set_error(FG_TIMEOUT, "the coordinator did not answer within %u ms", timeout_ms);
    }
    return request->status ? fg_rt_set_error(request->status, "%s", request->text) : FG_OK;
}

/* A request whose answer is bytes: the body is the caller's to free. */
static int ask(uint16_t type, const void *body, size_t bytes, fg_request_t *request) {
    fg_client_t *client;
    int status = fg_client_get(&client);
    if (!status && !(status = fg_request_send(client, request, type, 0, body, bytes, NULL, 0))) {
        status = fg_request_wait(client, request, 0);
    }
    return status;
}

int fg_rt_comm_unique_id(uint8_t out[FG_UNIQUE_ID_BYTES]) {
    fg_request_t *request = calloc(1, sizeof *request);
    if (!request) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a request");
    }
    int status = ask(FG_T_UNIQUE_ID, NULL, 0, request);
    if (!status && request->body_bytes != FG_UNIQUE_ID_BYTES) {
        status = fg_rt_set_error(FG_PROTOCOL, "a unique id has %u bytes, expected %d", request->body_bytes,
                                 FG_UNIQUE_ID_BYTES);
    }
    if (!status) {
        memcpy(out, request->body, FG_UNIQUE_ID_BYTES);
    }
    free(request->body);
    free(request);
    return status;
}

int fg_rt_comm_query(const char *json, char *out, size_t bytes) {
    fg_request_t *request = calloc(1, sizeof *request);
    if (!request) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for a request");
    }
    int status = ask(FG_T_QUERY, json, strlen(json), request);
    if (!status) {
        snprintf(out, bytes, "%.*s", (int)request->body_bytes, (const char *)request->body);
    }
    free(request->body);
    free(request);
    return status;
}
