/* Owns CUDA graphs: what the streams of one capture were given, in the order of the calls, to be run again.
 *
 * That order is one that the program itself could have had, so a launch runs the nodes one after the other; a graph
 * with collectives in it runs on the stream's worker, so that launching does not wait for peers. While a stream
 * captures, only copies, fills, host functions, collectives, operators of the framework and events can be given to it;
 * everything else, and every wait for it, answers CUDA's own error and makes the capture invalid.
 */
#include "graph.h"
#include "fork.h"
#include "handles.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct node {
    fg_graph_node_t run;
    void *arg;
} node_t;

typedef struct end_hook {
    void (*fn)(void *arg);
    void *arg;
} end_hook_t;

struct fg_graph {
    int references; /* streams lock, as all that follows while a capture goes on */
    uint64_t id;
    fg_stream_t *origin; /* where the capture began; NULL: it ended */
    bool invalid, waits;
    node_t *nodes;
    size_t count, room;
    end_hook_t *hooks;
    size_t nhooks;
};

volatile int fg_rt_captures;
static uint64_t next_id = 1;

uint64_t fg_graph_id(const fg_graph_t *graph) {
    return graph->id;
}

fg_stream_t *fg_graph_origin(const fg_graph_t *graph) {
    return graph->origin;
}

static int unsupported(fg_graph_t *graph, const char *what) {
    graph->invalid = true;
    return fg_rt_set_error(FG_CUDA(900), "%s: not possible while the stream captures", what);
}

static void hold(fg_graph_t *graph) {
    fg_streams_lock();
    graph->references++;
    fg_streams_unlock();
}

static void drop(fg_graph_t *graph) {
    fg_streams_lock();
    bool last = --graph->references == 0;
    fg_streams_unlock();
    if (!last)
        return;
    for (size_t i = graph->count; i-- > 0;)
        graph->nodes[i].run.drop(graph->nodes[i].arg);
    free(graph->nodes);
    free(graph->hooks);
    free(graph);
}

bool fg_rt_stream_capturing(const fg_stream_t *stream) {
    return stream->capture != NULL;
}

int fg_capture_refuse(fg_stream_t *stream, const char *what) {
    return unsupported(stream->capture, what);
}

int fg_rt_capture_begin(fg_stream_t *stream) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_graph_t *graph = calloc(1, sizeof *graph);
    if (!graph)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a graph");
    fg_streams_lock();
    if (stream->legacy)
        status = fg_rt_set_error(FG_CUDA(900), "the legacy default stream cannot capture");
    else if (stream->capture)
        status = fg_rt_set_error(FG_CUDA(1), "the stream captures already");
    if (!status) {
        *graph = (fg_graph_t){.references = 1, .id = next_id++, .origin = stream};
        stream->capture = graph;
        stream->given = stream->joined = 0;
        fg_rt_captures++;
    }
    fg_streams_unlock();
    if (status)
        free(graph);
    return status;
}

int fg_rt_capture_end(fg_stream_t *stream, fg_graph_t **out) {
    *out = NULL;
    fg_streams_lock();
    fg_graph_t *graph = stream->capture;
    int status = !graph ? fg_rt_set_error(FG_CUDA(1), "the stream does not capture")
                 : graph->origin != stream ? fg_rt_set_error(FG_CUDA(903), "the capture began on another stream") : FG_OK;
    if (status) {
        fg_streams_unlock();
        return status;
    }
    bool unjoined = fg_streams_leave_capture(graph);
    graph->origin = NULL;
    fg_rt_captures--;
    fg_streams_unlock();
    for (size_t i = graph->nhooks; i-- > 0;)
        graph->hooks[i].fn(graph->hooks[i].arg);
    if (graph->invalid)
        status = fg_rt_set_error(FG_CUDA(901), "the capture became invalid: an earlier call was not possible in it");
    else if (unjoined)
        status = fg_rt_set_error(FG_CUDA(904), "another stream's captured work was not joined to the one that began");
    else if (!(status = fg_handle_add(graph, FG_HANDLE_GRAPH)))
        *out = graph;
    if (status)
        drop(graph);
    return status;
}

