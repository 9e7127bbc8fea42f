/* What can be asked about a context and set on it. Limits, flags and cache settings are kept and have no effect. */
#include "context.h"

#define LIMITS 12
#define API_VERSION 3020 /* what every context of CUDA since 3.2 reports */

static bool peer_enabled[FG_CONTEXT_DEVICES][FG_CONTEXT_DEVICES];
static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};

/* NULL: the current one */
static int resolve(CUcontext *context) {
    int status = *context ? fg_driver_enter() : fg_driver_context();
    if (!status && !*context)
        *context = fg_driver_current();
    return status ? status : fg_driver_check_context(*context);
}

FG_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(device, "cuCtxGetDevice: device is NULL");
    *device = fg_rt_device_get();
    return 0;
}

FG_EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    int status = resolve(&context);
    FG_REQUIRE(device, "cuCtxGetDevice: device is NULL");
    if (!status)
        *device = context->device;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuCtxSynchronize(void) {
    FG_ENTER_CONTEXT();
    return fg_driver_answer(fg_rt_device_sync(fg_rt_device_get()));
}

FG_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    int status = resolve(&context);
    return fg_driver_answer(status ? status : fg_rt_device_sync(context->device));
}

FG_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    int status = resolve(&context);
    FG_REQUIRE(id, "cuCtxGetId: ctxId is NULL");
    if (!status)
        *id = context->id;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    int status = resolve(&context);
    FG_REQUIRE(version, "cuCtxGetApiVersion: version is NULL");
    *version = API_VERSION;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(flags, "cuCtxGetFlags: flags is NULL");
    *flags = fg_driver_current()->flags;
    return 0;
}

FG_EXPORT CUresult cuCtxSetFlags(unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(flags <= 0xff, "cuCtxSetFlags: flags 0x%x: unknown bits", flags);
    fg_driver_current()->flags = flags;
    return 0;
}

FG_EXPORT CUresult cuCtxGetLimit(size_t *value, int limit) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(value, "cuCtxGetLimit: pvalue is NULL");
    if (limit < 0 || limit >= LIMITS)
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(215), "cuCtxGetLimit: limit %d: unknown", limit));
    *value = limits[limit];
    return 0;
}

FG_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
    FG_ENTER_CONTEXT();
    if (limit < 0 || limit >= LIMITS)
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(215), "cuCtxSetLimit: limit %d: unknown", limit));
    limits[limit] = value;
    return 0;
}

FG_EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    FG_ENTER_CONTEXT();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

FG_EXPORT CUresult cuCtxGetCacheConfig(int *config) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(config, "cuCtxGetCacheConfig: pconfig is NULL");
    *config = 0;
    return 0;
}

FG_EXPORT CUresult cuCtxSetCacheConfig(int config) {
    (void)config; /* a hint to hardware */
    FG_ENTER_CONTEXT();
    return 0;
}

FG_EXPORT CUresult cuCtxResetPersistingL2Cache(void) {
    FG_ENTER_CONTEXT();
    return 0;
}

static CUresult set_peer(CUcontext peer, bool enable) {
    FG_ENTER_CONTEXT();
    int device = fg_rt_device_get(), status = fg_driver_check_context(peer);
    if (status || device == peer->device)
        return fg_driver_answer(status ? status : fg_rt_set_error(FG_CUDA(101), "peer access of device %d to itself", device));
    if (peer_enabled[device][peer->device] == enable)
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(enable ? 704 : 705), "peer access %d -> %d is %s", device,
                                                peer->device, enable ? "enabled already" : "not enabled"));
    peer_enabled[device][peer->device] = enable;
    return 0;
}

FG_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    FG_REQUIRE(!flags, "cuCtxEnablePeerAccess: flags %u: expected 0", flags);
    return set_peer(peer, true);
}

FG_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return set_peer(peer, false);
}
