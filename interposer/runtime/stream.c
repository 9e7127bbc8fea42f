/* Owns the streams: FIFOs whose work runs at once on the calling thread while they are empty, and on a worker of
 * their own from the first asynchronous item on. The legacy NULL stream of a device follows every blocking stream of
 * that device, and they follow it. Items of one stream never overlap; items of two streams are ordered by waits on
 * item numbers that were given earlier, so the waits cannot form a circle. Nothing here polls.
 */
#include "stream.h"
#include "device.h"
#include "fault.h"
#include "fork.h"
#include "graph.h"
#include "handles.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma weak fg_rt_gil_unlock
#pragma weak fg_rt_gil_relock

volatile int fg_rt_pending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fg_stream_t *streams;
static fg_stream_t *legacy_streams[FG_MAX_DEVICES];
static uint64_t next_id = 1;
static __thread int jobs_running;

void fg_streams_lock(void) {
    pthread_mutex_lock(&lock);
}

void fg_streams_unlock(void) {
    pthread_mutex_unlock(&lock);
}

bool fg_rt_in_job(void) {
    return jobs_running > 0;
}

bool fg_streams_leave_capture(const fg_graph_t *graph) {
    bool unjoined = false;
    for (fg_stream_t *s = streams; s; s = s->next)
        if (s->capture == graph) {
            unjoined |= s != fg_graph_origin(graph) && s->joined < s->given;
            s->capture = NULL;
        }
    return unjoined;
}

fg_graph_t *fg_streams_capture_by_id(uint64_t id) {
    for (fg_stream_t *s = streams; s; s = s->next)
        if (s->capture && fg_graph_id(s->capture) == id)
            return s->capture;
    return NULL;
}

void fg_streams_joined(uint64_t id, size_t given) {
    for (fg_stream_t *s = streams; s; s = s->next)
        if (s->id == id && s->joined < given)
            s->joined = given;
}

void fg_streams_wake(void) {
    for (fg_stream_t *s = streams; s; s = s->next)
        pthread_cond_broadcast(&s->changed);
}

void fg_stream_hold(fg_stream_t *stream) {
    stream->references++;
}

void fg_stream_drop(fg_stream_t *stream) {
    if (--stream->references)
        return;
    for (fg_stream_t **p = &streams; *p; p = &(*p)->next)
        if (*p == stream) {
            *p = stream->next;
            break;
        }
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

static void finish(fg_stream_t *stream) {
    stream->finished++;
    __atomic_fetch_sub(&fg_rt_pending, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&stream->changed);
}

static void run_job(fg_job_fn fn, void *arg) {
    jobs_running++;
    fn(arg);
    jobs_running--;
}

/* lock held: a wait item of `stream` */
static void await_item(fg_stream_t *stream, fg_stream_t *other, uint64_t until) {
    stream->waits_for = other;
    stream->waits_until = until;
    if (fg_streams_failed())
        fg_streams_wake();
    while (other->finished < until)
        pthread_cond_wait(&other->changed, &lock);
    stream->waits_for = NULL;
}

/* Runs items in order until the stream is destroyed and empty. An item given to an idle stream runs on its caller's
 * thread (fg_rt_stream_run); the numbers tell when that is over. */
static void *worker(void *arg) {
    fg_stream_t *stream = arg;
    fg_rt_device_set(stream->device);
    fg_stream_working(stream);
    fg_streams_lock();
    for (;;) {
        while (!stream->head || stream->finished + 1 != stream->head->seq) {
            if (!stream->head && stream->destroyed) {
                fg_stream_drop(stream);
                fg_streams_unlock();
                return NULL;
            }
            pthread_cond_wait(&stream->changed, &lock);
        }
        fg_item_t *item = stream->head;
        stream->head = item->next;
        if (!stream->head)
            stream->tail = &stream->head;
        if (item->fn) {
            fg_streams_unlock();
            run_job(item->fn, item->arg);
            fg_streams_lock();
        } else {
            await_item(stream, item->other, (uint64_t)(uintptr_t)item->arg);
            fg_stream_drop(item->other);
        }
        free(item);
        finish(stream);
    }
}

static int start_worker(fg_stream_t *stream) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, worker, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return fg_rt_set_error(FG_SYSTEM, "starting the worker of a stream failed: %s", strerror(failed));
    char name[16];
    snprintf(name, sizeof name, "fg-stream-%u", (unsigned)(stream->id % 10000));
    pthread_setname_np(thread, name);
    pthread_detach(thread);
    fg_stream_hold(stream);
    stream->started = true;
    return FG_OK;
}

