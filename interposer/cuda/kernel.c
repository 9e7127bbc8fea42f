/* Kernels that the program registered through the runtime API: a CUfunction or CUkernel is the host function's address,
 * as cudaGetFuncBySymbol and cudaGetKernel hand it out. Loading device code is refused by name (data/api/cuda.yaml), so
 * there are no others. A launch runs a registered host substitute or fails with the kernel's name.
 */
#include "driver.h"

#include <string.h>

static int name_of(const char *api, const void *function, const char **name) {
    *name = function ? fg_rt_kernel_name(function) : NULL;
    return *name ? FG_OK : fg_rt_set_error(FG_CUDA(400), "%s: %p is not a kernel", api, function);
}

static CUresult launch(const char *api, CUfunction function, const CUlaunchConfig *c, void **args, void **extra) {
    int status;
    const char *name;
    FG_ENTER_CONTEXT();
    fg_stream_t *stream = fg_driver_stream(c->hStream, &status);
    if (!stream || (status = name_of(api, function, &name)))
        return fg_driver_answer(status);
    FG_REQUIRE(!extra, "%s: extra: give the arguments as kernelParams", api);
    uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    FG_REQUIRE(c->gridDimX && c->gridDimY && c->gridDimZ && threads && threads <= 1024,
               "%s: %s: grid %ux%ux%u, block %ux%ux%u: expected non-zero, at most 1024 threads a block", api, name,
               c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ);
    fg_launch_t request = {.kernel = name, .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                           .block = {c->blockDimX, c->blockDimY, c->blockDimZ}, .shared_bytes = c->sharedMemBytes,
                           .args = args, .stream = stream, .device = fg_rt_stream_device(stream)};
    return fg_driver_answer(fg_rt_kernel_launch(&request));
}

FG_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **args, void **extra) {
    FG_REQUIRE(config, "cuLaunchKernelEx: config is NULL");
    return launch("cuLaunchKernelEx", function, config, args, extra);
}

FG_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                  unsigned bz, unsigned shared, CUstream stream, void **args, void **extra) {
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, stream, NULL, 0};
    return launch("cuLaunchKernel", function, &config, args, extra);
}

FG_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                             unsigned by, unsigned bz, unsigned shared, CUstream stream, void **args) {
    CUlaunchConfig config = {gx, gy, gz, bx, by, bz, shared, stream, NULL, 0};
    return launch("cuLaunchCooperativeKernel", function, &config, args, NULL);
}

FG_EXPORT CUresult cuFuncGetName(const char **name, CUfunction function) {
    FG_ENTER();
    FG_REQUIRE(name, "cuFuncGetName: name is NULL");
    return fg_driver_answer(name_of("cuFuncGetName", function, name));
}

FG_EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    return cuFuncGetName(name, kernel);
}

FG_EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    const char *name;
    FG_ENTER();
    FG_REQUIRE(function, "cuKernelGetFunction: pFunc is NULL");
    int status = name_of("cuKernelGetFunction", kernel, &name);
    if (!status)
        *function = kernel;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuModuleGetLoadingMode(int *mode) {
    FG_ENTER();
    FG_REQUIRE(mode, "cuModuleGetLoadingMode: mode is NULL");
    *mode = 2; /* lazy: nothing is loaded before it is launched */
    return 0;
}
