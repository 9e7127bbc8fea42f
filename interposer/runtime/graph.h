/* Private to libfakegpu_rt: what copy.c and stream.c ask about a stream that captures. */
#ifndef FG_GRAPH_H
#define FG_GRAPH_H
#include "fg_cuda.h"

void fg_copy_run(const fg_copy_t *copy); /* copy.c */
void fg_fill_run(const fg_fill_t *fill);
int fg_capture_copy(fg_stream_t *stream, const fg_copy_t *copy);
int fg_capture_fill(fg_stream_t *stream, const fg_fill_t *fill);
#endif
