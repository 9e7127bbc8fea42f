/* Host substitutes for the kernels of torch's symmetric memory (c10d::symmetric_memory of torch 2.14): signals between
 * ranks and the all-reduces over peers' buffers. Buffers and signal pads of all ranks are mapped in this process, so
 * every kernel is plain memory work in stream order. A signal is a word that its sender takes from 0 to 1 and its
 * receiver back to 0. Sums go over the ranks in order, rounded to the tensor's type after each, as the kernels do.
 */
#include "cudart.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct work {
    int (*body)(const struct work *work);
    _Atomic(uint32_t) **pads; /* by rank, each with a row of `world` words per channel */
    void **buffers;           /* by rank */
    char *output;
    const char *local;
    size_t offset, numel, rank, world, row; /* in elements; row: last dimension, for a split of it */
    int channel, peer;
    uint64_t timeout_ms; /* 0: for ever */
    bool bfloat16, scatter, split;
    const char *what;
} work_t;

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

/* ---- signals ---- */

static bool turn(_Atomic(uint32_t) *word, uint32_t from, uint64_t timeout_ms) {
    static const struct timespec pause = {.tv_nsec = 50000};
    uint64_t end = now_ms() + timeout_ms;
    for (unsigned tries = 0;; tries++) {
        uint32_t expected = from;
        if (atomic_compare_exchange_strong(word, &expected, 1 - from))
            return true;
        if (timeout_ms && now_ms() > end)
            return false;
        if (tries < 200)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
}

static int late(const work_t *work, const char *what, size_t peer) {
    return fg_rt_set_error(FG_CUDA(719), "symmetric memory: %s: rank %zu %s rank %zu on channel %d: nothing in %llu ms",
                           work->what, work->rank, what, peer, work->channel, (unsigned long long)work->timeout_ms);
}

static int put(const work_t *work, size_t peer) {
    bool done = turn(work->pads[peer] + work->world * (size_t)work->channel + work->rank, 0, work->timeout_ms);
    return done ? FG_OK : late(work, "signals to", peer);
}

static int take(const work_t *work, size_t peer) {
    bool done = turn(work->pads[work->rank] + work->world * (size_t)work->channel + peer, 1, work->timeout_ms);
    return done ? FG_OK : late(work, "waits for", peer);
}

static int meet(const work_t *work) {
    int status = FG_OK;
    for (size_t peer = 0; !status && peer < work->world; peer++)
        if (peer != work->rank)
            status = put(work, peer);
    for (size_t peer = 0; !status && peer < work->world; peer++)
        if (peer != work->rank)
            status = take(work, peer);
    return status;
}

static int put_body(const work_t *work) {
    return put(work, (size_t)work->peer);
}

static int take_body(const work_t *work) {
    return take(work, (size_t)work->peer);
}

/* ---- reductions ---- */

static float widened(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t rounded(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static size_t width(const work_t *work) {
    return work->bfloat16 ? sizeof(uint16_t) : sizeof(float);
}

static char *element(const work_t *work, size_t rank, size_t index) {
    return (char *)work->buffers[rank] + (work->offset + index) * width(work);
}

/* output[0, count) = the ranks' elements from `first` on, added up */
static void reduce(const work_t *work, char *output, size_t first, size_t count) {
    memmove(output, element(work, 0, first), count * width(work)); /* a rank's own slice may be reduced in place */
    for (size_t rank = 1; rank < work->world; rank++) {
        const void *from = element(work, rank, first);
        for (size_t i = 0; i < count; i++)
            if (work->bfloat16) {
                uint16_t *sum = (uint16_t *)(void *)output;
                sum[i] = rounded(widened(sum[i]) + widened(((const uint16_t *)from)[i]));
            } else {
                ((float *)(void *)output)[i] += ((const float *)from)[i];
            }
    }
}

static int one_shot(const work_t *work) {
    if (work->local)
        memmove(element(work, work->rank, 0), work->local, work->numel * width(work));
    int status = meet(work);
    if (status)
        return status;
    reduce(work, work->output, 0, work->numel);
    return meet(work);
}

static int reduce_scatter(const work_t *work) {
    int status = meet(work);
    if (status)
        return status;
    size_t mine = work->numel / work->world, piece = work->split ? work->row / work->world : mine;
    for (size_t done = 0; piece && done < mine; done += piece)
        reduce(work, work->output + done * width(work), work->rank * piece + done / piece * work->row, piece);
    return meet(work);
}

/* Everyone reduces its slice; in place (no output) it goes into all buffers, else all slices are fetched. */
static int two_shot(const work_t *work) {
    size_t slice = (work->numel + work->world - 1) / work->world;
    size_t first = slice * work->rank < work->numel ? slice * work->rank : work->numel;
    size_t count = work->numel - first < slice ? work->numel - first : slice;
    char *sum = malloc(count * width(work) + 1);
    if (!sum)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for %s", work->what);
    int status = meet(work);
    if (!status) {
        reduce(work, sum, first, count);
        for (size_t step = 0; step < (work->output ? 1 : work->world); step++)
            memcpy(element(work, (work->rank + step) % work->world, first), sum, count * width(work));
        status = meet(work);
    }
    free(sum);
    if (status || !work->output)
        return status;
    for (size_t rank = 0; rank < work->world; rank++) {
        size_t from = slice * rank < work->numel ? slice * rank : work->numel;
        size_t much = work->numel - from < slice ? work->numel - from : slice;
        memcpy(work->output + from * width(work), element(work, rank, from), much * width(work));
    }
    return meet(work);
}

/* ---- in stream order, or into a graph ---- */

static int run(void *arg) {
    const work_t *work = arg;
    return work->body(work);
}

static void run_job(void *arg) {
    int status = run(arg);
    free(arg);
    if (status && fg_rt_stream_fail(strdup(fg_rt_last_error()))) /* a trap: the device is lost for this process */
        for (;;)
            nanosleep(&(struct timespec){.tv_sec = 3600}, NULL);
}

static int submit(const fg_launch_t *launch, const work_t *work) {
    static const fg_graph_node_t node = {.run = run, .drop = free, .name = "symmetric memory", .waits = true};
    work_t *kept = malloc(sizeof *kept);
    if (!kept)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for %s", work->what);
    *kept = *work;
    fg_graph_t *graph = fg_rt_stream_capturing(launch->stream) ? fg_rt_capture_graph(launch->stream) : NULL;
    int status = graph ? fg_rt_capture_add(graph, launch->stream, &node, kept)
                       : fg_rt_stream_enqueue(launch->stream, run_job, kept);
    if (status)
        free(kept);
    return status;
}

/* ---- the kernels' arguments ---- */

#define ARG(type, index) (*(type *)launch->args[index])

static int launch_barrier(const fg_launch_t *launch, void *context) {
    (void)context;
    work_t work = {.body = meet, .what = "barrier", .pads = ARG(_Atomic(uint32_t) **, 0), .channel = ARG(int, 1),
                   .rank = (size_t)ARG(int, 2), .world = (size_t)ARG(int, 3), .timeout_ms = ARG(size_t, 4)};
    return submit(launch, &work);
}

static int launch_signal(const fg_launch_t *launch, void *context) {
    work_t work = {.body = context ? put_body : take_body, .what = context ? "put_signal" : "wait_signal",
                   .pads = ARG(_Atomic(uint32_t) **, 0), .peer = ARG(int, 1), .channel = ARG(int, 2),
                   .rank = (size_t)ARG(int, 3), .world = (size_t)ARG(int, 4), .timeout_ms = ARG(size_t, 5)};
    return submit(launch, &work);
}

/* f or c10::BFloat16, the first template argument behind the kernel's name */
static bool is_bfloat16(const fg_launch_t *launch, const char *kernel) {
    return !strncmp(strstr(launch->kernel, kernel) + strlen(kernel), "IN3c108BFloat16E", 16);
}

static int launch_one_shot(const fg_launch_t *launch, void *context) {
    (void)context;
    work_t work = {.body = one_shot, .what = "one_shot_all_reduce", .buffers = ARG(void **, 0), .output = ARG(char *, 1),
                   .local = ARG(char *, 2), .offset = ARG(size_t, 3), .numel = ARG(size_t, 4),
                   .pads = ARG(_Atomic(uint32_t) **, 5), .rank = ARG(size_t, 6), .world = ARG(size_t, 7),
                   .bfloat16 = is_bfloat16(launch, "one_shot_all_reduce_kernel")};
    return submit(launch, &work);
}

static int launch_two_shot_inplace(const fg_launch_t *launch, void *context) {
    (void)context;
    work_t work = {.body = two_shot, .what = "two_shot_all_reduce_", .buffers = ARG(void **, 0), .offset = ARG(size_t, 1),
                   .numel = ARG(size_t, 2), .pads = ARG(_Atomic(uint32_t) **, 3), .rank = ARG(size_t, 4),
                   .world = ARG(size_t, 5), .bfloat16 = is_bfloat16(launch, "two_shot_all_reduce_kernel_inplace")};
    return submit(launch, &work);
}

/* template arguments: type, alignment, world size, reduce_scatter, split_last_dim */
static int launch_two_shot(const fg_launch_t *launch, void *context) {
    (void)context;
    const char *flags = strstr(launch->kernel, "ELb");
    bool scatter = flags && flags[3] == '1', split = flags && !strncmp(flags + 4, "ELb1", 4);
    work_t work = {.body = scatter ? reduce_scatter : two_shot, .what = scatter ? "reduce_scatter" : "two_shot_all_reduce",
                   .buffers = ARG(void **, 0), .output = ARG(char *, 1), .offset = ARG(size_t, 2), .numel = ARG(size_t, 3),
                   .pads = ARG(_Atomic(uint32_t) **, 4), .rank = ARG(size_t, 5), .world = ARG(size_t, 6),
                   .row = ARG(size_t, 7), .scatter = scatter, .split = split,
                   .bfloat16 = is_bfloat16(launch, "two_shot_all_reduce_kernel")};
    return submit(launch, &work);
}

__attribute__((constructor)) static void register_all(void) {
    static char putting;
    fg_rt_register_kernel("_ZN4c10d16symmetric_memory14barrier_kernelEPPjiiim", launch_barrier, NULL);
    fg_rt_register_kernel("_ZN4c10d16symmetric_memory17put_signal_kernelEPPjiiiim", launch_signal, &putting);
    fg_rt_register_kernel("_ZN4c10d16symmetric_memory18wait_signal_kernelEPPjiiiim", launch_signal, NULL);
    fg_rt_register_kernel("*CUDASymmetricMemoryOps_cu_*one_shot_all_reduce_kernelI*EEvPPT_S[24]_S[24]_mmPPjmm", launch_one_shot, NULL);
    fg_rt_register_kernel("*CUDASymmetricMemoryOps_cu_*two_shot_all_reduce_kernel_inplaceI*EEvPPT_mmPPjmm",
                          launch_two_shot_inplace, NULL);
    fg_rt_register_kernel("*CUDASymmetricMemoryOps_cu_*two_shot_all_reduce_kernelI*EEvPPT_S[24]_mmPPjmmm", launch_two_shot, NULL);
}
