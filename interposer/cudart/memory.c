/* Allocation and what can be asked about a pointer. The objects live in libfakegpu_rt; a host pointer is its own device
 * pointer, since both sides share one address space.
 */
#include "cudart.h"

#include <string.h>

#define PITCH 512u
#define HOST_FLAGS 0x17u     /* portable, mapped, write-combined, and the reserved bit of 13.0 */
#define REGISTER_FLAGS 0x1fu

FG_EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    FG_ENTER();
    FG_REQUIRE(pointer, "cudaMalloc: devPtr is NULL");
    return fg_cudart_answer(fg_rt_memory_alloc(fg_rt_device_get(), bytes, pointer));
}

/* As CUDA does, waits for the device: work given before may still use the memory. */
FG_EXPORT cudaError_t cudaFree(void *pointer) {
    FG_ENTER();
    if (!pointer)
        return 0;
    fg_block_info_t info;
    int status = fg_rt_block_info(pointer, &info);
    if (!status)
        status = fg_rt_device_sync(info.memory.device);
    if (!status)
        status = fg_rt_memory_release(pointer, info.memory.kind == FG_MEMORY_MANAGED ? FG_MEMORY_MANAGED : FG_MEMORY_DEVICE);
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(pointer && bytes, "cudaMallocManaged: size 0 or no place for the pointer");
    FG_REQUIRE(flags == 1 || flags == 2, "cudaMallocManaged: flags %u: expected 1 or 2", flags);
    return fg_cudart_answer(fg_rt_managed_alloc(fg_rt_device_get(), bytes, flags, pointer));
}

FG_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(pointer, "cudaHostAlloc: pHost is NULL");
    FG_REQUIRE(!(flags & ~HOST_FLAGS), "cudaHostAlloc: flags 0x%x: unknown bits", flags);
    *pointer = NULL;
    return bytes ? fg_cudart_answer(fg_rt_host_alloc(bytes, flags, pointer)) : 0;
}

FG_EXPORT cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, 0);
}

FG_EXPORT cudaError_t cudaFreeHost(void *pointer) {
    FG_ENTER();
    if (!pointer)
        return 0;
    fg_block_info_t info;
    int status = fg_rt_block_info(pointer, &info);
    if (!status)
        status = fg_rt_device_sync(info.memory.device);
    return fg_cudart_answer(status ? status : fg_rt_memory_release(pointer, FG_MEMORY_HOST));
}

FG_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(!(flags & ~REGISTER_FLAGS), "cudaHostRegister: flags 0x%x: unknown bits", flags);
    return fg_cudart_answer(fg_rt_host_register(pointer, bytes, flags));
}

FG_EXPORT cudaError_t cudaHostUnregister(void *pointer) {
    FG_ENTER();
    FG_REQUIRE(pointer, "cudaHostUnregister: ptr is NULL");
    fg_block_info_t info;
    if (fg_rt_block_info(pointer, &info) || info.memory.kind != FG_MEMORY_REGISTERED || info.memory.base != pointer)
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(713), "cudaHostUnregister: %p is not the start of a registered range",
                                                pointer));
    int status = fg_rt_device_sync(info.memory.device);
    return fg_cudart_answer(status ? status : fg_rt_memory_release(pointer, FG_MEMORY_REGISTERED));
}

FG_EXPORT cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    FG_ENTER();
    FG_REQUIRE(device && !flags, "cudaHostGetDevicePointer: no place for the pointer, or flags %u: expected 0", flags);
    int kind = fg_rt_memory_kind(host);
    FG_REQUIRE(kind == FG_MEMORY_HOST || kind == FG_MEMORY_REGISTERED || kind == FG_MEMORY_MANAGED,
               "cudaHostGetDevicePointer: %p is not page-locked host memory", host);
    *device = host;
    return 0;
}