static int push(fg_stream_t *stream, fg_job_fn fn, void *arg, fg_stream_t *other) {
    fg_item_t *item = malloc(sizeof *item);
    if (!item)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a stream's item");
    int status = stream->started ? FG_OK : start_worker(stream);
    if (status) {
        free(item);
        return status;
    }
    if (other)
        fg_stream_hold(other);
    *item = (fg_item_t){.fn = fn, .arg = arg, .other = other, .seq = ++stream->issued};
    *stream->tail = item;
    stream->tail = &item->next;
    __atomic_fetch_add(&fg_rt_pending, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&stream->changed);
    return FG_OK;
}

int fg_stream_push(fg_stream_t *stream, fg_job_fn fn, void *arg) {
    return push(stream, fn, arg, NULL);
}

int fg_stream_push_wait(fg_stream_t *stream, fg_stream_t *other, uint64_t seq) {
    if (stream == other || other->finished >= seq)
        return FG_OK;
    return push(stream, NULL, (void *)(uintptr_t)seq, other);
}

static bool joins_legacy(const fg_stream_t *stream) {
    return !stream->legacy && !(stream->flags & FG_STREAM_NON_BLOCKING);
}

void fg_stream_order(fg_stream_t *stream) {
    fg_stream_t *legacy = legacy_streams[stream->device];
    if (joins_legacy(stream) && legacy)
        fg_stream_push_wait(stream, legacy, legacy->issued);
    if (!stream->legacy)
        return;
    for (fg_stream_t *s = streams; s; s = s->next)
        if (s->device == stream->device && joins_legacy(s))
            fg_stream_push_wait(stream, s, s->issued);
}

int fg_rt_stream_enqueue(fg_stream_t *stream, fg_job_fn fn, void *arg) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_streams_lock();
    if (stream->capture) {
        status = fg_capture_refuse(stream, "an operation that graphs do not hold here");
    } else {
        fg_stream_order(stream);
        status = fg_stream_push(stream, fn, arg);
    }
    fg_streams_unlock();
    return status;
}

int fg_rt_stream_try(fg_stream_t *stream, fg_job_fn fn, void *arg) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_streams_lock();
    if (stream->capture) {
        status = fg_capture_refuse(stream, "an operation that graphs do not hold here");
        fg_streams_unlock();
        return status;
    }
    fg_stream_order(stream);
    if (stream->finished != stream->issued) {
        fg_streams_unlock();
        return FG_IN_PROGRESS;
    }
    stream->issued++;
    fg_stream_hold(stream);
    __atomic_fetch_add(&fg_rt_pending, 1, __ATOMIC_RELEASE);
    fg_streams_unlock();
    run_job(fn, arg);
    fg_streams_lock();
    finish(stream);
    fg_stream_drop(stream);
    fg_streams_unlock();
    return FG_OK;
}

int fg_rt_stream_run(fg_stream_t *stream, fg_job_fn fn, void *arg) {
    int status = fg_rt_stream_try(stream, fn, arg);
    return status == FG_IN_PROGRESS ? fg_rt_stream_enqueue(stream, fn, arg) : status;
}

int fg_rt_stream_join(fg_stream_t *waiter, fg_stream_t *other) {
    fg_streams_lock();
    fg_stream_order(other);
    fg_stream_order(waiter);
    int status = fg_stream_push_wait(waiter, other, other->issued);
    fg_streams_unlock();
    return status;
}

