/* Owns copies and fills: checks that each side is what the call says, then runs in stream order - at once on an idle
 * stream, queued behind pending work otherwise. Follows CUDA's rules on what has happened when the call returns: a
 * pageable source has been read, a pageable destination has been written, host to host is complete.
 */
#include "fg_cuda.h"
#include "graph.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { HOST_TO_HOST = 0, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2, DEVICE_TO_DEVICE = 3, ANY = 4 };

typedef enum copy_state { COPY_QUEUED, COPY_TAKEN, COPY_CANCELLED } copy_state_t;

typedef struct copy_job {
    fg_copy_t copy;
    _Atomic copy_state_t state;
    atomic_int references; /* the stream's and, where the call waits, the caller's */
    uint8_t staged[];
} copy_job_t;

void fg_copy_run(const fg_copy_t *c) {
    if (c->height == 1 && c->depth == 1) {
        memmove(c->dst, c->src, c->width);
        return;
    }
    for (uint64_t z = 0; z < c->depth; z++)
        for (uint64_t y = 0; y < c->height; y++)
            memmove((char *)c->dst + z * c->dst_slice + y * c->dst_pitch,
                    (const char *)c->src + z * c->src_slice + y * c->src_pitch, c->width);
}

void fg_fill_run(const fg_fill_t *f) {
    for (uint64_t z = 0; z < f->depth; z++)
        for (uint64_t y = 0; y < f->height; y++) {
            char *row = (char *)f->dst + z * f->slice + y * f->pitch;
            uint16_t half = (uint16_t)f->value;
            if (f->element_bytes == 1)
                memset(row, (int)f->value, f->width);
            else
                for (uint64_t x = 0; x < f->width; x++)
                    memcpy(row + x * f->element_bytes, f->element_bytes == 2 ? (void *)&half : (void *)&f->value,
                           f->element_bytes);
        }
}

static void run_copy(void *arg) {
    fg_copy_run(arg);
}

static void drop_copy(copy_job_t *job) {
    if (atomic_fetch_sub(&job->references, 1) == 1)
        free(job);
}

static bool claim_copy(copy_job_t *job, copy_state_t as) {
    copy_state_t queued = COPY_QUEUED;
    return atomic_compare_exchange_strong(&job->state, &queued, as);
}

static void run_and_drop_copy(void *arg) {
    copy_job_t *job = arg;
    if (claim_copy(job, COPY_TAKEN))
        fg_copy_run(&job->copy);
    drop_copy(job);
}

/* A copy whose call fails must not happen later, when its memory may be gone. */
static int await_copy(fg_stream_t *stream, copy_job_t *job) {
    int status = fg_rt_stream_sync(stream);
    while (status && !claim_copy(job, COPY_CANCELLED) && !fg_rt_in_job())
        if (!(status = fg_rt_stream_sync(stream)))
            break;
    drop_copy(job);
    return status;
}

static void run_and_free_fill(void *arg) {
    fg_fill_run(arg);
    free(arg);
}

static uint64_t extent(uint64_t width, uint64_t height, uint64_t depth, uint64_t pitch, uint64_t slice) {
    return width + (height - 1) * pitch + (depth - 1) * slice;
}

/* *kind: FG_MEMORY_UNKNOWN means pageable host memory. expected: 0 host side, 1 device side, 2 either. */
static int check_side(const char *api, const char *side, const void *pointer, uint64_t bytes, int expected, int *kind) {
    fg_memory_info_t info;
    *kind = fg_rt_memory_lookup(pointer, &info) ? FG_MEMORY_UNKNOWN : (int)info.kind;
    if (!pointer)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: %s is NULL", api, side);
    if (expected == 1 && *kind == FG_MEMORY_UNKNOWN)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: %s %p: expected device memory, found pageable host memory", api, side,
                               pointer);
    if (expected == 0 && *kind == FG_MEMORY_DEVICE)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: %s %p: expected host memory, found memory of device %d", api, side,
                               pointer, info.device);
    if (*kind != FG_MEMORY_DEVICE)
        return FG_OK;
    uint64_t left = info.bytes - (uint64_t)((const char *)pointer - (const char *)info.base);
    while (left < bytes) { /* the next mapped handle may follow without a gap */
        fg_memory_info_t next;
        if (fg_rt_memory_lookup((const char *)pointer + left, &next) || next.kind != FG_MEMORY_DEVICE)
            return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: %s %p + %llu bytes passes the end of its allocation by %llu", api,
                                   side, pointer, (unsigned long long)bytes, (unsigned long long)(bytes - left));
        left += next.bytes;
    }
    return FG_OK;
}

