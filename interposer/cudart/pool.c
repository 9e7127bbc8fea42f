/* Stream-ordered allocation and memory pools of the runtime API. */
#include "cudart_calls.h"

FG_EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
    int status;
    FG_ENTER();
    FG_REQUIRE(pointer && bytes, "cudaMallocAsync: size 0 or no place for the pointer");
    if (!fg_cudart_stream(stream, &status) || (status = fg_rt_pool_check(pool)))
        return fg_cudart_answer(status);
    return fg_cudart_answer(fg_rt_pool_alloc(pool, bytes, pointer));
}

FG_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream) {
    int status;
    FG_ENTER();
    fg_pool_t *pool;
    fg_stream_t *s = fg_cudart_stream(stream, &status);
    if (!s || (status = fg_rt_pool_get(fg_rt_stream_device(s), &pool)))
        return fg_cudart_answer(status);
    return cudaMallocFromPoolAsync(pointer, bytes, pool, stream);
}

FG_EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream) {
    int status;
    FG_ENTER();
    fg_stream_t *s = fg_cudart_stream(stream, &status);
    return fg_cudart_answer(s ? fg_rt_pool_free(pointer, s) : status);
}

FG_EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    FG_ENTER();
    FG_REQUIRE(pool, "cudaDeviceGetDefaultMemPool: memPool is NULL");
    return fg_cudart_answer(fg_rt_pool_default(device, (fg_pool_t **)pool));
}

FG_EXPORT cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *pool, int device) {
    FG_ENTER();
    FG_REQUIRE(pool, "cudaDeviceGetMemPool: memPool is NULL");
    return fg_cudart_answer(fg_rt_pool_get(device, (fg_pool_t **)pool));
}

FG_EXPORT cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_pool_set(device, pool));
}

FG_EXPORT cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
    FG_ENTER();
    FG_REQUIRE(pool && properties && properties->allocType == 1, "cudaMemPoolCreate: expected pinned device memory");
    if (properties->location.type != 1 || properties->handleTypes)
        return fg_cudart_answer(fg_rt_unsupported("cudaMemPoolCreate", "only pools on a device, not exported"));
    return fg_cudart_answer(fg_rt_pool_create(properties->location.id, (fg_pool_t **)pool));
}

FG_EXPORT cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_pool_destroy(pool));
}

FG_EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    (void)keep; /* nothing is held back that could be given up */
    FG_ENTER();
    return fg_cudart_answer(fg_rt_pool_check(pool));
}

FG_EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, int attribute, void *value) {
    FG_ENTER();
    FG_REQUIRE(value, "cudaMemPoolSetAttribute: value is NULL");
    int status = fg_rt_pool_check(pool);
    return fg_cudart_answer(status ? status : fg_rt_pool_attribute(pool, attribute, true, value));
}

FG_EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, int attribute, void *value) {
    FG_ENTER();
    FG_REQUIRE(value, "cudaMemPoolGetAttribute: value is NULL");
    int status = fg_rt_pool_check(pool);
    return fg_cudart_answer(status ? status : fg_rt_pool_attribute(pool, attribute, false, value));
}

/* Every device of the process reaches every pool: one address space. */
FG_EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list, size_t count) {
    FG_ENTER();
    FG_REQUIRE(list || !count, "cudaMemPoolSetAccess: descList is NULL");
    int status = fg_rt_pool_check(pool);
    for (size_t i = 0; !status && i < count; i++)
        if (list[i].location.type == 1)
            status = fg_rt_device_check(list[i].location.id);
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaMemPoolGetAccess(int *flags, cudaMemPool_t pool, struct cudaMemLocation *location) {
    FG_ENTER();
    FG_REQUIRE(flags && location, "cudaMemPoolGetAccess: a pointer is NULL");
    int status = fg_rt_pool_check(pool);
    if (!status)
        *flags = 3;
    return fg_cudart_answer(status);
}
