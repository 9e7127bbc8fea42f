/* Private to libfakegpu_rt: streams as event.c, graph.c and stream_failure.c see them. */
#ifndef FG_STREAM_H
#define FG_STREAM_H
#include "fg_cuda.h"

#include <pthread.h>

typedef struct fg_item {
    struct fg_item *next;
    fg_job_fn fn; /* NULL: wait until `other` has finished its item number `seq` */
    void *arg;
    struct fg_stream *other; /* a counted reference */
    uint64_t seq;
} fg_item_t;

struct fg_stream {
    uint64_t id;
    int device, priority, references;
    uint32_t flags;
    bool legacy, destroyed, started;
    uint64_t issued, finished; /* numbers of the last item given and of the last one finished */
    fg_item_t *head, **tail;
    pthread_cond_t changed; /* finished grew, or head was filled */
    struct fg_stream *next; /* all streams of the process */
    fg_graph_t *capture;    /* being captured (graph.c), or NULL */
    size_t given, joined;   /* the graph's nodes with this stream's last one, and how many of them others wait for */
    const char *failure;    /* why the running item never ends by itself (stream_failure.c), or NULL */
    uint64_t failed_ns;     /* since when */
    const struct fg_stream *waits_for; /* the running item waits until that stream has finished item waits_until */
    uint64_t waits_until;
};

/* One lock for all streams and events: items are coarse, and no order of locks has to be kept. */
void fg_streams_lock(void);
void fg_streams_unlock(void);
/* the following with the lock held */
void fg_stream_hold(fg_stream_t *stream);
void fg_stream_drop(fg_stream_t *stream);
void fg_stream_order(fg_stream_t *stream); /* what the legacy stream's rules put before the next item */
int fg_stream_push(fg_stream_t *stream, fg_job_fn fn, void *arg);
int fg_stream_push_wait(fg_stream_t *stream, fg_stream_t *other, uint64_t seq);
/* waits until the stream has finished item seq; drops and takes the lock again, releases the GIL meanwhile */
int fg_stream_await(fg_stream_t *stream, uint64_t seq);
bool fg_streams_leave_capture(const fg_graph_t *graph); /* every stream; true if work of another than the first is not joined */
fg_graph_t *fg_streams_capture_by_id(uint64_t id); /* NULL = it ended */
void fg_streams_joined(uint64_t id, size_t given); /* somebody waits for the stream's first `given` nodes */
uint64_t fg_graph_id(const fg_graph_t *graph); /* graph.c */
fg_stream_t *fg_graph_origin(const fg_graph_t *graph);
void fg_streams_wake(void); /* whoever waits for any stream looks again */
/* stream_failure.c, lock held: FG_OK, or FG_CUDA(719) with the text set when the stream's next item cannot end */
int fg_stream_stuck(const fg_stream_t *stream);
/* the same for one who only asks and does not wait: FG_IN_PROGRESS for the first second */
int fg_stream_pending(const fg_stream_t *stream);
bool fg_streams_failed(void); /* some stream holds a failed item */
void fg_stream_working(fg_stream_t *stream); /* the calling thread is this stream's worker */
void fg_operator_blocks(bool blocks); /* operator.c: the calling thread starts or ends waiting for a stream */
#endif
