/* Allocation and what can be asked about a pointer. The same objects as the runtime API's: what one side allocates the
 * other side frees. Memory belongs to the device of the current context.
 */
#include "driver.h"

#include <string.h>

#define PITCH 512u
#define HOST_FLAGS 7u      /* portable, device-mapped, write-combined */
#define REGISTER_FLAGS 15u /* portable, device-mapped, I/O memory, read-only */
#define MAPPED 2u

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

FG_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(pointer && bytes, "cuMemAlloc: size 0 or no place for the pointer");
    void *made = NULL;
    int status = fg_rt_memory_alloc(fg_rt_device_get(), bytes, &made);
    *pointer = (uintptr_t)made;
    return fg_driver_answer(status);
}

/* Waits for the device first, as CUDA does: work given before may still use the memory. */
static int release(void *pointer, fg_memory_kind_t kind) {
    fg_block_info_t info;
    int status = fg_rt_block_info(pointer, &info);
    if (!status)
        status = fg_rt_device_sync(info.memory.device);
    if (!status && kind == FG_MEMORY_DEVICE && info.memory.kind == FG_MEMORY_MANAGED)
        kind = FG_MEMORY_MANAGED;
    return status ? status : fg_rt_memory_release(pointer, kind);
}

FG_EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    FG_ENTER();
    return pointer ? fg_driver_answer(release(address(pointer), FG_MEMORY_DEVICE)) : 0;
}

FG_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    FG_REQUIRE(pointer && pitch && width && height, "cuMemAllocPitch: a size is 0 or a pointer NULL");
    FG_REQUIRE(element == 4 || element == 8 || element == 16, "cuMemAllocPitch: element %u: expected 4, 8 or 16", element);
    FG_REQUIRE(width < (1ull << 40) && height < (1ull << 20), "cuMemAllocPitch: %zu x %zu is too large", width, height);
    *pitch = (width + PITCH - 1) & ~(size_t)(PITCH - 1);
    return cuMemAlloc_v2(pointer, *pitch * height);
}

FG_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(pointer && bytes, "cuMemAllocManaged: size 0 or no place for the pointer");
    FG_REQUIRE(flags == 1 || flags == 2, "cuMemAllocManaged: flags %u: expected 1 or 2", flags);
    void *made = NULL;
    int status = fg_rt_managed_alloc(fg_rt_device_get(), bytes, flags, &made);
    *pointer = (uintptr_t)made;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(free_bytes && total_bytes, "cuMemGetInfo: a pointer is NULL");
    uint64_t used, total;
    int status = fg_rt_memory_usage(fg_rt_device_get(), &used, &total);
    if (status)
        return fg_driver_answer(status);
    *free_bytes = total - used;
    *total_bytes = total;
    return 0;
}

FG_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer) {
    FG_ENTER_CONTEXT();
    fg_memory_info_t info;
    if (fg_rt_memory_lookup(address(pointer), &info))
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(500), "cuMemGetAddressRange: 0x%llx: no allocation there", pointer));
    if (base)
        *base = (uintptr_t)info.base;
    if (bytes)
        *bytes = info.bytes;
    return 0;
}

/* ---- page-locked host memory ---- */

FG_EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(pointer && bytes, "cuMemHostAlloc: size 0 or no place for the pointer");
    FG_REQUIRE(!(flags & ~HOST_FLAGS), "cuMemHostAlloc: flags 0x%x: unknown bits", flags);
    return fg_driver_answer(fg_rt_host_alloc(bytes, flags, pointer));
}

FG_EXPORT CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

FG_EXPORT CUresult cuMemFreeHost(void *pointer) {
    FG_ENTER();
    FG_REQUIRE(pointer, "cuMemFreeHost: p is NULL");
    return fg_driver_answer(release(pointer, FG_MEMORY_HOST));
}

FG_EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(!(flags & ~REGISTER_FLAGS), "cuMemHostRegister: flags 0x%x: unknown bits", flags);
    return fg_driver_answer(fg_rt_host_register(pointer, bytes, flags));
}

FG_EXPORT CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

FG_EXPORT CUresult cuMemHostUnregister(void *pointer) {
    FG_ENTER();
    fg_block_info_t info;
    if (fg_rt_block_info(pointer, &info) || info.memory.kind != FG_MEMORY_REGISTERED || info.memory.base != pointer)
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(713), "cuMemHostUnregister: %p is not the start of a registered range",
                                                pointer));
    return fg_driver_answer(release(pointer, FG_MEMORY_REGISTERED));
}