FG_EXPORT cudaError_t cudaHostGetFlags(unsigned *flags, void *host) {
    FG_ENTER();
    fg_block_info_t info;
    FG_REQUIRE(flags && !fg_rt_block_info(host, &info) && info.memory.kind == FG_MEMORY_HOST,
               "cudaHostGetFlags: %p was not allocated by cudaHostAlloc", host);
    *flags = info.flags | 2u; /* mapped: always so with unified addressing */
    return 0;
}

FG_EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    FG_ENTER();
    FG_REQUIRE(pointer && pitch, "cudaMallocPitch: a pointer is NULL");
    FG_REQUIRE(width < (1ull << 40) && height < (1ull << 20), "cudaMallocPitch: %zu x %zu is too large", width, height);
    *pitch = (width + PITCH - 1) & ~(size_t)(PITCH - 1);
    return fg_cudart_answer(fg_rt_memory_alloc(fg_rt_device_get(), *pitch * height, pointer));
}

FG_EXPORT cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent) {
    FG_ENTER();
    FG_REQUIRE(out, "cudaMalloc3D: pitchedDevPtr is NULL");
    FG_REQUIRE(extent.height < (1u << 20) && extent.depth < (1u << 20), "cudaMalloc3D: extent is too large");
    *out = (struct cudaPitchedPtr){.xsize = extent.width, .ysize = extent.height};
    return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
}

FG_EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    FG_ENTER();
    FG_REQUIRE(free_bytes && total_bytes, "cudaMemGetInfo: a pointer is NULL");
    uint64_t used, total;
    int status = fg_rt_memory_usage(fg_rt_device_get(), &used, &total);
    if (status)
        return fg_cudart_answer(status);
    *free_bytes = total - used;
    *total_bytes = total;
    return 0;
}

FG_EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    static const int types[] = {[FG_MEMORY_UNKNOWN] = 0, [FG_MEMORY_HOST] = 1, [FG_MEMORY_DEVICE] = 2,
                                [FG_MEMORY_MANAGED] = 3, [FG_MEMORY_REGISTERED] = 1};
    FG_ENTER();
    FG_REQUIRE(out, "cudaPointerGetAttributes: attributes is NULL");
    memset(out, 0, sizeof *out);
    void *address = (void *)(uintptr_t)pointer;
    fg_block_info_t info;
    if (fg_rt_block_info(pointer, &info)) {
        out->device = -2; /* cudaInvalidDeviceId's value for memory CUDA does not know */
        out->hostPointer = address;
        return 0;
    }
    out->type = types[info.memory.kind];
    out->device = info.memory.device;
    out->devicePointer = address;
    out->hostPointer = info.memory.kind == FG_MEMORY_DEVICE ? NULL : address;
    return 0;
}

/* Managed memory is host memory here: hints and prefetches have nothing to move, but bad arguments are told. */
FG_EXPORT cudaError_t cudaMemAdvise(const void *pointer, size_t bytes, int advice, struct cudaMemLocation location) {
    (void)location;
    FG_ENTER();
    FG_REQUIRE(bytes && advice >= 1 && advice <= 6, "cudaMemAdvise: advice %d: expected 1 to 6", advice);
    FG_REQUIRE(fg_rt_memory_kind(pointer) == FG_MEMORY_MANAGED, "cudaMemAdvise: %p is not managed memory", pointer);
    return 0;
}

FG_EXPORT cudaError_t cudaMemPrefetchAsync(const void *pointer, size_t bytes, struct cudaMemLocation location,
                                           unsigned flags, cudaStream_t stream) {
    int status;
    FG_ENTER();
    FG_REQUIRE(bytes && !flags, "cudaMemPrefetchAsync: count 0 or flags %u: expected 0", flags);
    FG_REQUIRE(fg_rt_memory_kind(pointer) == FG_MEMORY_MANAGED, "cudaMemPrefetchAsync: %p is not managed memory", pointer);
    if (location.type == 1 && fg_rt_device_check(location.id))
        return fg_cudart_answer(FG_CUDA(101));
    fg_cudart_stream(stream, &status);
    return fg_cudart_answer(status);
}
