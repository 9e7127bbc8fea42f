/* Memory pools: a name and a ledger over the device's arena. Memory is taken at the call and given back in stream order;
 * nothing is kept for reuse, since taking and giving back cost a few microseconds, so reserved equals used.
 */
#include "device.h"
#include "fork.h"
#include "handles.h"

#include <pthread.h>
#include <stdlib.h>

struct fg_pool {
    int device;
    bool built_in;
    uint64_t values[FG_POOL_ATTRIBUTES]; /* by attribute number */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fg_pool_t *defaults[FG_MAX_DEVICES], *current[FG_MAX_DEVICES];

static fg_pool_t *make(int device, bool built_in) {
    fg_pool_t *pool = calloc(1, sizeof *pool);
    if (!pool || fg_handle_add(pool, FG_HANDLE_POOL)) {
        free(pool);
        fg_rt_set_error(FG_SYSTEM, "out of host memory for a memory pool");
        return NULL;
    }
    pool->device = device;
    pool->built_in = built_in;
    pool->values[1] = pool->values[2] = pool->values[3] = 1; /* reuse policies: on, as CUDA has them */
    return pool;
}

int fg_rt_pool_create(int device, fg_pool_t **out) {
    int status = fg_rt_device_check(device);
    if (status)
        return status;
    fg_fork_arm();
    *out = make(device, false);
    return *out ? FG_OK : FG_SYSTEM;
}

int fg_rt_pool_check(const void *handle) {
    if (fg_handle_alive(handle, FG_HANDLE_POOL))
        return FG_OK;
    return fg_rt_set_error(FG_INVALID_ARGUMENT, "memory pool %p: not a pool, or destroyed", handle);
}

int fg_rt_pool_destroy(fg_pool_t *pool) {
    int status = fg_rt_pool_check(pool);
    if (status)
        return status;
    if (pool->built_in)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "the default memory pool of device %d cannot be destroyed", pool->device);
    pthread_mutex_lock(&lock);
    if (current[pool->device] == pool)
        current[pool->device] = defaults[pool->device];
    pthread_mutex_unlock(&lock);
    fg_handle_drop(pool, FG_HANDLE_POOL); /* the record stays: its blocks may outlive it */
    return FG_OK;
}

int fg_rt_pool_default(int device, fg_pool_t **out) {
    int status = fg_rt_device_check(device);
    if (status)
        return status;
    fg_fork_arm();
    pthread_mutex_lock(&lock);
    if (!defaults[device])
        defaults[device] = make(device, true);
    *out = defaults[device];
    pthread_mutex_unlock(&lock);
    return *out ? FG_OK : FG_SYSTEM;
}

int fg_rt_pool_get(int device, fg_pool_t **out) {
    int status = fg_rt_pool_default(device, out);
    if (!status && current[device])
        *out = current[device];
    return status;
}

int fg_rt_pool_set(int device, fg_pool_t *pool) {
    int status = fg_rt_device_check(device);
    if (status || (status = fg_rt_pool_check(pool)))
        return status;
    if (pool->device != device)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "memory pool of device %d given to device %d", pool->device, device);
    current[device] = pool;
    return FG_OK;
}

int fg_rt_pool_device(const fg_pool_t *pool) {
    return pool->device;
}

static void count(fg_pool_t *pool, int64_t bytes) {
    pthread_mutex_lock(&lock);
    for (int i = 5; i <= 7; i += 2) { /* reserved, used: current, then high */
        pool->values[i] += (uint64_t)bytes;
        if (pool->values[i] > pool->values[i + 1])
            pool->values[i + 1] = pool->values[i];
    }
    pthread_mutex_unlock(&lock);
}

int fg_rt_pool_alloc(fg_pool_t *pool, uint64_t bytes, void **out) {
    fg_block_info_t info;
    int status = fg_rt_memory_alloc(pool->device, bytes, out);
    if (status || !*out)
        return status;
    fg_rt_memory_set_pool(*out, pool);
    status = fg_rt_block_info(*out, &info);
    if (!status)
        count(pool, (int64_t)info.memory.bytes);
    return status;
}

static void give_back(void *pointer) {
    fg_block_info_t info;
    if (fg_rt_block_info(pointer, &info))
        return;
    if (!fg_rt_memory_free(pointer) && info.pool)
        count(info.pool, -(int64_t)info.memory.bytes);
}

int fg_rt_pool_free(void *pointer, fg_stream_t *stream) {
    fg_block_info_t info;
    int status = fg_rt_block_info(pointer, &info);
    if (status || info.memory.base != pointer || info.memory.kind != FG_MEMORY_DEVICE)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "free: %p is not the start of device memory", pointer);
    return fg_rt_stream_run(stream, give_back, pointer);
}

int fg_rt_pool_attribute(fg_pool_t *pool, int attribute, bool set, void *value) {
    if (attribute < 1 || attribute >= FG_POOL_ATTRIBUTES)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "memory pool attribute %d: expected 1 to %d", attribute,
                               FG_POOL_ATTRIBUTES - 1);
    bool high = attribute == 6 || attribute == 8, narrow = attribute <= 3;
    uint64_t given = !set ? 0 : narrow ? (uint64_t)*(int *)value : *(uint64_t *)value;
    if (set && attribute > 4 && (!high || given))
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "memory pool attribute %d: only the high marks can be set, to 0", attribute);
    pthread_mutex_lock(&lock);
    if (set)
        pool->values[attribute] = high ? pool->values[attribute - 1] : given;
    else if (narrow)
        *(int *)value = (int)pool->values[attribute];
    else
        *(uint64_t *)value = pool->values[attribute];
    pthread_mutex_unlock(&lock);
    return FG_OK;
}
