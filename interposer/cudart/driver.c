/* Versions, the way from the runtime to the driver API, and profiler marks (there is no device profiler to steer). */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>

typedef int (*get_proc_address_t)(const char *, void **, int, unsigned long long, int *);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static get_proc_address_t get_proc_address;

FG_EXPORT cudaError_t cudaDriverGetVersion(int *version) {
    FG_REQUIRE(version, "cudaDriverGetVersion: driverVersion is NULL");
    *version = FG_CUDA_VERSION;
    return 0;
}

FG_EXPORT cudaError_t cudaRuntimeGetVersion(int *version) {
    FG_REQUIRE(version, "cudaRuntimeGetVersion: runtimeVersion is NULL");
    *version = FG_CUDA_VERSION;
    return 0;
}

/* The driver library is found next to this one, so that a program which loads libcudart by path gets our libcuda. */
static void find_driver(void) {
    Dl_info here;
    char path[4096];
    void *library = NULL;
    if (dladdr((void *)find_driver, &here) && here.dli_fname) {
        size_t length = 0;
        for (size_t i = 0; here.dli_fname[i] && i < sizeof path - 32; i++) {
            path[i] = here.dli_fname[i];
            if (path[i] == '/')
                length = i + 1;
        }
        const char name[] = "libcuda.so.1";
        for (size_t i = 0; i < sizeof name; i++)
            path[length + i] = name[i];
        library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    }
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library)
        *(void **)&get_proc_address = dlsym(library, "cuGetProcAddress_v2");
}

FG_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                                       unsigned long long flags, int *found) {
    FG_ENTER();
    FG_REQUIRE(symbol && function, "cudaGetDriverEntryPoint: a pointer is NULL");
    pthread_once(&once, find_driver);
    *function = NULL;
    int result = 1;
    if (get_proc_address && get_proc_address(symbol, function, (int)version, flags, &result))
        *function = NULL;
    if (found)
        *found = *function ? 0 : result ? result : 1;
    else if (!*function)
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(500), "cudaGetDriverEntryPoint: %s: no such symbol", symbol));
    return 0;
}

FG_EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *found) {
    return cudaGetDriverEntryPointByVersion(symbol, function, FG_CUDA_VERSION, flags, found);
}

FG_EXPORT cudaError_t __cudaGetProcAddress(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                           int *found) {
    return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, found);
}

FG_EXPORT cudaError_t cudaProfilerStart(void) {
    FG_ENTER();
    return 0;
}

FG_EXPORT cudaError_t cudaProfilerStop(void) {
    FG_ENTER();
    return 0;
}
