/* What a program may ask about stream capture through the driver API. Building graphs here is refused by name. */
#include "driver.h"

#define MODE_LAST 2

/* CUstreamCaptureMode of the calling thread: global (0) until the thread exchanges it */
static __thread int thread_mode;

static CUresult info(CUstream handle, int *capture, uint64_t *id, size_t *count) {
    int status;
    FG_ENTER_CONTEXT();
    FG_REQUIRE(capture, "cuStreamGetCaptureInfo: no place for the answer");
    fg_stream_t *stream = fg_driver_stream(handle, &status);
    if (stream && fg_rt_stream_capturing(stream))
        status = fg_rt_unsupported("cuStreamGetCaptureInfo", "a capturing stream tells through cudaStreamGetCaptureInfo");
    if (status)
        return fg_driver_answer(status);
    *capture = 0;
    if (id)
        *id = 0;
    if (count)
        *count = 0;
    return 0;
}

FG_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, int *capture, uint64_t *id) {
    return info(stream, capture, id, NULL);
}

FG_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *capture, uint64_t *id, CUgraph *graph,
                                             const CUgraphNode **dependencies, size_t *count) {
    (void)graph, (void)dependencies; /* CUDA leaves them alone when nothing is captured */
    return info(stream, capture, id, count);
}

FG_EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *capture, uint64_t *id, CUgraph *graph,
                                             const CUgraphNode **dependencies, const void **edges, size_t *count) {
    (void)graph, (void)dependencies, (void)edges;
    return info(stream, capture, id, count);
}

#define OWN(stream) ((stream) ? (stream) : (CUstream)2)

FG_EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, int *capture, uint64_t *id) {
    return info(OWN(stream), capture, id, NULL);
}

FG_EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, int *capture, uint64_t *id, CUgraph *graph,
                                                  const CUgraphNode **dependencies, size_t *count) {
    return cuStreamGetCaptureInfo_v2(OWN(stream), capture, id, graph, dependencies, count);
}

FG_EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, int *capture, uint64_t *id, CUgraph *graph,
                                                  const CUgraphNode **dependencies, const void **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(OWN(stream), capture, id, graph, dependencies, edges, count);
}

FG_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    FG_ENTER();
    FG_REQUIRE(mode && *mode >= 0 && *mode <= MODE_LAST, "cuThreadExchangeStreamCaptureMode: expected 0, 1 or 2");
    int previous = thread_mode;
    thread_mode = *mode;
    *mode = previous;
    return 0;
}
