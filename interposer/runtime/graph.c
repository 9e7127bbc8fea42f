/* Stream capture. */
#include "graph.h"
#include "stream.h"

bool fg_rt_stream_capturing(const fg_stream_t *stream) {
    return stream->capture != NULL;
}

int fg_capture_copy(fg_stream_t *stream, const fg_copy_t *copy) {
    (void)stream, (void)copy;
    return FG_CUDA(900);
}

int fg_capture_fill(fg_stream_t *stream, const fg_fill_t *fill) {
    (void)stream, (void)fill;
    return FG_CUDA(900);
}
