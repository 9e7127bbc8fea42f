/* Owns contexts: one primary context per device, those a program creates, and each thread's stack of current ones. The
 * runtime API's current device and the stack are one thing seen from two sides: a context made current here selects its
 * device there, and a device chosen there makes its primary context the current one here.
 */
#include "context.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES FG_CONTEXT_DEVICES
#define DEPTH 32

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fg_context primaries[DEVICES], *created;
static unsigned long long next_id = DEVICES + 1;
static __thread struct {
    struct fg_context *stack[DEPTH];
    int depth;
    unsigned epoch; /* of fg_rt_device_epoch, when the stack last agreed with the runtime API */
    bool chosen;    /* the thread has set a context, be it none */
} thread;

struct fg_context *fg_driver_primary(int device) {
    primaries[device].device = device;
    primaries[device].id = (unsigned long long)device + 1;
    return &primaries[device];
}

static bool is_primary(const struct fg_context *context) {
    return context >= primaries && context < primaries + DEVICES;
}

bool fg_driver_context_alive(const struct fg_context *context) {
    if (is_primary(context))
        return true;
    pthread_mutex_lock(&lock);
    const struct fg_context *c = created;
    while (c && c != context)
        c = c->next;
    pthread_mutex_unlock(&lock);
    return c != NULL;
}

int fg_driver_check_context(const struct fg_context *context) {
    if (context && fg_driver_context_alive(context))
        return FG_OK;
    return fg_rt_set_error(FG_CUDA(201), "context %p: not a context, or destroyed", (const void *)context);
}

/* Makes the stack's top the thread's device on the runtime's side too. */
static int select_top(void) {
    thread.chosen = true;
    int status = thread.depth ? fg_rt_device_set(thread.stack[thread.depth - 1]->device) : FG_OK;
    thread.epoch = fg_rt_device_epoch();
    return status;
}

struct fg_context *fg_driver_current(void) {
    int device = fg_rt_device_get();
    bool runtime_chose = thread.epoch != fg_rt_device_epoch();
    bool runtime_began = !thread.chosen && !fg_rt_device_epoch() && fg_rt_device_active(device);
    if (runtime_chose || runtime_began) {
        struct fg_context *own = fg_driver_primary(device);
        thread.depth += !thread.depth;
        /* a created context stays current when the runtime chooses the device it belongs to */
        struct fg_context **top = &thread.stack[thread.depth - 1];
        if (!*top || (*top)->device != device)
            *top = own;
        thread.epoch = fg_rt_device_epoch();
    }
    return thread.depth ? thread.stack[thread.depth - 1] : NULL;
}

int fg_driver_context(void) {
    int status = fg_driver_enter();
    if (status)
        return status;
    const struct fg_context *context = fg_driver_current();
    if (!context)
        return fg_rt_set_error(FG_CUDA(201), "no context is current to this thread");
    if (!fg_driver_context_alive(context))
        return fg_rt_set_error(FG_CUDA(709), "the thread's context was destroyed");
    return FG_OK;
}

/* ---- primary contexts ---- */

FG_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(context, "cuDevicePrimaryCtxRetain: pctx is NULL");
    int status = fg_rt_device_check(device);
    if (status)
        return fg_driver_answer(status);
    pthread_mutex_lock(&lock);
    *context = fg_driver_primary(device);
    (*context)->retained++;
    pthread_mutex_unlock(&lock);
    return 0;
}

FG_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    FG_ENTER();
    int status = fg_rt_device_check(device);
    if (status)
        return fg_driver_answer(status);
    pthread_mutex_lock(&lock);
    bool held = primaries[device].retained > 0;
    primaries[device].retained -= held;
    pthread_mutex_unlock(&lock);
    return held ? 0 : fg_driver_answer(fg_rt_set_error(FG_CUDA(201), "cuDevicePrimaryCtxRelease: device %d: not retained",
                                                       device));
}