/* lock held; the stream after `id` in order of descending age that `stream` (NULL: all) has to wait for */
static fg_stream_t *next_followed(const fg_stream_t *stream, int device, uint64_t id) {
    for (fg_stream_t *s = streams; s; s = s->next)
        if (s->id < id && s->device == device && (!stream || s == stream || (stream->legacy && joins_legacy(s))))
            return s;
    return NULL;
}

/* Nobody can wait for, or ask about, work that only a later launch runs; a device's, if any of its streams captures. */
static int refuse_while_capturing(const fg_stream_t *stream, int device, const char *what) {
    int status = fg_fork_check();
    if (status || !fg_rt_captures)
        return status;
    fg_streams_lock();
    for (fg_stream_t *s = streams; s && !status; s = s->next)
        if (s->capture && s->device == device && (!stream || s == stream))
            status = fg_capture_refuse(s, what);
    fg_streams_unlock();
    return status;
}

int fg_rt_stream_query(fg_stream_t *stream) {
    int status = refuse_while_capturing(stream, stream->device, "a query");
    if (status || !__atomic_load_n(&fg_rt_pending, __ATOMIC_ACQUIRE))
        return status;
    fg_streams_lock();
    for (fg_stream_t *s = streams; s && !status; s = s->next)
        if (s->finished != s->issued && s->device == stream->device &&
            (s == stream || (stream->legacy && joins_legacy(s))))
            status = fg_stream_pending(s);
    fg_streams_unlock();
    return status;
}

int fg_stream_await(fg_stream_t *stream, uint64_t seq) {
    if (stream->finished >= seq)
        return FG_OK;
    if (jobs_running)
        return fg_rt_set_error(FG_CUDA(800), "a wait for a stream inside a host function: CUDA does not permit it");
    fg_stream_hold(stream);
    fg_streams_unlock();
    void *token = fg_rt_gil_unlock ? fg_rt_gil_unlock() : NULL;
    fg_streams_lock();
    int status = FG_OK;
    while (stream->finished < seq && !(status = fg_stream_stuck(stream)))
        pthread_cond_wait(&stream->changed, &lock);
    fg_streams_unlock();
    if (token && fg_rt_gil_relock)
        fg_rt_gil_relock(token);
    fg_streams_lock();
    fg_stream_drop(stream);
    return status;
}

/* lock held. What was given before the call is waited for, not what others give meanwhile. */
static int await_followed(const fg_stream_t *stream, int device) {
    int status = FG_OK;
    fg_stream_t *s = next_followed(stream, device, UINT64_MAX);
    while (s && !status) {
        uint64_t id = s->id;
        status = fg_stream_await(s, s->issued);
        s = next_followed(stream, device, id);
    }
    return status;
}

int fg_rt_stream_sync(fg_stream_t *stream) {
    int status = refuse_while_capturing(stream, stream->device, "a wait for the stream");
    if (status || !__atomic_load_n(&fg_rt_pending, __ATOMIC_ACQUIRE))
        return status;
    fg_streams_lock();
    status = await_followed(stream, stream->device);
    fg_streams_unlock();
    return status;
}

int fg_rt_device_sync(int device) {
    int status = refuse_while_capturing(NULL, device, "a wait for the device");
    if (status || !__atomic_load_n(&fg_rt_pending, __ATOMIC_ACQUIRE))
        return status;
    fg_streams_lock();
    status = await_followed(NULL, device);
    fg_streams_unlock();
    return status;
}

int fg_rt_stream_drain(int device, const void *handle) {
    if (!__atomic_load_n(&fg_rt_pending, __ATOMIC_ACQUIRE))
        return FG_OK;
    fg_stream_t *stream = fg_rt_stream_resolve(handle, device);
    if (!stream)
        return FG_INVALID_ARGUMENT;
    if (fg_device_failure())
        return FG_CUDA(214);
    fg_operator_blocks(true);
    fg_streams_lock();
    fg_stream_t *legacy = legacy_streams[stream->device];
    int status = joins_legacy(stream) && legacy ? fg_stream_await(legacy, legacy->issued) : FG_OK;
    if (!status)
        status = await_followed(stream, stream->device);
    fg_streams_unlock();
    fg_operator_blocks(false);
    return status;
}

