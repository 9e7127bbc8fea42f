/* The runtime's error side: names, texts and each thread's last error. No error here is sticky: nothing that fails
 * leaves a device in a broken state. A refused kernel or call, or a stream that
 * a failed collective stopped, adds its reason to the standard text.
 */
#include "cuda_errors.h"
#include "cudart.h"

#include <stdio.h>
#include <string.h>

static __thread cudaError_t last;
static __thread cudaError_t explained; /* the code that `explanation` belongs to */
static __thread char explanation[1600];

cudaError_t fg_cudart_answer(int status) {
    if (__builtin_expect(!status, 1))
        return 0;
    cudaError_t code = fg_rt_cuda_code(status);
    last = code;
    if (code == 600)
        return code;
    explained = code;
    snprintf(explanation, sizeof explanation, "%s", fg_rt_last_error());
    fg_rt_log(FG_LOG_TRACE, "cuda error %d: %s", code, explanation);
    return code;
}

int fg_cudart_enter(void) {
    int status = fg_rt_cuda_enter();
    if (status || fg_rt_device_count() > 0)
        return status;
    if (fg_rt_config_check())
        return FG_CUDA(3);
    fg_rt_set_error(FG_INVALID_ARGUMENT, "no fake device is visible: see FAKEGPU_DEVICE_COUNT and CUDA_VISIBLE_DEVICES");
    return FG_CUDA(100);
}

fg_stream_t *fg_cudart_stream(cudaStream_t handle, int *status) {
    fg_stream_t *stream = fg_rt_stream_resolve(handle, fg_rt_device_get());
    *status = stream ? FG_OK : FG_CUDA(400);
    return stream;
}

FG_EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = 0;
    return error;
}

FG_EXPORT cudaError_t cudaPeekAtLastError(void) {
    return last;
}

static const char *name_of(cudaError_t error) {
    switch (error) {
#define NAME(code, runtime, driver, text) \
    case code:                            \
        return *runtime ? runtime : NULL;
        FG_CUDA_ERRORS(NAME)
#undef NAME
    default:
        return NULL;
    }
}

static const char *text_of(cudaError_t error) {
    switch (error) {
#define TEXT(code, runtime, driver, text) \
    case code:                            \
        return *runtime ? text : NULL;
        FG_CUDA_ERRORS(TEXT)
#undef TEXT
    default:
        return NULL;
    }
}

FG_EXPORT const char *cudaGetErrorName(cudaError_t error) {
    const char *name = name_of(error);
    return name ? name : "unrecognized error code";
}

FG_EXPORT const char *cudaGetErrorString(cudaError_t error) {
    static __thread char joined[sizeof explanation + 64];
    const char *text = text_of(error);
    if (!text)
        return "unrecognized error code";
    bool refused = error == 98 || error == 801 || error == 3 || error == 719;
    if (!refused || error != explained || !explanation[0])
        return text;
    snprintf(joined, sizeof joined, "%s (fakegpu: %s)", text, explanation);
    return joined;
}
