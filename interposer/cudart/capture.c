/* What a program may ask about stream capture. Capture itself is refused by name, so no stream ever captures. */
#include "cudart.h"

#define CAPTURE_STATUS_NONE 0
#define CAPTURE_MODE_LAST 2

/* cudaStreamCaptureMode of the calling thread: global (0) until the thread exchanges it */
static __thread int thread_mode;

FG_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, int *capture) {
    FG_ENTER();
    int status;
    FG_REQUIRE(capture, "cudaStreamIsCapturing: no place for the answer");
    if (!fg_cudart_stream(stream, &status)) return fg_cudart_answer(status);
    *capture = CAPTURE_STATUS_NONE;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, int *capture, unsigned long long *id, void **graph,
                                               const void **dependencies, const void **edges, size_t *count) {
    (void)graph, (void)dependencies, (void)edges; /* CUDA leaves them alone when nothing is captured */
    FG_ENTER();
    int status;
    FG_REQUIRE(capture, "cudaStreamGetCaptureInfo: no place for the answer");
    if (!fg_cudart_stream(stream, &status)) return fg_cudart_answer(status);
    *capture = CAPTURE_STATUS_NONE;
    if (id) *id = 0;
    if (count) *count = 0;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) {
    FG_ENTER();
    FG_REQUIRE(mode && *mode >= 0 && *mode <= CAPTURE_MODE_LAST, "cudaThreadExchangeStreamCaptureMode: expected 0, 1 or 2");
    int previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return FG_OK;
}

FG_EXPORT cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, int *capture) {
    return cudaStreamIsCapturing(stream ? stream : (cudaStream_t)2, capture);
}

FG_EXPORT cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, int *capture, unsigned long long *id, void **graph,
                                                    const void **dependencies, const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo(stream ? stream : (cudaStream_t)2, capture, id, graph, dependencies, edges, count);
}