/* lock held */
static fg_stream_t *make(int device, uint32_t flags, int priority, bool legacy) {
    fg_stream_t *stream = calloc(1, sizeof *stream);
    if (!stream)
        return NULL;
    *stream = (fg_stream_t){.id = next_id++, .device = device, .flags = flags, .priority = priority, .legacy = legacy,
                            .references = 1, .next = streams};
    stream->tail = &stream->head;
    pthread_cond_init(&stream->changed, NULL);
    streams = stream;
    return stream;
}

int fg_rt_stream_create(int device, uint32_t flags, int priority, fg_stream_t **out) {
    int status = fg_fork_check();
    if (status || (status = fg_rt_device_check(device)))
        return status;
    fg_fork_arm();
    fg_streams_lock();
    fg_stream_t *stream = make(device, flags, priority, false);
    fg_streams_unlock();
    status = stream ? fg_handle_add(stream, FG_HANDLE_STREAM) : fg_rt_set_error(FG_SYSTEM, "out of host memory");
    if (!status)
        *out = stream;
    return status;
}

int fg_rt_stream_destroy(fg_stream_t *stream) {
    if (!fg_handle_drop(stream, FG_HANDLE_STREAM))
        return fg_rt_set_error(FG_CUDA(400), "stream %p: not alive", (void *)stream);
    fg_streams_lock();
    stream->destroyed = true; /* the worker finishes what was given, then ends */
    pthread_cond_broadcast(&stream->changed);
    fg_stream_drop(stream);
    fg_streams_unlock();
    return FG_OK;
}

static fg_stream_t *legacy_stream(int device) {
    fg_streams_lock();
    if (!legacy_streams[device]) {
        fg_fork_arm();
        legacy_streams[device] = make(device, 0, 0, true);
    }
    fg_stream_t *stream = legacy_streams[device];
    fg_streams_unlock();
    return stream;
}

/* ---- per-thread default streams: made on first use, given back when the thread ends ---- */

static pthread_once_t per_thread_once = PTHREAD_ONCE_INIT;
static pthread_key_t per_thread_key;

static void end_thread(void *value) {
    fg_stream_t **own = value;
    for (int i = 0; !fg_rt_forked() && i < FG_MAX_DEVICES; i++)
        if (own[i])
            fg_rt_stream_destroy(own[i]);
    free(own);
}

static void make_key(void) {
    if (pthread_key_create(&per_thread_key, end_thread))
        fg_rt_log(FG_LOG_ERROR, "no key for per-thread default streams");
}

static fg_stream_t *per_thread_stream(int device) {
    pthread_once(&per_thread_once, make_key);
    fg_stream_t **own = pthread_getspecific(per_thread_key);
    if (!own && (own = calloc(FG_MAX_DEVICES, sizeof *own)))
        pthread_setspecific(per_thread_key, own);
    if (own && !own[device])
        fg_rt_stream_create(device, 0, 0, &own[device]);
    return own ? own[device] : NULL;
}

fg_stream_t *fg_rt_stream_resolve(const void *handle, int device) {
    if (fg_fork_check())
        return NULL;
    uintptr_t value = (uintptr_t)handle;
    if (value <= 2) {
        if (fg_rt_device_check(device))
            return NULL;
        return value == 2 ? per_thread_stream(device) : legacy_stream(device);
    }
    if (!fg_handle_alive(handle, FG_HANDLE_STREAM)) {
        fg_rt_set_error(FG_CUDA(400), "stream %p: not a stream, or destroyed", handle);
        return NULL;
    }
    return (fg_stream_t *)(uintptr_t)handle;
}

int fg_rt_stream_device(const fg_stream_t *stream) {
    return stream->device;
}

uint32_t fg_rt_stream_flags(const fg_stream_t *stream) {
    return stream->flags;
}

int fg_rt_stream_priority(const fg_stream_t *stream) {
    return stream->priority;
}

uint64_t fg_rt_stream_id(const fg_stream_t *stream) {
    return stream->id;
}