FG_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    FG_ENTER();
    int status = fg_rt_device_check(device);
    if (!status && !(status = fg_rt_device_sync(device)))
        fg_rt_memory_free_device(device);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    FG_ENTER();
    FG_REQUIRE(flags && active, "cuDevicePrimaryCtxGetState: a pointer is NULL");
    int status = fg_rt_device_check(device);
    if (status)
        return fg_driver_answer(status);
    pthread_mutex_lock(&lock);
    *flags = primaries[device].flags;
    *active = primaries[device].retained > 0 || fg_rt_device_active(device);
    pthread_mutex_unlock(&lock);
    return 0;
}

FG_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(flags <= 0xff, "cuDevicePrimaryCtxSetFlags: flags 0x%x: unknown bits", flags);
    int status = fg_rt_device_check(device);
    if (!status)
        primaries[device].flags = flags;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }
FG_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }
FG_EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

/* ---- the thread's stack ---- */

FG_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    FG_ENTER();
    FG_REQUIRE(context, "cuCtxGetCurrent: pctx is NULL");
    *context = fg_driver_current();
    return 0;
}

FG_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    FG_ENTER();
    int status = context ? fg_driver_check_context(context) : FG_OK;
    if (status)
        return fg_driver_answer(status);
    fg_driver_current();
    if (!context) {
        thread.depth -= thread.depth > 0;
    } else {
        thread.depth += !thread.depth;
        thread.stack[thread.depth - 1] = context;
    }
    return fg_driver_answer(select_top());
}

FG_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    FG_ENTER();
    int status = fg_driver_check_context(context);
    if (status)
        return fg_driver_answer(status);
    fg_driver_current();
    FG_REQUIRE(thread.depth < DEPTH, "cuCtxPushCurrent: more than %d contexts on the stack", DEPTH);
    thread.stack[thread.depth++] = context;
    return fg_driver_answer(select_top());
}

FG_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    FG_ENTER();
    CUcontext top = fg_driver_current();
    if (!top)
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(201), "cuCtxPopCurrent: the thread's stack of contexts is empty"));
    thread.depth--;
    if (context)
        *context = top;
    return fg_driver_answer(select_top());
}

FG_EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }
FG_EXPORT CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

/* ---- contexts a program creates ---- */

static CUresult create(CUcontext *context, unsigned flags, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(context && flags <= 0xff, "cuCtxCreate: no place for the context, or flags 0x%x", flags);
    int status = fg_rt_device_check(device);
    struct fg_context *made = status ? NULL : calloc(1, sizeof *made);
    if (!made)
        return fg_driver_answer(status ? status : fg_rt_set_error(FG_OUT_OF_MEMORY, "cuCtxCreate: out of host memory"));
    made->device = device;
    made->flags = flags;
    pthread_mutex_lock(&lock);
    made->id = next_id++;
    made->next = created;
    created = made;
    pthread_mutex_unlock(&lock);
    *context = made;
    return cuCtxPushCurrent_v2(made);
}

FG_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    return create(context, flags, device);
}

FG_EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device) {
    FG_REQUIRE(!affinity && !count, "cuCtxCreate: execution affinity is not available");
    return create(context, flags, device);
}

FG_EXPORT CUresult cuCtxCreate_v4(CUcontext *context, const CUctxCreateParams *params, unsigned flags, CUdevice device) {
    FG_REQUIRE(!params || (!params->numExecAffinityParams && !params->cigParams),
               "cuCtxCreate: execution affinity and graphics contexts are not available");
    return create(context, flags, device);
}

FG_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    FG_ENTER();
    int status = fg_driver_check_context(context);
    if (!status && is_primary(context))
        status = fg_rt_set_error(FG_CUDA(201), "cuCtxDestroy: a primary context is released, not destroyed");
    if (status || (status = fg_rt_device_sync(context->device)))
        return fg_driver_answer(status);
    if (fg_driver_current() == context) {
        thread.depth--;
        status = select_top();
    }
    pthread_mutex_lock(&lock);
    struct fg_context **c = &created;
    while (*c && *c != context)
        c = &(*c)->next;
    if (*c)
        *c = context->next;
    pthread_mutex_unlock(&lock);
    free(context);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }
