/* Owns events: a record is a counted note of (stream, item number, host time at completion); waiting for it is waiting
 * for that item number. Recording again makes a new note, so waits given earlier keep their meaning. An interprocess event lives in a
 * shared slot as well (event_shared.c), and an imported one in nothing else.
 */
#include "event.h"
#include "fork.h"
#include "graph.h"
#include "handles.h"
#include "stream.h"

#include <stdlib.h>
#include <time.h>

#pragma weak fg_rt_gil_unlock
#pragma weak fg_rt_gil_relock

typedef struct record {
    int references;
    fg_stream_t *stream; /* a counted reference */
    uint64_t seq;
    uint64_t finished_ns; /* host clock when the stream got there; 0 = not yet */
    fg_event_slot_t *slot; /* of an interprocess event, or NULL */
    uint32_t ticket;
} record_t;

struct fg_event {
    int device;
    uint32_t flags;
    record_t *record; /* NULL = never recorded here */
    fg_mark_t mark;   /* where in a capture it was recorded last, if it was */
    fg_event_slot_t *slot; /* shared with other processes, or NULL */
};

typedef struct slot_wait {
    fg_event_slot_t *slot;
    uint32_t ticket;
} slot_wait_t;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* streams lock held */
static void drop_record(record_t *record) {
    if (!record || --record->references)
        return;
    fg_stream_drop(record->stream);
    free(record);
}

static bool record_done(const record_t *record) {
    return !record || record->stream->finished >= record->seq;
}

int fg_rt_event_create(int device, uint32_t flags, fg_event_t **out) {
    int status = fg_fork_check();
    if (status || (status = fg_rt_device_check(device)))
        return status;
    fg_event_t *event = calloc(1, sizeof *event);
    if (!event)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for an event");
    fg_fork_arm();
    event->device = device;
    event->flags = flags;
    if (flags & FG_EVENT_INTERPROCESS)
        status = fg_event_slot_take(&event->slot);
    if (!status)
        status = fg_handle_add(event, FG_HANDLE_EVENT);
    if (!status)
        *out = event;
    else
        free(event);
    return status;
}

int fg_rt_event_export(const fg_event_t *event, void *out) {
    if (!event->slot)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC event handle: the event was created without cudaEventInterprocess");
    return fg_event_slot_export(event->slot, out);
}

int fg_rt_event_import(const void *wire, fg_event_t **out) {
    fg_event_slot_t *slot;
    int status = fg_event_slot_import(wire, &slot);
    if (status || (status = fg_rt_event_create(fg_rt_device_get(), FG_EVENT_DISABLE_TIMING, out)))
        return status;
    (*out)->slot = slot;
    (*out)->flags |= FG_EVENT_INTERPROCESS;
    return FG_OK;
}

int fg_rt_event_destroy(fg_event_t *event) {
    if (!fg_handle_drop(event, FG_HANDLE_EVENT))
        return fg_rt_set_error(FG_CUDA(400), "event %p: not alive", (void *)event);
    fg_streams_lock();
    drop_record(event->record);
    fg_streams_unlock();
    free(event);
    return FG_OK;
}

int fg_rt_event_check(const void *handle) {
    int status = fg_fork_check();
    if (status || fg_handle_alive(handle, FG_HANDLE_EVENT))
        return status;
    return fg_rt_set_error(FG_CUDA(400), "event %p: not an event, or destroyed", handle);
}

static void stamp(void *arg) {
    record_t *record = arg;
    __atomic_store_n(&record->finished_ns, now_ns(), __ATOMIC_RELEASE);
    if (record->slot)
        fg_event_slot_finish(record->slot, record->ticket);
    fg_streams_lock();
    drop_record(record);
    fg_streams_unlock();
}

static int captured(const fg_event_t *event) {
    return event->mark.capture ? fg_rt_set_error(FG_CUDA(907), "event %p was recorded inside a capture", (const void *)event)
                               : FG_OK;
}

int fg_rt_event_record(fg_event_t *event, fg_stream_t *stream) {
    fg_streams_lock();
    bool capturing = stream->capture != NULL;
    if (capturing)
        fg_capture_mark(stream->capture, stream, &event->mark);
    else
        event->mark.capture = 0;
    fg_streams_unlock();
    if (capturing)
        return FG_OK;
    record_t *record = calloc(1, sizeof *record);
    if (!record)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for an event's record");
    int status = FG_OK;
    fg_streams_lock();
    fg_stream_order(stream);
    fg_stream_hold(stream);
    *record = (record_t){.references = 1, .stream = stream, .seq = stream->issued, .slot = event->slot};
    if (record->slot)
        record->ticket = __atomic_add_fetch(&record->slot->issued, 1, __ATOMIC_ACQ_REL);
    if (stream->finished == stream->issued) {
        record->finished_ns = now_ns();
        if (record->slot)
            fg_event_slot_finish(record->slot, record->ticket);
    } else {
        record->references++;
        status = fg_stream_push(stream, stamp, record);
        record->references -= status != 0;
        record->seq = stream->issued;
    }
    if (status) {
        drop_record(record);
    } else {
        drop_record(event->record);
        event->record = record;
    }
    fg_streams_unlock();
    return status;
}

static uint32_t last_ticket(const fg_event_t *event) {
    return __atomic_load_n(&event->slot->issued, __ATOMIC_ACQUIRE);
}

static void await_slot(void *arg) {
    slot_wait_t *wait = arg;
    fg_event_slot_await(wait->slot, wait->ticket);
    free(wait);
}

static int wait_for_slot(fg_stream_t *stream, const fg_event_t *event) {
    uint32_t ticket = last_ticket(event);
    if (fg_event_slot_done(event->slot, ticket))
        return FG_OK;
    slot_wait_t *wait = malloc(sizeof *wait);
    if (!wait)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a wait");
    *wait = (slot_wait_t){event->slot, ticket};
    int status = fg_rt_stream_enqueue(stream, await_slot, wait);
    if (status)
        free(wait);
    return status;
}

int fg_rt_event_wait(fg_stream_t *stream, fg_event_t *event) {
    int status = FG_OK;
    if (event->slot && !event->mark.capture)
        return wait_for_slot(stream, event);
    fg_streams_lock();
    if (event->mark.capture || (stream->capture && event->record)) {
        status = event->mark.capture ? fg_capture_join(stream, &event->mark)
                                     : fg_rt_set_error(FG_CUDA(905), "a capturing stream waits for an event recorded outside");
        fg_streams_unlock();
        return status;
    }
    const record_t *record = event->record;
    if (!record_done(record)) {
        fg_stream_order(stream);
        status = fg_stream_push_wait(stream, record->stream, record->seq);
    }
    fg_streams_unlock();
    return status;
}

int fg_rt_event_query(fg_event_t *event) {
    if (captured(event))
        return FG_CUDA(907);
    if (event->slot)
        return fg_event_slot_done(event->slot, last_ticket(event)) ? FG_OK : FG_IN_PROGRESS;
    fg_streams_lock();
    int status = record_done(event->record) ? FG_OK : fg_stream_pending(event->record->stream);
    fg_streams_unlock();
    return status;
}

int fg_rt_event_sync(fg_event_t *event) {
    if (captured(event))
        return FG_CUDA(907);
    int status = FG_OK;
    if (event->slot) {
        uint32_t ticket = last_ticket(event);
        if (fg_event_slot_done(event->slot, ticket))
            return FG_OK;
        void *token = fg_rt_gil_unlock ? fg_rt_gil_unlock() : NULL;
        fg_event_slot_await(event->slot, ticket);
        if (token && fg_rt_gil_relock)
            fg_rt_gil_relock(token);
        return FG_OK;
    }
    fg_streams_lock();
    record_t *record = event->record;
    if (!record_done(record)) {
        record->references++;
        status = fg_stream_await(record->stream, record->seq);
        drop_record(record);
    }
    fg_streams_unlock();
    return status;
}

int fg_rt_event_elapsed(fg_event_t *start, fg_event_t *end, float *milliseconds) {
    int status = FG_OK;
    fg_streams_lock();
    if (((start->flags | end->flags) & FG_EVENT_DISABLE_TIMING) || !start->record || !end->record)
        status = fg_rt_set_error(FG_CUDA(400), "elapsed time: an event %s", start->record && end->record
                                 ? "was created without timing" : "was never recorded");
    else if (!record_done(start->record) || !record_done(end->record))
        status = FG_IN_PROGRESS;
    else
        *milliseconds = (float)((double)(int64_t)(end->record->finished_ns - start->record->finished_ns) / 1e6);
    fg_streams_unlock();
    return status;
}

int fg_rt_event_device(const fg_event_t *event) {
    return event->device;
}