int fg_rt_capture_state(const fg_stream_t *stream, uint64_t *id, fg_graph_t **graph) {
    fg_streams_lock();
    fg_graph_t *found = stream->capture;
    int state = !found ? 0 : found->invalid ? 2 : 1;
    *id = found ? found->id : 0;
    if (graph)
        *graph = found;
    fg_streams_unlock();
    return state;
}

fg_graph_t *fg_rt_capture_of(int device, const void *handle) {
    fg_stream_t *stream = fg_rt_captures ? fg_rt_stream_resolve(handle, device) : NULL;
    return stream ? stream->capture : NULL;
}

fg_graph_t *fg_rt_capture_graph(const fg_stream_t *stream) {
    return stream->capture;
}

void fg_rt_capture_invalidate(fg_graph_t *graph) {
    fg_streams_lock();
    graph->invalid = true;
    fg_streams_unlock();
}

/* Room for one more record of `size` bytes in an array that doubles. */
static bool room_for(void **array, size_t count, size_t size) {
    if (count & (count - 1))
        return true;
    void *grown = realloc(*array, (count ? 2 * count : 1) * size);
    if (grown)
        *array = grown;
    return grown != NULL;
}

int fg_rt_capture_add(fg_graph_t *graph, fg_stream_t *stream, const fg_graph_node_t *node, void *arg) {
    int status = FG_OK;
    fg_streams_lock();
    if (graph->invalid)
        status = fg_rt_set_error(FG_CUDA(901), "the capture is invalid: an earlier call was not possible in it");
    else if (!room_for((void **)&graph->nodes, graph->count, sizeof *graph->nodes))
        status = fg_rt_set_error(FG_SYSTEM, "out of host memory for a graph's node");
    if (!status) {
        graph->nodes[graph->count++] = (node_t){*node, arg};
        graph->waits |= node->waits;
        if (stream)
            stream->given = graph->count;
    }
    fg_streams_unlock();
    return status;
}

int fg_rt_capture_at_end(fg_graph_t *graph, void (*fn)(void *arg), void *arg) {
    fg_streams_lock();
    bool room = room_for((void **)&graph->hooks, graph->nhooks, sizeof *graph->hooks);
    if (room)
        graph->hooks[graph->nhooks++] = (end_hook_t){fn, arg};
    fg_streams_unlock();
    return room ? FG_OK : fg_rt_set_error(FG_SYSTEM, "out of host memory for a capture");
}

/* ---- events inside a capture; lock held ---- */

void fg_capture_mark(fg_graph_t *graph, const fg_stream_t *stream, fg_mark_t *mark) {
    *mark = (fg_mark_t){.capture = graph->id, .stream = stream->id, .given = stream->given};
}

int fg_capture_join(fg_stream_t *waiter, const fg_mark_t *mark) {
    fg_graph_t *graph = fg_streams_capture_by_id(mark->capture);
    if (!graph)
        return fg_rt_set_error(FG_CUDA(907), "the event was recorded in a capture that has ended");
    if (waiter->capture && waiter->capture != graph) {
        graph->invalid = true;
        return fg_rt_set_error(FG_CUDA(902), "two captures would be merged");
    }
    if (!waiter->capture) {
        waiter->capture = graph;
        waiter->given = waiter->joined = 0;
    }
    fg_streams_joined(mark->stream, mark->given);
    return FG_OK;
}

/* ---- copies and fills ---- */

static int node_copy(void *arg) {
    fg_copy_run(arg);
    return FG_OK;
}

static int node_fill(void *arg) {
    fg_fill_run(arg);
    return FG_OK;
}

static int add_record(fg_stream_t *stream, const fg_graph_node_t *node, const void *record, size_t bytes) {
    void *kept = malloc(bytes);
    if (!kept)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a graph's node");
    memcpy(kept, record, bytes);
    int status = fg_rt_capture_add(stream->capture, stream, node, kept);
    if (status)
        free(kept);
    return status;
}

int fg_capture_copy(fg_stream_t *stream, const fg_copy_t *copy) {
    static const fg_graph_node_t node = {.run = node_copy, .drop = free, .name = "copy"};
    return add_record(stream, &node, copy, sizeof *copy);
}

int fg_capture_fill(fg_stream_t *stream, const fg_fill_t *fill) {
    static const fg_graph_node_t node = {.run = node_fill, .drop = free, .name = "fill"};
    return add_record(stream, &node, fill, sizeof *fill);
}

