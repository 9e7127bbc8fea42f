/* Kernels: the registration calls nvcc puts into a program, launches, attributes and occupancy. Registration records
 * the name only; a launch goes to libfakegpu_rt, which knows whether a host substitute exists. A kernel handle is the
 * host function's address.
 */
#include "cudart.h"

#include <stdlib.h>
#include <string.h>

typedef struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration_t;

#define PUSH_DEPTH 16
static __thread configuration_t pushed[PUSH_DEPTH];
static __thread int depth;

/* ---- what nvcc's constructors call ---- */

FG_EXPORT void **__cudaRegisterFatBinary(void *binary) {
    return calloc(1, sizeof binary); /* identity of the module; NULL only loses names */
}

FG_EXPORT void __cudaRegisterFatBinaryEnd(void **module) {
    (void)module;
}

FG_EXPORT void __cudaUnregisterFatBinary(void **module) {
    (void)module; /* runs at exit, once per module: the names stay, they are static data of the program */
}

FG_EXPORT char __cudaInitModule(void **module) {
    (void)module;
    return 1;
}

FG_EXPORT void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name, int threads,
                                      void *tid, void *bid, void *block, void *grid, int *warp) {
    (void)module, (void)device, (void)threads, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    fg_rt_kernel_add(host, name);
}

FG_EXPORT void __cudaRegisterVar(void **module, char *host, char *address, const char *name, int external, size_t bytes,
                                 int constant, int global) {
    (void)module, (void)address, (void)external, (void)constant, (void)global;
    fg_cudart_symbol_add(host, name, bytes);
}

FG_EXPORT void __cudaRegisterManagedVar(void **module, void **pointer, char *address, const char *name, int external,
                                        size_t bytes, int constant, int global) {
    (void)module, (void)address, (void)external, (void)constant, (void)global;
    fg_cudart_symbol_add(pointer, name, bytes);
}

FG_EXPORT void __cudaRegisterHostVar(void **module, const char *name, char *host, size_t bytes) {
    (void)module;
    fg_cudart_symbol_add(host, name, bytes);
}

FG_EXPORT char __cudaRegisterUnifiedTable(void **module, void *table) {
    (void)module, (void)table;
    return 1;
}

FG_EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (depth == PUSH_DEPTH)
        return 1;
    pushed[depth++] = (configuration_t){grid, block, shared, stream};
    return 0;
}

FG_EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!depth)
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(52), "a kernel call without its configuration"));
    const configuration_t *top = &pushed[--depth];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    memcpy(stream, &top->stream, sizeof top->stream);
    return 0;
}

FG_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (void *)(uintptr_t)host;
    return 0;
}

FG_EXPORT cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    FG_ENTER();
    if (!fg_rt_kernel_name(host))
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(98), "cudaGetKernel: %p is not a registered kernel", host));
    *kernel = (void *)(uintptr_t)host;
    return 0;
}

FG_EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
    return cudaGetKernel(function, symbol);
}

/* ---- launches ---- */

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t handle) {
    int status;
    FG_ENTER();
    fg_stream_t *stream = fg_cudart_stream(handle, &status);
    if (!stream)
        return fg_cudart_answer(status);
    const char *name = fg_rt_kernel_name(function);
    if (!name)
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(98), "launch of %p: not a registered kernel", function));
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || (size_t)block.x * block.y * block.z > 1024)
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(9), "launch of %s: grid %ux%ux%u, block %ux%ux%u: expected non-zero, "
                                                "at most 1024 threads a block", name, grid.x, grid.y, grid.z, block.x,
                                                block.y, block.z));
    fg_launch_t request = {.kernel = name, .grid = {grid.x, grid.y, grid.z}, .block = {block.x, block.y, block.z},
                           .shared_bytes = shared, .args = args, .stream = stream, .device = fg_rt_stream_device(stream)};
    return fg_cudart_answer(fg_rt_kernel_launch(&request));
}

FG_EXPORT cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                       cudaStream_t stream) {
    return launch(function, grid, block, args, shared, stream);
}

