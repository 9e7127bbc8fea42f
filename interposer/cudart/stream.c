/* Streams and events as the runtime API sees them, host functions and callbacks included. Thin: order, waiting and
 * lifetime are libfakegpu_rt's.
 */
#include "cudart.h"

#include <stdlib.h>
#include <string.h>

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)
#define EVENT_FLAGS 7u

typedef struct host_call {
    cudaHostFn_t fn;
    cudaStreamCallback_t callback;
    cudaStream_t stream;
    void *data;
} host_call_t;

FG_EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    FG_ENTER();
    FG_REQUIRE(stream && flags <= 1, "cudaStreamCreate: no place for the handle, or flags %u: expected 0 or 1", flags);
    int kept = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    return fg_cudart_answer(fg_rt_stream_create(fg_rt_device_get(), flags, kept, (fg_stream_t **)stream));
}

FG_EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

FG_EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithPriority(stream, 0, 0);
}

FG_EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    FG_ENTER();
    FG_REQUIRE((uintptr_t)stream > 2, "cudaStreamDestroy: a default stream cannot be destroyed");
    return fg_cudart_answer(fg_rt_stream_destroy(stream));
}

FG_EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    WITH_STREAM(stream, s);
    return fg_cudart_answer(fg_rt_stream_sync(s));
}

FG_EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    WITH_STREAM(stream, s);
    return fg_cudart_answer(fg_rt_stream_query(s));
}

FG_EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(priority, "cudaStreamGetPriority: priority is NULL");
    *priority = fg_rt_stream_priority(s);
    return 0;
}

FG_EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags, "cudaStreamGetFlags: flags is NULL");
    *flags = fg_rt_stream_flags(s);
    return 0;
}

FG_EXPORT cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(id, "cudaStreamGetId: streamId is NULL");
    *id = fg_rt_stream_id(s);
    return 0;
}

FG_EXPORT cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(device, "cudaStreamGetDevice: device is NULL");
    *device = fg_rt_stream_device(s);
    return 0;
}

/* Attributes steer caches and scheduling of hardware: only the priority means something here. */
FG_EXPORT cudaError_t cudaStreamGetAttribute(cudaStream_t stream, int attribute, cudaLaunchAttributeValue *value) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(value, "cudaStreamGetAttribute: value_out is NULL");
    FG_REQUIRE(attribute == 1 || attribute == 3 || (attribute >= 8 && attribute <= 10),
               "cudaStreamGetAttribute: attr %d: not an attribute of a stream", attribute);
    memset(value, 0, sizeof *value);
    value->number = attribute == 8 ? fg_rt_stream_priority(s) : attribute == 3;
    return 0;
}

FG_EXPORT cudaError_t cudaStreamSetAttribute(cudaStream_t stream, int attribute, const cudaLaunchAttributeValue *value) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(value, "cudaStreamSetAttribute: value is NULL");
    FG_REQUIRE(attribute == 1 || attribute == 3 || (attribute >= 8 && attribute <= 10),
               "cudaStreamSetAttribute: attr %d: not an attribute of a stream", attribute);
    (void)s;
    return 0;
}

FG_EXPORT cudaError_t cudaStreamCopyAttributes(cudaStream_t to, cudaStream_t from) {
    WITH_STREAM(to, destination);
    fg_stream_t *source = fg_cudart_stream(from, &status);
    (void)destination, (void)source;
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void *pointer, size_t length, unsigned flags) {
    (void)length, (void)flags; /* visibility of managed memory: the host always sees it */
    WITH_STREAM(stream, s);
    (void)s;
    FG_REQUIRE(fg_rt_memory_kind(pointer) == FG_MEMORY_MANAGED, "cudaStreamAttachMemAsync: %p is not managed", pointer);
    return 0;
}

/* ---- host functions: always on the stream's worker, as CUDA calls them from a thread of its own ---- */

static void call_host(void *arg) {
    host_call_t *call = arg;
    if (call->fn)
        call->fn(call->data);
    else
        call->callback(call->stream, 0, call->data);
    free(call);
}

static int node_host_call(void *arg) {
    host_call_t *call = arg;
    call->fn(call->data);
    return FG_OK;
}

static int give_host_call(fg_stream_t *stream, host_call_t call) {
    static const fg_graph_node_t node = {.run = node_host_call, .drop = free, .name = "host function", .waits = true};
    host_call_t *kept = malloc(sizeof *kept);
    if (!kept)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a host function");
    *kept = call;
    fg_graph_t *graph = call.fn && fg_rt_captures ? fg_rt_capture_graph(stream) : NULL;
    int status = graph ? fg_rt_capture_add(graph, stream, &node, kept) : fg_rt_stream_enqueue(stream, call_host, kept);
    if (status)
        free(kept);
    return status;
}

FG_EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(fn, "cudaLaunchHostFunc: fn is NULL");
    return fg_cudart_answer(give_host_call(s, (host_call_t){.fn = fn, .data = data}));
}

FG_EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data,
                                            unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(callback && !flags, "cudaStreamAddCallback: callback is NULL or flags %u: expected 0", flags);
    return fg_cudart_answer(give_host_call(s, (host_call_t){.callback = callback, .stream = stream, .data = data}));
}

/* ---- events ---- */

FG_EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(event && !(flags & ~EVENT_FLAGS), "cudaEventCreate: no place for the handle, or flags 0x%x", flags);
    FG_REQUIRE(!(flags & 4) || (flags & 2), "cudaEventCreate: an interprocess event needs cudaEventDisableTiming");
    return fg_cudart_answer(fg_rt_event_create(fg_rt_device_get(), flags, (fg_event_t **)event));
}

FG_EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

FG_EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_event_destroy(event));
}

FG_EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags <= 1, "cudaEventRecordWithFlags: flags %u: expected 0 or 1", flags);
    status = fg_rt_event_check(event);
    return fg_cudart_answer(status ? status : fg_rt_event_record(event, s));
}

FG_EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

FG_EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags <= 1, "cudaStreamWaitEvent: flags %u: expected 0 or 1", flags);
    status = fg_rt_event_check(event);
    return fg_cudart_answer(status ? status : fg_rt_event_wait(s, event));
}

FG_EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    FG_ENTER();
    int status = fg_rt_event_check(event);
    return fg_cudart_answer(status ? status : fg_rt_event_query(event));
}

FG_EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    FG_ENTER();
    int status = fg_rt_event_check(event);
    return fg_cudart_answer(status ? status : fg_rt_event_sync(event));
}

FG_EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    FG_ENTER();
    FG_REQUIRE(milliseconds, "cudaEventElapsedTime: ms is NULL");
    int status = fg_rt_event_check(start);
    if (!status)
        status = fg_rt_event_check(end);
    return fg_cudart_answer(status ? status : fg_rt_event_elapsed(start, end, milliseconds));
}