FG_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned flags) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(device && !flags, "cuMemHostGetDevicePointer: no place for the pointer, or flags %u: expected 0", flags);
    int kind = fg_rt_memory_kind(host);
    FG_REQUIRE(kind == FG_MEMORY_HOST || kind == FG_MEMORY_REGISTERED || kind == FG_MEMORY_MANAGED,
               "cuMemHostGetDevicePointer: %p is not page-locked host memory", host);
    *device = (uintptr_t)host;
    return 0;
}

FG_EXPORT CUresult cuMemHostGetFlags(unsigned *flags, void *host) {
    FG_ENTER();
    fg_block_info_t info;
    FG_REQUIRE(flags && !fg_rt_block_info(host, &info) && info.memory.kind == FG_MEMORY_HOST,
               "cuMemHostGetFlags: %p was not allocated by cuMemHostAlloc", host);
    *flags = info.flags | MAPPED;
    return 0;
}

/* ---- attributes of a pointer ---- */

enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE, ATTRIBUTE_DEVICE_POINTER, ATTRIBUTE_HOST_POINTER, ATTRIBUTE_P2P_TOKENS,
       ATTRIBUTE_SYNC_MEMOPS, ATTRIBUTE_BUFFER_ID, ATTRIBUTE_IS_MANAGED, ATTRIBUTE_DEVICE_ORDINAL, ATTRIBUTE_IPC_CAPABLE,
       ATTRIBUTE_RANGE_START, ATTRIBUTE_RANGE_SIZE, ATTRIBUTE_MAPPED, ATTRIBUTE_HANDLE_TYPES, ATTRIBUTE_RDMA_CAPABLE,
       ATTRIBUTE_ACCESS_FLAGS, ATTRIBUTE_POOL, ATTRIBUTE_MAPPING_SIZE, ATTRIBUTE_MAPPING_BASE, ATTRIBUTE_BLOCK_ID,
       ATTRIBUTE_DECOMPRESS_CAPABLE };

/* How wide each attribute's answer is. */
static size_t width_of(int attribute) {
    switch (attribute) {
    case ATTRIBUTE_MEMORY_TYPE: case ATTRIBUTE_DEVICE_ORDINAL: case ATTRIBUTE_ACCESS_FLAGS:
        return sizeof(int);
    case ATTRIBUTE_HANDLE_TYPES:
        return sizeof(uint64_t);
    case ATTRIBUTE_SYNC_MEMOPS: case ATTRIBUTE_IS_MANAGED: case ATTRIBUTE_IPC_CAPABLE: case ATTRIBUTE_MAPPED:
    case ATTRIBUTE_RDMA_CAPABLE: case ATTRIBUTE_DECOMPRESS_CAPABLE:
        return sizeof(bool);
    default:
        return sizeof(uint64_t);
    }
}

static uint64_t value_of(int attribute, const fg_block_info_t *info, void *pointer) {
    const fg_memory_info_t *m = &info->memory;
    bool host = m->kind == FG_MEMORY_HOST || m->kind == FG_MEMORY_REGISTERED;
    switch (attribute) {
    case ATTRIBUTE_CONTEXT: return (uintptr_t)fg_driver_primary(m->device);
    case ATTRIBUTE_MEMORY_TYPE: return host ? CU_MEMORY_HOST : CU_MEMORY_DEVICE;
    case ATTRIBUTE_DEVICE_POINTER: return (uintptr_t)pointer;
    case ATTRIBUTE_HOST_POINTER: return m->kind == FG_MEMORY_DEVICE ? 0 : (uintptr_t)pointer;
    case ATTRIBUTE_BUFFER_ID: case ATTRIBUTE_BLOCK_ID: return info->id;
    case ATTRIBUTE_IS_MANAGED: return m->kind == FG_MEMORY_MANAGED;
    case ATTRIBUTE_DEVICE_ORDINAL: return (uint64_t)m->device;
    case ATTRIBUTE_IPC_CAPABLE: return m->kind == FG_MEMORY_DEVICE && !info->mapped_handle && !info->pool;
    case ATTRIBUTE_RANGE_START: case ATTRIBUTE_MAPPING_BASE: return (uintptr_t)m->base;
    case ATTRIBUTE_RANGE_SIZE: case ATTRIBUTE_MAPPING_SIZE: return m->bytes;
    case ATTRIBUTE_MAPPED: return 1;
    case ATTRIBUTE_HANDLE_TYPES: return info->mapped_handle ? CU_HANDLE_POSIX_FD : 0;
    case ATTRIBUTE_ACCESS_FLAGS: return 3;
    case ATTRIBUTE_POOL: return (uintptr_t)info->pool;
    default: return 0; /* not capable: RDMA, decompression, synchronous operations */
    }
}

