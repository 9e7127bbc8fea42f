/* Streams and events of the driver API: the very objects of the runtime API. Thin: order, waiting and lifetime are
 * libfakegpu_rt's.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define GREATEST_PRIORITY (-5)
#define EVENT_FLAGS 7u
#define CAPTURE_ACTIVE 1

typedef struct host_call {
    CUhostFn fn;
    CUstreamCallback callback;
    CUstream stream;
    void *data;
} host_call_t;

fg_stream_t *fg_driver_stream(CUstream handle, int *status) {
    fg_stream_t *stream = fg_rt_stream_resolve(handle, fg_rt_device_get());
    *status = stream ? FG_OK : FG_CUDA(400);
    return stream;
}

FG_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(stream && flags <= 1, "cuStreamCreate: no place for the handle, or flags %u: expected 0 or 1", flags);
    int kept = priority > 0 ? 0 : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    return fg_driver_answer(fg_rt_stream_create(fg_rt_device_get(), flags, kept, (fg_stream_t **)stream));
}

FG_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

FG_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    FG_ENTER();
    FG_REQUIRE((uintptr_t)stream > 2, "cuStreamDestroy: a default stream cannot be destroyed");
    return fg_driver_answer(fg_rt_stream_destroy(stream));
}

FG_EXPORT CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

#define WITH_STREAM(handle, name)                          \
    int status;                                            \
    FG_ENTER_CONTEXT();                                    \
    fg_stream_t *name = fg_driver_stream(handle, &status); \
    if (!name)                                             \
    return fg_driver_answer(status)

FG_EXPORT CUresult cuStreamSynchronize(CUstream stream) {
    WITH_STREAM(stream, s);
    return fg_driver_answer(fg_rt_stream_sync(s));
}

FG_EXPORT CUresult cuStreamQuery(CUstream stream) {
    WITH_STREAM(stream, s);
    return fg_driver_answer(fg_rt_stream_query(s));
}

FG_EXPORT CUresult cuStreamGetPriority(CUstream stream, int *priority) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(priority, "cuStreamGetPriority: priority is NULL");
    *priority = fg_rt_stream_priority(s);
    return 0;
}

FG_EXPORT CUresult cuStreamGetFlags(CUstream stream, unsigned *flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags, "cuStreamGetFlags: flags is NULL");
    *flags = fg_rt_stream_flags(s);
    return 0;
}

FG_EXPORT CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(id, "cuStreamGetId: streamId is NULL");
    *id = fg_rt_stream_id(s);
    return 0;
}

FG_EXPORT CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(device, "cuStreamGetDevice: device is NULL");
    *device = fg_rt_stream_device(s);
    return 0;
}

FG_EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(context, "cuStreamGetCtx: pctx is NULL");
    *context = fg_driver_primary(fg_rt_stream_device(s));
    return 0;
}

FG_EXPORT CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, void **green) {
    if (green)
        *green = NULL;
    return cuStreamGetCtx(stream, context);
}

/* Attributes steer caches and scheduling of hardware: only the priority means something here. */
static bool is_stream_attribute(int attribute) {
    return attribute == 1 || attribute == 3 || (attribute >= 8 && attribute <= 10);
}

FG_EXPORT CUresult cuStreamGetAttribute(CUstream stream, int attribute, CUlaunchAttributeValue *value) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(value && is_stream_attribute(attribute), "cuStreamGetAttribute: attr %d: not an attribute of a stream",
               attribute);
    memset(value, 0, sizeof *value);
    value->number = attribute == 8 ? fg_rt_stream_priority(s) : attribute == 3;
    return 0;
}

FG_EXPORT CUresult cuStreamSetAttribute(CUstream stream, int attribute, const CUlaunchAttributeValue *value) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(value && is_stream_attribute(attribute), "cuStreamSetAttribute: attr %d: not an attribute of a stream",
               attribute);
    return 0;
}

FG_EXPORT CUresult cuStreamCopyAttributes(CUstream to, CUstream from) {
    WITH_STREAM(to, destination);
    fg_driver_stream(from, &status);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t length, unsigned flags) {
    (void)length, (void)flags; /* visibility of managed memory: the host always sees it */
    WITH_STREAM(stream, s);
    FG_REQUIRE(fg_rt_memory_kind((void *)(uintptr_t)pointer) == FG_MEMORY_MANAGED,
               "cuStreamAttachMemAsync: 0x%llx is not managed", pointer);
    return 0;
}

FG_EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *capture) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(capture, "cuStreamIsCapturing: no place for the answer");
    *capture = fg_rt_stream_capturing(s) ? CAPTURE_ACTIVE : 0;
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

static int give_host_call(fg_stream_t *stream, host_call_t call) {
    host_call_t *kept = malloc(sizeof *kept);
    if (!kept)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a host function");
    *kept = call;
    int status = fg_rt_stream_enqueue(stream, call_host, kept);
    if (status)
        free(kept);
    return status;
}

FG_EXPORT CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(fn, "cuLaunchHostFunc: fn is NULL");
    return fg_driver_answer(give_host_call(s, (host_call_t){.fn = fn, .data = data}));
}

FG_EXPORT CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(callback && !flags, "cuStreamAddCallback: callback is NULL or flags %u: expected 0", flags);
    return fg_driver_answer(give_host_call(s, (host_call_t){.callback = callback, .stream = stream, .data = data}));
}

/* ---- events ---- */

FG_EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(event && !(flags & ~EVENT_FLAGS), "cuEventCreate: no place for the handle, or flags 0x%x", flags);
    FG_REQUIRE(!(flags & FG_EVENT_INTERPROCESS) || (flags & FG_EVENT_DISABLE_TIMING),
               "cuEventCreate: an interprocess event needs CU_EVENT_DISABLE_TIMING");
    return fg_driver_answer(fg_rt_event_create(fg_rt_device_get(), flags, (fg_event_t **)event));
}

FG_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_event_destroy(event));
}

FG_EXPORT CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

FG_EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags <= 1, "cuEventRecordWithFlags: flags %u: expected 0 or 1", flags);
    status = fg_rt_event_check(event);
    return fg_driver_answer(status ? status : fg_rt_event_record(event, s));
}

FG_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
    return cuEventRecordWithFlags(event, stream, 0);
}

FG_EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    WITH_STREAM(stream, s);
    FG_REQUIRE(flags <= 1, "cuStreamWaitEvent: flags %u: expected 0 or 1", flags);
    status = fg_rt_event_check(event);
    return fg_driver_answer(status ? status : fg_rt_event_wait(s, event));
}

FG_EXPORT CUresult cuEventQuery(CUevent event) {
    FG_ENTER();
    int status = fg_rt_event_check(event);
    return fg_driver_answer(status ? status : fg_rt_event_query(event));
}

FG_EXPORT CUresult cuEventSynchronize(CUevent event) {
    FG_ENTER();
    int status = fg_rt_event_check(event);
    return fg_driver_answer(status ? status : fg_rt_event_sync(event));
}

FG_EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    FG_ENTER();
    FG_REQUIRE(milliseconds, "cuEventElapsedTime: pMilliseconds is NULL");
    int status = fg_rt_event_check(start);
    if (!status)
        status = fg_rt_event_check(end);
    return fg_driver_answer(status ? status : fg_rt_event_elapsed(start, end, milliseconds));
}

FG_EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}
