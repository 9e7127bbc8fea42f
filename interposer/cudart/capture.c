/* Stream capture and graphs as the runtime API sees them. What a graph holds and how it runs is libfakegpu_rt's. */
#include "cudart.h"

#include <stdio.h>

#define CAPTURE_MODE_LAST 2

/* cudaStreamCaptureMode of the calling thread: global (0) until the thread exchanges it */
static __thread int thread_mode;

FG_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *capture) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(capture, "cudaStreamIsCapturing: no place for the answer");
    uint64_t id;
    *capture = fg_rt_capture_state(s, &id, NULL);
    return FG_OK;
}

FG_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *capture, unsigned long long *id, void **graph,
                                               const void **dependencies, const void **edges, size_t *count) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(capture, "cudaStreamGetCaptureInfo: no place for the answer");
    uint64_t number;
    fg_graph_t *found;
    *capture = fg_rt_capture_state(s, &number, &found);
    if (id) *id = number;
    if (*capture == 0) { /* CUDA leaves the others alone when nothing is captured */
        if (count) *count = 0;
        return FG_OK;
    }
    if (graph) *graph = found;
    if (dependencies) *dependencies = NULL; /* a graph here is a sequence: nothing depends on single nodes */
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    FG_ENTER();
    FG_REQUIRE(mode && *mode >= 0 && *mode <= CAPTURE_MODE_LAST, "cudaThreadExchangeStreamCaptureMode: expected 0, 1 or 2");
    int previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(mode >= 0 && mode <= CAPTURE_MODE_LAST, "cudaStreamBeginCapture: mode %d: expected 0, 1 or 2", mode);
    return fg_cudart_answer(fg_rt_capture_begin(s));
}

FG_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, void **graph) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(graph, "cudaStreamEndCapture: no place for the graph");
    return fg_cudart_answer(fg_rt_capture_end(s, (fg_graph_t **)graph));
}

FG_EXPORT cudaError_t cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) {
    (void)flags; /* of memory nodes, upload and priorities, none of which matter on the host */
    FG_ENTER();
    FG_REQUIRE(exec, "cudaGraphInstantiate: no place for the executable graph");
    int status = fg_rt_graph_check(graph);
    return fg_cudart_answer(status ? status : fg_rt_exec_create(graph, (fg_exec_t **)exec));
}

FG_EXPORT cudaError_t cudaGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    return cudaGraphInstantiate(exec, graph, flags);
}

FG_EXPORT cudaError_t cudaGraphLaunch(void *exec, cudaStream_t stream) {
    WITH_STREAM(stream, s);
    status = fg_rt_exec_check(exec);
    return fg_cudart_answer(status ? status : fg_rt_graph_launch(fg_rt_exec_graph(exec), s));
}

FG_EXPORT cudaError_t cudaGraphUpload(void *exec, cudaStream_t stream) {
    WITH_STREAM(stream, s);
    (void)s;
    return fg_cudart_answer(fg_rt_exec_check(exec));
}

FG_EXPORT cudaError_t cudaGraphDestroy(void *graph) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_graph_destroy(graph));
}

FG_EXPORT cudaError_t cudaGraphExecDestroy(void *exec) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_exec_destroy(exec));
}

/* Nodes are named by their place: nothing that takes a node is supported. */
FG_EXPORT cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    FG_ENTER();
    int status = fg_rt_graph_check(graph);
    if (status) return fg_cudart_answer(status);
    FG_REQUIRE(count, "cudaGraphGetNodes: numNodes is NULL");
    size_t there = fg_rt_graph_size(graph);
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < there ? (void *)(i + 1) : NULL;
    if (!nodes || *count > there) *count = there;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaGraphDebugDotPrint(void *graph, const char *path, unsigned flags) {
    (void)flags;
    FG_ENTER();
    int status = fg_rt_graph_check(graph);
    if (status) return fg_cudart_answer(status);
    FILE *file = path ? fopen(path, "w") : NULL;
    FG_REQUIRE(file, "cudaGraphDebugDotPrint: %s cannot be written", path ? path : "NULL");
    fputs("digraph {\n", file);
    const char *name;
    for (size_t i = 0; (name = fg_rt_graph_node_name(graph, i)); i++) {
        fprintf(file, "  n%zu [label=\"%s\"];\n", i, name);
        if (i) fprintf(file, "  n%zu -> n%zu;\n", i - 1, i);
    }
    fputs("}\n", file);
    FG_REQUIRE(!fclose(file), "cudaGraphDebugDotPrint: %s cannot be written", path);
    return FG_OK;
}

FG_EXPORT cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, int *capture) {
    return cudaStreamIsCapturing(stream ? stream : (cudaStream_t)2, capture);
}

FG_EXPORT cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, int *capture, unsigned long long *id, void **graph,
                                                    const void **dependencies, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo(stream ? stream : (cudaStream_t)2, capture, id, graph, dependencies, edges, count);
}

FG_EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, int mode) {
    return cudaStreamBeginCapture(stream ? stream : (cudaStream_t)2, mode);
}

FG_EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, void **graph) {
    return cudaStreamEndCapture(stream ? stream : (cudaStream_t)2, graph);
}

FG_EXPORT cudaError_t cudaGraphLaunch_ptsz(void *exec, cudaStream_t stream) {
    return cudaGraphLaunch(exec, stream ? stream : (cudaStream_t)2);
}

FG_EXPORT cudaError_t cudaGraphUpload_ptsz(void *exec, cudaStream_t stream) {
    return cudaGraphUpload(exec, stream ? stream : (cudaStream_t)2);
}
