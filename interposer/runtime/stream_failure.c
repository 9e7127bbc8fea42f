/* Owns what a failed item does to its stream. A collective that failed left its buffers as they were; were its stream to
 * go on, the program would compute with them. So the item stays, as the kernel of a broken collective stays on a GPU,
 * until its communicator is aborted, destroyed or revoked - but whoever waits for the stream, directly or by way of
 * other streams and events, is told at once why nothing comes, instead of hanging.
 */
#include "fault.h"
#include "stream.h"

#include <stdatomic.h>
#include <time.h>

/* Torch's watchdog and NCCL's guide poll an event and the communicator's own error in turn: that error comes first. */
#define GRACE_NS 1000000000u

static int failed;
static atomic_bool fg_device_failed;
static __thread fg_stream_t *working;

void fg_stream_working(fg_stream_t *stream) {
    working = stream;
}

bool fg_streams_failed(void) {
    return failed > 0;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The stream with the failed item that `stream` waits for, itself included; NULL = none. */
static const fg_stream_t *culprit(const fg_stream_t *stream) {
    if (!failed)
        return NULL;
    while (!stream->failure && stream->waits_for && stream->waits_for->finished < stream->waits_until)
        stream = stream->waits_for; /* no circle: a wait is for an item given earlier */
    return stream->failure ? stream : NULL;
}

void fg_device_fail(void) {
    fg_streams_lock();
    if (!atomic_exchange(&fg_device_failed, true)) {
        failed++;
        __atomic_fetch_add(&fg_rt_pending, 1, __ATOMIC_RELEASE); /* operators look at their stream then */
    }
    fg_streams_wake();
    fg_streams_unlock();
}

int fg_device_failure(void) {
    return atomic_load_explicit(&fg_device_failed, memory_order_relaxed)
               ? fg_rt_set_error(FG_CUDA(214), "injected fault: the device failed; it stays failed in this process")
               : FG_OK;
}

int fg_stream_stuck(const fg_stream_t *stream) {
    if (failed && fg_device_failure())
        return FG_CUDA(214);
    const fg_stream_t *other = culprit(stream);
    return other ? fg_rt_set_error(FG_CUDA(719), "the stream cannot go on: %s", other->failure) : FG_OK;
}

int fg_stream_pending(const fg_stream_t *stream) {
    if (failed && fg_device_failure())
        return FG_CUDA(214);
    const fg_stream_t *other = culprit(stream);
    return other && now_ns() - other->failed_ns > GRACE_NS ? fg_stream_stuck(other) : FG_IN_PROGRESS;
}

bool fg_rt_stream_fail(const char *why) {
    if (!working)
        return false;
    fg_streams_lock();
    working->failure = why;
    working->failed_ns = now_ns();
    failed++;
    fg_streams_wake();
    fg_streams_unlock();
    return true;
}

void fg_rt_stream_mend(void) {
    fg_streams_lock();
    working->failure = NULL;
    failed--;
    fg_streams_unlock();
}