static bool on_host(int kind) {
    return kind != FG_MEMORY_DEVICE && kind != FG_MEMORY_MANAGED;
}

/* Packs a pageable source into the job, so that the caller may reuse it. */
static copy_job_t *make_job(const fg_copy_t *copy, bool stage) {
    uint64_t rows = copy->height * copy->depth;
    copy_job_t *job = malloc(sizeof *job + (stage ? copy->width * rows : 0));
    if (!job)
        return NULL;
    job->copy = *copy;
    atomic_init(&job->state, COPY_QUEUED);
    atomic_init(&job->references, 1);
    if (stage) {
        fg_copy_t in = *copy;
        in.dst = job->staged;
        in.dst_pitch = copy->width;
        in.dst_slice = copy->width * copy->height;
        fg_copy_run(&in);
        job->copy.src = job->staged;
        job->copy.src_pitch = in.dst_pitch;
        job->copy.src_slice = in.dst_slice;
    }
    return job;
}

int fg_rt_copy(const char *api, fg_stream_t *stream, const fg_copy_t *copy, int kind, bool async) {
    if (!stream)
        return FG_CUDA(400);
    if (kind < HOST_TO_HOST || kind > ANY)
        return fg_rt_set_error(FG_CUDA(21), "%s: kind %d: expected 0 to 4", api, kind);
    if (!copy->width || !copy->height || !copy->depth)
        return FG_OK;
    int from, to, status;
    uint64_t read = extent(copy->width, copy->height, copy->depth, copy->src_pitch, copy->src_slice);
    uint64_t written = extent(copy->width, copy->height, copy->depth, copy->dst_pitch, copy->dst_slice);
    if ((status = check_side(api, "source", copy->src, read, kind == ANY ? 2 : kind >> 1, &from)) ||
        (status = check_side(api, "destination", copy->dst, written, kind == ANY ? 2 : kind & 1, &to)))
        return status;
    if (fg_rt_stream_capturing(stream))
        return async && !(from == FG_MEMORY_UNKNOWN && to == FG_MEMORY_UNKNOWN) ? fg_capture_copy(stream, copy)
                                                                               : fg_rt_stream_sync(stream);
    status = fg_rt_stream_try(stream, run_copy, (void *)(uintptr_t)copy);
    if (status != FG_IN_PROGRESS)
        return status;
    copy_job_t *job = make_job(copy, async && from == FG_MEMORY_UNKNOWN && !on_host(to));
    if (!job)
        return fg_rt_set_error(FG_SYSTEM, "%s: out of host memory for staging", api);
    bool must_wait = async ? to == FG_MEMORY_UNKNOWN || (on_host(from) && on_host(to)) : on_host(from) || on_host(to);
    atomic_fetch_add(&job->references, must_wait);
    status = fg_rt_stream_enqueue(stream, run_and_drop_copy, job);
    if (status)
        free(job);
    else if (must_wait)
        status = await_copy(stream, job);
    return status;
}

int fg_rt_fill(const char *api, fg_stream_t *stream, const fg_fill_t *fill, bool async) {
    if (!stream)
        return FG_CUDA(400);
    if (!fill->width || !fill->height || !fill->depth)
        return FG_OK;
    int kind;
    uint64_t bytes = extent(fill->width * fill->element_bytes, fill->height, fill->depth, fill->pitch, fill->slice);
    int status = check_side(api, "destination", fill->dst, bytes, 1, &kind);
    if (status)
        return status;
    if (fg_rt_stream_capturing(stream))
        return async ? fg_capture_fill(stream, fill) : fg_rt_stream_sync(stream);
    fg_fill_t *job = malloc(sizeof *job);
    if (!job)
        return fg_rt_set_error(FG_SYSTEM, "%s: out of host memory", api);
    *job = *fill;
    status = fg_rt_stream_run(stream, run_and_free_fill, job);
    if (status)
        free(job);
    else if (!async && kind != FG_MEMORY_DEVICE)
        status = fg_rt_stream_sync(stream);
    return status;
}
