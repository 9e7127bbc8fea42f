/* Private to libfakegpu_rt: what copy.c, stream.c and event.c ask about a stream that captures. */
#ifndef FG_GRAPH_H
#define FG_GRAPH_H
#include "fg_cuda.h"

typedef struct fg_mark { /* where an event was recorded inside a capture */
    uint64_t capture, stream, given; /* ids, and how many nodes the graph had with the stream's last one; capture 0 = nowhere */
} fg_mark_t;

void fg_copy_run(const fg_copy_t *copy); /* copy.c */
void fg_fill_run(const fg_fill_t *fill);
int fg_capture_copy(fg_stream_t *stream, const fg_copy_t *copy);
int fg_capture_fill(fg_stream_t *stream, const fg_fill_t *fill);
/* streams lock held */
int fg_capture_refuse(fg_stream_t *stream, const char *what); /* FG_CUDA(900); the capture is invalid from then on */
void fg_capture_mark(fg_graph_t *graph, const fg_stream_t *stream, fg_mark_t *mark);
int fg_capture_join(fg_stream_t *waiter, const fg_mark_t *mark); /* the waiter takes part in the event's capture */
#endif
