/* The driver's start, versions, error names, and the look-up of its own calls by name and version. */
#include "cuda_errors.h"
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PER_THREAD_DEFAULT_STREAM 2u
enum { FOUND = 0, NOT_FOUND = 1 };

static volatile bool initialised;
static __thread CUresult explained; /* the code that `explanation` belongs to */
static __thread char explanation[1600];

CUresult fg_driver_answer(int status) {
    if (__builtin_expect(!status, 1))
        return 0;
    CUresult code = fg_rt_cuda_code(status);
    if (code == 600)
        return code;
    explained = code;
    snprintf(explanation, sizeof explanation, "%s", fg_rt_last_error());
    fg_rt_log(FG_LOG_TRACE, "CUDA driver error %d: %s", code, explanation);
    return code;
}

int fg_driver_enter(void) {
    int status = fg_rt_fork_check();
    if (status)
        return status;
    if (!initialised && !fg_rt_cuda_in_use())
        return fg_rt_set_error(FG_CUDA(3), "cuInit has not been called");
    return FG_OK;
}

FG_EXPORT CUresult cuInit(unsigned flags) {
    int status = fg_rt_cuda_enter();
    if (status)
        return fg_driver_answer(status);
    FG_REQUIRE(!flags, "cuInit: flags %u: expected 0", flags);
    if (fg_rt_device_count() == 0) {
        if (fg_rt_config_check())
            return fg_driver_answer(FG_CUDA(3));
        return fg_driver_answer(fg_rt_set_error(FG_CUDA(100), "no fake device is visible: see FAKEGPU_DEVICE_COUNT and "
                                                              "CUDA_VISIBLE_DEVICES"));
    }
    initialised = true;
    return 0;
}

FG_EXPORT CUresult cuDriverGetVersion(int *version) {
    FG_REQUIRE(version, "cuDriverGetVersion: driverVersion is NULL");
    *version = FG_CUDA_VERSION;
    return 0;
}

/* ---- errors ---- */

#define NAME(code, runtime, driver, text) {code, driver, text},
static const struct { int code; const char *name, *text; } errors[] = {FG_CUDA_ERRORS(NAME)};
#undef NAME

static int error_index(CUresult code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code && *errors[i].name)
            return (int)i;
    return -1;
}

FG_EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
    int at = error_index(error);
    if (name)
        *name = at < 0 ? NULL : errors[at].name;
    return at < 0 || !name ? 1 : 0;
}

FG_EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    static __thread char joined[sizeof explanation + 64];
    int at = error_index(error);
    if (text)
        *text = at < 0 ? NULL : errors[at].text;
    if (at < 0 || !text)
        return 1;
    bool refused = error == 98 || error == 801 || error == 3;
    if (!refused || error != explained || !explanation[0])
        return 0;
    snprintf(joined, sizeof joined, "%s (fakegpu: %s)", errors[at].text, explanation);
    *text = joined;
    return 0;
}

/* ---- look-up: the newest form of a call that is not newer than the version asked for ---- */

/* Forms that came after CUDA 11, whose signature differs from the form before (a test compares with the typedefs of the
 * real header); every other _v2 and _v3 is older and always taken. */
static const struct { const char *name; int version; } late[] = {
    {"cuCtxCreate_v4", 12050}, {"cuCtxGetDevice_v2", 13000}, {"cuCtxSynchronize_v2", 13000},
    {"cuEventElapsedTime_v2", 12080}, {"cuGetProcAddress_v2", 12000}, {"cuGraphAddDependencies_v2", 12030},
    {"cuGraphAddKernelNode_v2", 12000}, {"cuGraphAddNode_v2", 12030}, {"cuGraphExecKernelNodeSetParams_v2", 12000},
    {"cuGraphExecUpdate_v2", 12000}, {"cuGraphGetEdges_v2", 12030}, {"cuGraphKernelNodeGetParams_v2", 12000},
    {"cuGraphKernelNodeSetParams_v2", 12000}, {"cuGraphNodeGetDependencies_v2", 12030},
    {"cuGraphNodeGetDependentNodes_v2", 12030}, {"cuGraphRemoveDependencies_v2", 12030}, {"cuMemAdvise_v2", 12020},
    {"cuMemPrefetchAsync_v2", 12020}, {"cuMemcpy3DBatchAsync_v2", 13000}, {"cuMemcpyBatchAsync_v2", 13000},
    {"cuStreamGetCaptureInfo_v3", 12030}, {"cuStreamGetCtx_v2", 12050},
    {"cuStreamUpdateCaptureDependencies_v2", 12030},
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *self;

static void open_self(void) {
    Dl_info here;
    if (dladdr((void *)(uintptr_t)open_self, &here) && here.dli_fname)
        self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
}

static void *find_form(const char *name, int number, bool per_thread, int version) {
    char full[160];
    snprintf(full, sizeof full, number > 1 ? "%s_v%d" : "%s", name, number);
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (late[i].version > version && !strcmp(late[i].name, full))
            return NULL;
    size_t length = strlen(full);
    for (int i = 0; per_thread && i < 2; i++) {
        snprintf(full + length, sizeof full - length, "%s", i ? "_ptds" : "_ptsz");
        void *found = dlsym(self, full);
        if (found)
            return found;
    }
    full[length] = 0;
    return dlsym(self, full);
}

static int look_up(const char *symbol, void **function, int version, unsigned long long flags, int *status) {
    *function = NULL;
    *status = NOT_FOUND;
    if (flags & ~3ull)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cuGetProcAddress: flags %llu: expected 0 to 2", flags);
    pthread_once(&once, open_self);
    if (!self || strncmp(symbol, "cu", 2) || strlen(symbol) > 128)
        return FG_OK;
    for (int number = 4; number >= 1 && !*function; number--)
        *function = find_form(symbol, number, flags & PER_THREAD_DEFAULT_STREAM, version);
    *status = *function ? FOUND : NOT_FOUND;
    return FG_OK;
}

FG_EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                                       int *symbol_status) {
    int status = NOT_FOUND;
    FG_REQUIRE(symbol && function, "cuGetProcAddress: a pointer is NULL");
    int failed = look_up(symbol, function, version, flags, &status);
    if (symbol_status)
        *symbol_status = status;
    if (!failed && status != FOUND)
        failed = fg_rt_set_error(FG_CUDA(500), "cuGetProcAddress: %.100s: no such symbol at version %d", symbol, version);
    return fg_driver_answer(failed);
}

FG_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **function, int version, unsigned long long flags,
                                            int *symbol_status) {
    bool unsaid = !(flags & 3u);
    return cuGetProcAddress_v2(symbol, function, version, unsaid ? flags | PER_THREAD_DEFAULT_STREAM : flags, symbol_status);
}

FG_EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* ---- profiler marks: there is no device profiler to steer ---- */

FG_EXPORT CUresult cuProfilerStart(void) {
    FG_ENTER_CONTEXT();
    return 0;
}

FG_EXPORT CUresult cuProfilerStop(void) {
    FG_ENTER_CONTEXT();
    return 0;
}
