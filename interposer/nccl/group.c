/* Groups: what a thread calls between ncclGroupStart and the matching ncclGroupEnd waits there and is issued together.
 *
 * Groups nest; only the outermost end acts. An error inside makes the end answer it and issue nothing. Communicators
 * to be made are asked for together, then waited for, so that one thread can make all of a job's ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

typedef struct fg_group {
    int depth;
    ncclResult_t error; /* first one inside */
    size_t count, room;
    fg_queued_t *queued;
    size_t nnow, now_room; /* operations that the end runs itself before the others */
    fg_queued_t *now;
    size_t npending, pending_room;
    fg_pending_t *pending;
} fg_group_t;

static _Thread_local fg_group_t group;

/* Room for one more item of an array that doubles. */
static bool grow(void **items, size_t count, size_t *room, size_t bytes) {
    if (count < *room) {
        return true;
    }
    size_t more = *room ? 2 * *room : 16;
    void *grown = realloc(*items, more * bytes);
    if (grown) {
        *items = grown;
        *room = more;
    }
    return grown != NULL;
}

bool fg_group_open(void) {
    return group.depth > 0;
}

ncclResult_t fg_group_error(ncclResult_t result) {
    if (group.depth > 0 && result != ncclSuccess && result != ncclInProgress && group.error == ncclSuccess) {
        group.error = result;
    }
    return result;
}

ncclResult_t fg_group_append(const fg_queued_t *queued) {
    if (!grow((void **)&group.queued, group.count, &group.room, sizeof *queued)) {
        return fg_nccl_error(FG_OUT_OF_MEMORY, "no memory for a group of %zu operations", group.count + 1);
    }
    group.queued[group.count++] = *queued;
    return ncclSuccess;
}

ncclResult_t fg_group_append_now(const fg_queued_t *queued) {
    if (!grow((void **)&group.now, group.nnow, &group.now_room, sizeof *queued)) {
        return fg_nccl_error(FG_OUT_OF_MEMORY, "no memory for a group of %zu registrations", group.nnow + 1);
    }
    group.now[group.nnow++] = *queued;
    return ncclSuccess;
}

/* A communicator that came to nothing: its handle is gone, unless the caller polls it. */
static void give_up(fg_pending_t *p, ncclResult_t result) {
    if (result == ncclSuccess || result == ncclInProgress || !p->comm) {
        return;
    }
    if (!p->comm->blocking) {
        p->comm->refusal = p->comm->refusal ? p->comm->refusal : FG_INTERNAL;
        return;
    }
    *p->out = NULL;
    fg_nccl_free(p->comm);
    p->comm = NULL;
}

/* After the answer: a split without colour has no communicator. */
static ncclResult_t take_answer(fg_pending_t *p) {
    fg_comm_info_t info;
    if (!p->comm->blocking) {
        return ncclInProgress;
    }
    ncclResult_t result = fg_nccl_result(fg_rt_comm_wait(p->comm->rt));
    if (!result) {
        result = fg_nccl_made(p->comm);
    }
    if (!result) {
        fg_rt_comm_info(p->comm->rt, &info);
        if (info.nranks == 0) {
            *p->out = NULL;
            fg_nccl_free(p->comm);
            p->comm = NULL;
        }
    }
    give_up(p, result);
    return result;
}

/* Makes the communicators: all are asked for before the first is waited for. */
static ncclResult_t make_all(fg_pending_t *pending, size_t count) {
    ncclResult_t first = ncclSuccess;
    void *gil = fg_rt_gil_unlock();
    for (size_t i = 0; i < count; i++) {
        ncclResult_t result = pending[i].begin(&pending[i]);
        if (result) {
            snprintf(pending[i].comm->refusal_text, sizeof pending[i].comm->refusal_text, "%s", fg_rt_last_error());
            give_up(&pending[i], result);
            first = first ? first : result;
        }
    }
    for (size_t i = 0; i < count; i++) {
        if (pending[i].comm && pending[i].comm->rt) {
            ncclResult_t result = take_answer(&pending[i]);
            first = first && first != ncclInProgress ? first : result ? result : first;
        }
    }
    fg_rt_gil_relock(gil);
    return first;
}

ncclResult_t fg_nccl_make(fg_pending_t *pending) {
    if (!fg_group_open()) {
        return make_all(pending, 1);
    }
    if (!grow((void **)&group.pending, group.npending, &group.pending_room, sizeof *pending)) {
        *pending->out = NULL;
        fg_nccl_free(pending->comm);
        return fg_group_error(fg_nccl_error(FG_OUT_OF_MEMORY, "no memory for a group of communicators"));
    }
    group.pending[group.npending++] = *pending;
    return ncclSuccess;
}

/* Empties the group; what it held is the caller's. */
static fg_group_t take_group(void) {
    fg_group_t taken = group;
    group = (fg_group_t){0};
    return taken;
}

static void drop_pending(fg_group_t *taken) {
    for (size_t i = 0; i < taken->npending; i++) {
        *taken->pending[i].out = NULL;
        fg_nccl_free(taken->pending[i].comm);
    }
}

/* Ends the innermost group; at the outermost level the queue is the caller's to free. */
ncclResult_t fg_group_take(const char *call, fg_queued_t **queued, size_t *count) {
    if (group.depth == 0) {
        return fg_nccl_error(FG_INVALID_USAGE, "%s: not in a group, expected an ncclGroupStart before", call);
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    fg_group_t taken = take_group();
    drop_pending(&taken);
    free(taken.now);
    free(taken.pending);
    *queued = taken.queued;
    *count = taken.count;
    return taken.error;
}

FG_EXPORT ncclResult_t ncclGroupStart(void) {
    group.depth++;
    fg_nccl_print(FG_DEBUG_TRACE, fg_rt_device_get(), "ncclGroupStart: depth %d", group.depth);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclGroupStart);

FG_EXPORT ncclResult_t ncclGroupEnd(void) {
    if (group.depth == 0) {
        return fg_nccl_error(FG_INVALID_USAGE, "ncclGroupEnd: not in a group, expected an ncclGroupStart before");
    }
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    fg_group_t taken = take_group();
    ncclResult_t result = taken.error;
    if (result) {
        drop_pending(&taken);
    } else if (taken.npending) {
        result = make_all(taken.pending, taken.npending);
    }
    if (taken.nnow && (result == ncclSuccess || result == ncclInProgress)) {
        ncclResult_t ran = fg_nccl_run_now(taken.now, taken.nnow);
        result = ran ? ran : result;
    }
    if (taken.count && (result == ncclSuccess || result == ncclInProgress)) {
        ncclResult_t issued = fg_nccl_issue(taken.queued, taken.count);
        result = issued ? issued : result;
    }
    free(taken.now);
    free(taken.pending);
    free(taken.queued);
    return result;
}
FG_NCCL_ALSO(ncclGroupEnd);
