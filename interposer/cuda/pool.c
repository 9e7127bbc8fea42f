/* Stream-ordered allocation and memory pools: the runtime API's pools. */
#include "driver.h"

#define PINNED 1

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

FG_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    int status;
    FG_ENTER_CONTEXT();
    FG_REQUIRE(pointer && bytes, "cuMemAllocAsync: size 0 or no place for the pointer");
    void *made = NULL;
    if (fg_driver_stream(stream, &status) && !(status = fg_rt_pool_check(pool)))
        status = fg_rt_pool_alloc(pool, bytes, &made);
    *pointer = (uintptr_t)made;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    int status;
    FG_ENTER_CONTEXT();
    fg_pool_t *pool;
    fg_stream_t *s = fg_driver_stream(stream, &status);
    if (!s || (status = fg_rt_pool_get(fg_rt_stream_device(s), &pool)))
        return fg_driver_answer(status);
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

FG_EXPORT CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    int status;
    FG_ENTER_CONTEXT();
    fg_stream_t *s = fg_driver_stream(stream, &status);
    return fg_driver_answer(s ? fg_rt_pool_free(address(pointer), s) : status);
}

FG_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(pool, "cuDeviceGetDefaultMemPool: pool_out is NULL");
    return fg_driver_answer(fg_rt_pool_default(device, (fg_pool_t **)pool));
}

FG_EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(pool, "cuDeviceGetMemPool: pool is NULL");
    return fg_driver_answer(fg_rt_pool_get(device, (fg_pool_t **)pool));
}

FG_EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_pool_set(device, pool));
}

FG_EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    FG_ENTER();
    FG_REQUIRE(pool && properties && properties->allocType == PINNED, "cuMemPoolCreate: expected pinned device memory");
    if (properties->location.type != CU_LOCATION_DEVICE || properties->handleTypes)
        return fg_driver_answer(fg_rt_unsupported("cuMemPoolCreate", "only pools on a device, not exported"));
    return fg_driver_answer(fg_rt_pool_create(properties->location.id, (fg_pool_t **)pool));
}

FG_EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_pool_destroy(pool));
}

FG_EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    (void)keep; /* nothing is held back that could be given up */
    FG_ENTER();
    return fg_driver_answer(fg_rt_pool_check(pool));
}

FG_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    FG_ENTER();
    FG_REQUIRE(value, "cuMemPoolSetAttribute: value is NULL");
    int status = fg_rt_pool_check(pool);
    return fg_driver_answer(status ? status : fg_rt_pool_attribute(pool, attribute, true, value));
}

FG_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    FG_ENTER();
    FG_REQUIRE(value, "cuMemPoolGetAttribute: value is NULL");
    int status = fg_rt_pool_check(pool);
    return fg_driver_answer(status ? status : fg_rt_pool_attribute(pool, attribute, false, value));
}

/* Every device of the process reaches every pool: one address space. */
FG_EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *list, size_t count) {
    FG_ENTER();
    FG_REQUIRE(list || !count, "cuMemPoolSetAccess: map is NULL");
    int status = fg_rt_pool_check(pool);
    for (size_t i = 0; !status && i < count; i++)
        if (list[i].location.type == CU_LOCATION_DEVICE)
            status = fg_rt_device_check(list[i].location.id);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    FG_ENTER();
    FG_REQUIRE(flags && location, "cuMemPoolGetAccess: a pointer is NULL");
    int status = fg_rt_pool_check(pool);
    if (!status)
        *flags = 3;
    return fg_driver_answer(status);
}
