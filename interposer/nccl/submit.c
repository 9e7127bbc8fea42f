/* The one path of every operation: communicator, readiness, arguments, trace, then the open group or the stream.
 *
 * Issuing never waits for a peer: each communicator's operations become one job on the stream. Where no CUDA runtime of
 * ours is in the process nobody can wait for a stream, so the job runs before the call returns.
 */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

/* Jobs that share a stream and were issued together: communicators of one group run concurrently. */
typedef struct fg_bundled {
    fg_job_t *job;
    fg_comm_t *cut; /* its communicator, when the job did not run to its end */
    int status;
} fg_bundled_t;

typedef struct fg_bundle {
    size_t count;
    fg_bundled_t entries[];
} fg_bundle_t;

static pthread_mutex_t issue_lock = PTHREAD_MUTEX_INITIALIZER; /* a job's number and its place in the FIFO go together */

static void *run_one(void *arg) {
    fg_bundled_t *entry = arg;
    entry->status = fg_rt_job_run(entry->job, &entry->cut);
    return NULL;
}

/* Runs all jobs of a bundle at once. */
static void run_bundle(fg_bundle_t *bundle) {
    pthread_t few[16], *threads = bundle->count <= 16 ? few : calloc(bundle->count, sizeof *threads);
    size_t started = 1;
    while (threads && started < bundle->count &&
           pthread_create(&threads[started], NULL, run_one, &bundle->entries[started]) == 0) {
        started++;
    }
    run_one(&bundle->entries[0]);
    for (size_t i = started; i < bundle->count; i++) { /* no thread to be had: one after the other */
        run_one(&bundle->entries[i]);
    }
    for (size_t i = 1; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    if (threads != few) {
        free(threads);
    }
}

/* On the caller's thread; answers the first failure. */
static int run_bundle_now(fg_bundle_t *bundle) {
    int status = FG_OK;
    run_bundle(bundle);
    for (size_t i = 0; i < bundle->count; i++) {
        fg_bundled_t *entry = &bundle->entries[i];
        status = status ? status : entry->status;
        if (entry->cut) {
            fg_rt_comm_drop(entry->cut); /* another thread may have aborted and freed the ncclComm meanwhile */
        }
    }
    free(bundle);
    return status;
}

/* On a stream's worker, where nobody takes an answer: a failure stays visible on the stream. */
static void run_bundle_job(void *arg) {
    fg_bundle_t *bundle = arg;
    run_bundle(bundle);
    for (size_t i = 0; i < bundle->count; i++) {
        if (bundle->entries[i].cut) {
            fg_rt_comm_hold_stream(bundle->entries[i].cut);
        }
    }
    free(bundle);
}

static fg_bundle_t *new_bundle(size_t room) {
    return calloc(1, sizeof(fg_bundle_t) + room * sizeof(fg_bundled_t));
}

/* Makes the job of one communicator out of its operations in the queue, marking them as taken. */
static int make_job(const fg_queued_t *queued, size_t count, size_t first, bool *taken, fg_job_t **out) {
    fg_call_t few[8], *calls = count - first <= 8 ? few : malloc((count - first) * sizeof *calls);
    size_t n = 0;
    if (!calls) {
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", count - first);
    }
    for (size_t i = first; i < count; i++) {
        if (queued[i].comm == queued[first].comm) {
            calls[n++] = queued[i].call;
            taken[i] = true;
        }
    }
    int status = fg_rt_job_new(queued[first].comm->rt, calls, n, out);
    if (calls != few) {
        free(calls);
    }
    return status;
}

/* The job on `main` starts after what is queued on the other streams of its operations, and they go on after it. */
static int join_streams(const fg_queued_t *queued, size_t count, ncclComm_t comm, fg_stream_t *main, bool after) {
    for (size_t i = 0; i < count; i++) {
        if (queued[i].comm != comm) {
            continue;
        }
        fg_stream_t *other = fg_rt_stream_resolve(queued[i].stream, comm->device);
        int status = !other ? FG_INVALID_ARGUMENT
                     : other == main ? FG_OK
                     : after ? fg_rt_stream_join(other, main) : fg_rt_stream_join(main, other);
        if (status) {
            return status;
        }
    }
    return FG_OK;
}

/* One bundle per stream: all communicators whose first operation names it. Issue lock held. */
static int issue_stream(const fg_queued_t *queued, size_t count, size_t first, bool *taken, bool async,
                        fg_bundle_t **now) {
    const fg_queued_t *head = &queued[first];
    fg_stream_t *stream = async ? fg_rt_stream_resolve(head->stream, head->comm->device) : NULL;
    fg_bundle_t *bundle = *now ? *now : new_bundle(count);
    int status = !bundle ? fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", count)
                 : async && !stream ? FG_INVALID_ARGUMENT : FG_OK;
    size_t begin = bundle ? bundle->count : 0;
    for (size_t i = first; !status && i < count; i++) {
        bool same = !async || fg_rt_stream_resolve(queued[i].stream, queued[i].comm->device) == stream;
        if (taken[i] || !same) {
            continue;
        }
        if (async && (status = join_streams(queued + i, count - i, queued[i].comm, stream, false))) {
            break;
        }
        status = make_job(queued, count, i, taken, &bundle->entries[bundle->count].job);
        bundle->count += !status;
    }
    if (!async) {
        *now = bundle;
        return status;
    }
    if (bundle && bundle->count > begin) {
        int failed = fg_rt_stream_enqueue(stream, run_bundle_job, bundle);
        for (size_t i = 0; !failed && i < count; i++) {
            failed = taken[i] ? join_streams(queued + i, 1, queued[i].comm, stream, true) : FG_OK;
        }
        return status ? status : failed;
    }
    free(bundle);
    return status;
}

/* Gives operations to the runtime, on their streams or on this thread; answers the first failure. */
static ncclResult_t issue(const fg_queued_t *queued, size_t count, bool async) {
    bool few[64] = {false}, *taken = count <= 64 ? few : calloc(count, sizeof *taken);
    fg_bundle_t *now = NULL;
    int status = taken ? FG_OK : fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", count);
    pthread_mutex_lock(&issue_lock);
    for (size_t i = 0; !status && i < count; i++) {
        if (!taken[i]) {
            status = issue_stream(queued, count, i, taken, async, &now);
        }
    }
    pthread_mutex_unlock(&issue_lock);
    if (now && now->count) {
        void *gil = fg_rt_gil_unlock();
        int ran = run_bundle_now(now);
        fg_rt_gil_relock(gil);
        status = status ? status : ran;
    }
    if (taken != few) {
        free(taken);
    }
    return fg_nccl_result(status);
}

/* ---- inside a CUDA graph: kept as they were called, numbered and run at each launch ---- */

typedef struct fg_recorded {
    size_t count;
    fg_queued_t queued[];
} fg_recorded_t;

static int run_recorded(void *arg) {
    fg_recorded_t *recorded = arg;
    fg_bundle_t *bundle = NULL;
    bool *taken = calloc(recorded->count, sizeof *taken);
    int status = taken ? FG_OK : fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", recorded->count);
    pthread_mutex_lock(&issue_lock);
    for (size_t i = 0; !status && i < recorded->count; i++) {
        if (!taken[i]) {
            status = issue_stream(recorded->queued, recorded->count, i, taken, false, &bundle);
        }
    }
    pthread_mutex_unlock(&issue_lock);
    free(taken);
    if (bundle) {
        run_bundle_job(bundle);
    }
    return status;
}

static ncclResult_t record(const fg_queued_t *queued, size_t count) {
    static const fg_graph_node_t node = {.run = run_recorded, .drop = free, .name = "nccl", .waits = true};
    fg_recorded_t *kept = malloc(sizeof *kept + count * sizeof *queued);
    int status = kept ? FG_OK : fg_rt_set_error(FG_OUT_OF_MEMORY, "no memory for %zu operations", count);
    fg_stream_t *first = NULL;
    fg_graph_t *graph = NULL;
    for (size_t i = 0; !status && i < count; i++) {
        fg_stream_t *stream = fg_rt_stream_resolve(queued[i].stream, queued[i].comm->device);
        fg_graph_t *other = stream ? fg_rt_capture_graph(stream) : NULL;
        first = i ? first : stream;
        graph = i ? graph : other;
        if (!other || other != graph) {
            status = fg_rt_set_error(FG_INVALID_USAGE, "a group's operations are on streams of different captures, or on "
                                     "streams that capture and streams that do not");
        }
        kept->queued[i] = queued[i];
    }
    if (!status) {
        kept->count = count;
        status = fg_rt_capture_add(graph, first, &node, kept);
    }
    if (status) {
        free(kept);
    }
    return fg_nccl_result(status);
}

static bool captures(const fg_queued_t *queued, size_t count) {
    for (size_t i = 0; fg_rt_captures && i < count; i++) {
        if (fg_rt_capture_of(queued[i].comm->device, queued[i].stream)) {
            return true;
        }
    }
    return false;
}

ncclResult_t fg_nccl_issue(const fg_queued_t *queued, size_t count) {
    return captures(queued, count) ? record(queued, count) : issue(queued, count, fg_rt_cuda_in_use());
}

ncclResult_t fg_nccl_run_now(const fg_queued_t *queued, size_t count) {
    return issue(queued, count, false);
}

static void trace(const fg_nccl_request_t *r) {
    if (fg_nccl_debug(FG_DEBUG_INFO)) {
        fg_nccl_print(FG_DEBUG_INFO, r->comm->device,
                      "%s: opCount %llx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%d] "
                      "stream %p", r->call + 4, (unsigned long long)r->comm->op_count, r->send, r->recv, r->count,
                      (int)r->dtype, (int)r->op, r->root, (void *)r->comm, r->comm->nranks, r->stream);
    }
}

ncclResult_t fg_nccl_submit(fg_nccl_request_t *request) {
    ncclResult_t result = fg_nccl_check_ready(request->comm, request->call);
    if (!result) {
        result = fg_nccl_check_request(request);
    }
    if (!result) {
        trace(request);
        request->comm->op_count++;
        fg_queued_t queued = {request->comm, request->stream, request->call_out};
        result = fg_group_open() ? fg_group_append(&queued) : fg_nccl_issue(&queued, 1);
    }
    return fg_group_error(result);
}