FG_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                         cudaStream_t stream) {
    return launch(kernel, grid, block, args, shared, stream);
}

FG_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **args, size_t shared,
                                                  cudaStream_t stream) {
    return launch(function, grid, block, args, shared, stream);
}

FG_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **args) {
    FG_REQUIRE(config, "cudaLaunchKernelExC: config is NULL");
    return launch(function, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}

/* ---- attributes and occupancy: what the architecture allows for a kernel of modest needs ---- */

FG_EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *function) {
    FG_ENTER();
    FG_REQUIRE(out, "cudaFuncGetAttributes: attr is NULL");
    if (!fg_rt_kernel_name(function))
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(98), "cudaFuncGetAttributes: %p is not a kernel", function));
    const fg_profile_t *profile = fg_rt_device_profile(fg_rt_device_get());
    int version = 10 * profile->cc_major + profile->cc_minor;
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = version;
    out->maxDynamicSharedSizeBytes = 49152;
    out->preferredShmemCarveout = -1;
    return 0;
}

FG_EXPORT cudaError_t cudaFuncSetAttribute(const void *function, int attribute, int value) {
    FG_ENTER();
    FG_REQUIRE(attribute >= 8 && attribute <= 15, "cudaFuncSetAttribute: attr %d: expected 8 to 15", attribute);
    int optin = 0;
    fg_rt_device_attribute(fg_rt_device_get(), 97, &optin);
    FG_REQUIRE(attribute != 8 || (value >= 0 && value <= optin), "cudaFuncSetAttribute: %d bytes of shared memory: at most %d",
               value, optin);
    if (!fg_rt_kernel_name(function))
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(98), "cudaFuncSetAttribute: %p is not a kernel", function));
    return 0;
}

FG_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, int attribute, int value, int device) {
    (void)device;
    return cudaFuncSetAttribute(kernel, attribute, value);
}

FG_EXPORT cudaError_t cudaFuncGetName(const char **name, const void *function) {
    FG_ENTER();
    FG_REQUIRE(name, "cudaFuncGetName: name is NULL");
    *name = fg_rt_kernel_name(function);
    return *name ? 0 : fg_cudart_answer(fg_rt_set_error(FG_CUDA(98), "cudaFuncGetName: %p is not a kernel", function));
}

FG_EXPORT cudaError_t cudaFuncSetCacheConfig(const void *function, int config) {
    (void)function, (void)config; /* a hint to hardware */
    FG_ENTER();
    return 0;
}

FG_EXPORT cudaError_t cudaFuncSetSharedMemConfig(const void *function, int config) {
    (void)function, (void)config; /* a hint to hardware */
    FG_ENTER();
    return 0;
}

static int attribute_of(int number) {
    int value = 0;
    fg_rt_device_attribute(fg_rt_device_get(), number, &value);
    return value;
}

FG_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size,
                                                                             size_t shared, unsigned flags) {
    (void)function, (void)flags;
    FG_ENTER();
    FG_REQUIRE(blocks && size > 0, "cudaOccupancyMaxActiveBlocksPerMultiprocessor: blockSize %d: expected > 0", size);
    int threads = (size + 31) / 32 * 32, by_threads = attribute_of(39) / threads, limit = attribute_of(106);
    int by_registers = attribute_of(82) / (32 * threads);
    int per_block = (int)shared + attribute_of(111);
    int by_shared = attribute_of(81) / per_block;
    int least = by_threads < limit ? by_threads : limit;
    least = by_registers < least ? by_registers : least;
    *blocks = size > 1024 ? 0 : by_shared < least ? by_shared : least;
    return 0;
}

FG_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int size,
                                                                    size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, size, shared, 0);
}

FG_EXPORT cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function, int blocks, int size) {
    (void)function, (void)size;
    FG_ENTER();
    FG_REQUIRE(bytes && blocks > 0, "cudaOccupancyAvailableDynamicSMemPerBlock: numBlocks %d: expected > 0", blocks);
    int each = attribute_of(81) / blocks - attribute_of(111);
    *bytes = (size_t)(each < 0 ? 0 : each);
    return 0;
}
