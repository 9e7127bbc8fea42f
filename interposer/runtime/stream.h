/* Private to libfakegpu_rt: streams as event.c and graph.c see them. */
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
    void *capture;          /* graph being captured (graph.c), or NULL */
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
void fg_operator_blocks(bool blocks); /* operator.c: the calling thread starts or ends waiting for a stream */
#endif