FG_EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(data && attribute >= ATTRIBUTE_CONTEXT && attribute <= ATTRIBUTE_DECOMPRESS_CAPABLE &&
               attribute != ATTRIBUTE_P2P_TOKENS, "cuPointerGetAttribute: attribute %d: unknown", attribute);
    fg_block_info_t info;
    int status = fg_rt_block_info(address(pointer), &info);
    if (status)
        return fg_driver_answer(status);
    uint64_t value = value_of(attribute, &info, address(pointer));
    memcpy(data, &value, width_of(attribute));
    return 0;
}

/* For a pointer CUDA does not know the answers are zero, and -2 for the device's ordinal. */
FG_EXPORT CUresult cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr pointer) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(attributes && data, "cuPointerGetAttributes: a pointer is NULL");
    fg_block_info_t info;
    bool known = !fg_rt_block_info(address(pointer), &info);
    for (unsigned i = 0; i < count; i++) {
        FG_REQUIRE(data[i] && attributes[i] >= ATTRIBUTE_CONTEXT && attributes[i] <= ATTRIBUTE_DECOMPRESS_CAPABLE &&
                   attributes[i] != ATTRIBUTE_P2P_TOKENS, "cuPointerGetAttributes: attribute %d: unknown", attributes[i]);
        uint64_t unknown = attributes[i] == ATTRIBUTE_DEVICE_ORDINAL ? (uint64_t)-2 : 0;
        uint64_t value = known ? value_of(attributes[i], &info, address(pointer)) : unknown;
        memcpy(data[i], &value, width_of(attributes[i]));
    }
    return 0;
}

FG_EXPORT CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(value && attribute == ATTRIBUTE_SYNC_MEMOPS, "cuPointerSetAttribute: attribute %d: expected %d", attribute,
               ATTRIBUTE_SYNC_MEMOPS);
    fg_block_info_t info;
    return fg_driver_answer(fg_rt_block_info(address(pointer), &info)); /* copies are synchronous enough already */
}

/* ---- managed memory is host memory here: hints have nothing to move, but bad arguments are told ---- */

static CUresult hint(const char *api, CUdeviceptr pointer, size_t bytes, const CUmemLocation *location) {
    FG_ENTER_CONTEXT();
    FG_REQUIRE(bytes, "%s: count is 0", api);
    FG_REQUIRE(fg_rt_memory_kind(address(pointer)) == FG_MEMORY_MANAGED, "%s: 0x%llx is not managed memory", api, pointer);
    return location->type == CU_LOCATION_DEVICE ? fg_driver_answer(fg_rt_device_check(location->id)) : 0;
}

static CUmemLocation place_of(CUdevice device) {
    return (CUmemLocation){device < 0 ? 2 : CU_LOCATION_DEVICE, device}; /* -1: the host */
}

FG_EXPORT CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location) {
    FG_REQUIRE(advice >= 1 && advice <= 6, "cuMemAdvise: advice %d: expected 1 to 6", advice);
    return hint("cuMemAdvise", pointer, bytes, &location);
}

FG_EXPORT CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device) {
    return cuMemAdvise_v2(pointer, bytes, advice, place_of(device));
}

FG_EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags,
                                         CUstream stream) {
    int status;
    FG_ENTER_CONTEXT();
    FG_REQUIRE(!flags, "cuMemPrefetchAsync: flags %u: expected 0", flags);
    fg_driver_stream(stream, &status);
    return status ? fg_driver_answer(status) : hint("cuMemPrefetchAsync", pointer, bytes, &location);
}

FG_EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
    return cuMemPrefetchAsync_v2(pointer, bytes, place_of(device), 0, stream);
}