/* ---- running ---- */

typedef struct launch {
    fg_graph_t *graph;
    int *status; /* of a launch that runs at once; NULL on the worker */
} launch_t;

static int run_nodes(fg_graph_t *graph) {
    int status = FG_OK;
    for (size_t i = 0; i < graph->count && !status; i++)
        status = graph->nodes[i].run.run(graph->nodes[i].arg);
    return status;
}

static void run_launch(void *arg) {
    launch_t *launch = arg;
    int status = run_nodes(launch->graph);
    if (launch->status) {
        *launch->status = status;
        return;
    }
    drop(launch->graph);
    free(launch);
    if (status) {
        char why[1024];
        snprintf(why, sizeof why, "a graph's node failed: %s", fg_rt_last_error());
        fg_rt_log(FG_LOG_ERROR, "%s", why);
        for (bool held = fg_rt_stream_fail(why); held;)
            pause(); /* nothing mends it: what follows on this stream would compute with values that were never made */
    }
}

static int run_child(void *arg) {
    return run_nodes(arg);
}

static void drop_child(void *arg) {
    drop(arg);
}

int fg_rt_graph_launch(fg_graph_t *graph, fg_stream_t *stream) {
    int status = fg_fork_check();
    if (status)
        return status;
    hold(graph);
    if (stream->capture) {
        fg_graph_node_t node = {.run = run_child, .drop = drop_child, .name = "graph", .waits = graph->waits};
        if ((status = fg_rt_capture_add(stream->capture, stream, &node, graph)))
            drop(graph);
        return status;
    }
    if (!graph->waits) {
        int ran = FG_OK;
        launch_t now = {graph, &ran};
        status = fg_rt_stream_try(stream, run_launch, &now);
        if (status != FG_IN_PROGRESS) {
            drop(graph);
            return status ? status : ran ? FG_CUDA(719) : FG_OK;
        }
    }
    launch_t *later = malloc(sizeof *later);
    if (!later) {
        drop(graph);
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a launch");
    }
    *later = (launch_t){graph, NULL};
    if ((status = fg_rt_stream_enqueue(stream, run_launch, later))) {
        free(later);
        drop(graph);
    }
    return status;
}

/* ---- handles ---- */

struct fg_exec {
    fg_graph_t *graph;
};

int fg_rt_graph_check(const void *handle) {
    return fg_handle_alive(handle, FG_HANDLE_GRAPH) ? FG_OK
           : fg_rt_set_error(FG_CUDA(400), "graph %p: not a graph, or destroyed", handle);
}

int fg_rt_graph_destroy(fg_graph_t *graph) {
    if (!fg_handle_drop(graph, FG_HANDLE_GRAPH))
        return fg_rt_set_error(FG_CUDA(400), "graph %p: not a graph, or destroyed", (void *)graph);
    drop(graph);
    return FG_OK;
}

int fg_rt_exec_create(fg_graph_t *graph, fg_exec_t **out) {
    fg_exec_t *exec = malloc(sizeof *exec);
    if (!exec || fg_handle_add(exec, FG_HANDLE_EXEC)) {
        free(exec);
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for an executable graph");
    }
    hold(graph);
    exec->graph = graph;
    *out = exec;
    return FG_OK;
}

int fg_rt_exec_check(const void *handle) {
    return fg_handle_alive(handle, FG_HANDLE_EXEC) ? FG_OK
           : fg_rt_set_error(FG_CUDA(400), "executable graph %p: not one, or destroyed", handle);
}

int fg_rt_exec_destroy(fg_exec_t *exec) {
    if (!fg_handle_drop(exec, FG_HANDLE_EXEC))
        return fg_rt_set_error(FG_CUDA(400), "executable graph %p: not one, or destroyed", (void *)exec);
    drop(exec->graph);
    free(exec);
    return FG_OK;
}

fg_graph_t *fg_rt_exec_graph(const fg_exec_t *exec) {
    return exec->graph;
}

size_t fg_rt_graph_size(const fg_graph_t *graph) {
    return graph->count;
}

const char *fg_rt_graph_node_name(const fg_graph_t *graph, size_t index) {
    return index < graph->count ? graph->nodes[index].run.name : NULL;
}
