/* Windows: memory of every rank that the others may write to (ncclPutSignal) or look at.
 *
 * Registering is collective: the ranks tell each other where their part lies. Where they share memory a peer's part is
 * mapped here at the first question for it, so that its pointer is a plain pointer until the window is gone.
 */
#include <stdlib.h>
#include "internal.h"

#define WINDOW_MAGIC 0x574f444e49574346ull

struct ncclWindow_vidmem {
    uint64_t magic;
    fg_window_t *next;
    ncclComm_t comm;
    void *base;
    size_t size;
    fg_buffer_ref_t own, *refs; /* one per rank; pid 0: not to be mapped */
    fg_segment_t *segments;     /* of peers, mapped on demand */
};

static ncclResult_t check_window(ncclWindow_t win, const char *call) {
    if (!win || win->magic != WINDOW_MAGIC) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: win %p is no window of ncclCommWindowRegister", call, (void *)win);
    }
    return ncclSuccess;
}

static void free_window(fg_window_t *window) {
    const fg_core_api_t *core;
    if (window->segments && fg_rt_core(&core) == FG_OK) {
        for (int r = 0; r < window->comm->nranks; r++) {
            if (window->segments[r].base) {
                core->segment_close(&window->segments[r]);
            }
        }
    }
    window->magic = 0;
    free(window->refs);
    free(window->segments);
    free(window);
}

void fg_window_free_all(ncclComm_t comm) {
    while (comm->windows) {
        fg_window_t *window = comm->windows;
        comm->windows = window->next;
        free_window(window);
    }
}

static fg_window_t *new_window(ncclComm_t comm, void *buff, size_t size) {
    fg_window_t *window = calloc(1, sizeof *window);
    if (!window) {
        return NULL;
    }
    window->refs = calloc((size_t)comm->nranks, sizeof *window->refs);
    window->segments = calloc((size_t)comm->nranks, sizeof *window->segments);
    window->comm = comm;
    if (!window->refs || !window->segments) {
        free(window->refs);
        free(window->segments);
        free(window);
        return NULL;
    }
    for (int r = 0; r < comm->nranks; r++) {
        window->segments[r].fd = -1;
    }
    window->magic = WINDOW_MAGIC;
    window->base = buff;
    window->size = size;
    fg_rt_memory_ref(buff, size, &window->own);
    window->own.bytes = size; /* told even where it cannot be mapped */
    return window;
}

FG_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                              int winFlags) {
    const char *call = "ncclCommWindowRegister";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(win, call, "win")) ||
        (result = fg_nccl_check_pointer(buff, call, "buff"))) {
        return fg_group_error(result);
    }
    *win = NULL;
    if (!size || winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) {
        return fg_group_error(fg_nccl_error(FG_INVALID_ARGUMENT, "%s: size %zu and winFlags 0x%x, expected 1 or more "
                                            "and 0 to 3", call, size, winFlags));
    }
    fg_window_t *window = new_window(comm, buff, size);
    if (!window) {
        return fg_group_error(fg_nccl_error(FG_OUT_OF_MEMORY, "%s: no memory for a window", call));
    }
    pthread_mutex_lock(&comm->lock);
    window->next = comm->windows;
    comm->windows = window;
    pthread_mutex_unlock(&comm->lock);
    *win = window;
    fg_queued_t exchange = {.comm = comm, .call = {.kind = FG_ALL_GATHER, .dtype = FG_UINT8, .root = -1,
                                                   .count = sizeof window->own, .in = &window->own,
                                                   .out = window->refs}};
    result = fg_group_open() ? fg_group_append_now(&exchange) : fg_nccl_run_now(&exchange, 1);
    return fg_group_error(result);
}
FG_NCCL_ALSO(ncclCommWindowRegister);

FG_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
    const char *call = "ncclCommWindowDeregister";
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || !win) {
        return result;
    }
    pthread_mutex_lock(&comm->lock);
    fg_window_t **at = &comm->windows;
    while (*at && *at != win) {
        at = &(*at)->next;
    }
    bool found = *at != NULL;
    if (found) {
        *at = win->next;
    }
    pthread_mutex_unlock(&comm->lock);
    if (!found) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: win %p does not belong to this communicator", call, (void *)win);
    }
    free_window(win);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommWindowDeregister);

FG_EXPORT ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr) {
    const char *call = "ncclWinGetUserPtr";
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || (result = check_window(win, call)) ||
        (result = fg_nccl_check_pointer(outUserPtr, call, "outUserPtr"))) {
        return result;
    }
    *outUserPtr = win->base;
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclWinGetUserPtr);

/* Where [offset, offset + bytes) of a peer's part lies, for the runtime to write to. */
ncclResult_t fg_window_target(const char *call, ncclComm_t comm, ncclWindow_t win, int peer, size_t offset,
                              uint64_t bytes, fg_buffer_ref_t *out) {
    ncclResult_t result = check_window(win, call);
    if (result) {
        return result;
    }
    if (win->comm != comm) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: peerWin %p belongs to another communicator", call, (void *)win);
    }
    *out = win->refs[peer];
    if (offset > out->bytes || bytes > out->bytes - offset) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: %llu bytes at peerWinOffset %zu, rank %d's window has %llu", call,
                             (unsigned long long)bytes, offset, peer, (unsigned long long)out->bytes);
    }
    if (!out->pid || !fg_rt_comm_shared(comm->rt)) {
        return fg_nccl_error(FG_NOT_SUPPORTED, "%s: rank %d's window cannot be reached: one-sided writes need device "
                             "memory (ncclMemAlloc, cudaMalloc) and ranks that share memory (a Unix coordinator, "
                             "FAKEGPU_STAGING_FORCE_SOCKET unset)", call, peer);
    }
    return ncclSuccess;
}

/* A peer's part as a pointer of this process; NULL with success where there is none, as NCCL answers across nodes. */
static ncclResult_t peer_pointer(const char *call, ncclWindow_t window, size_t offset, int peer, void **out) {
    const fg_core_api_t *core;
    char why[FG_TEXT_BYTES] = "";
    ncclResult_t result = check_window(window, call);
    if (result || (result = fg_nccl_check_pointer(out, call, "outPtr"))) {
        return result;
    }
    *out = NULL;
    ncclComm_t comm = window->comm;
    if (peer < 0 || peer >= comm->nranks || offset >= window->refs[peer].bytes) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: peer %d and offset %zu, expected a rank below %d and an offset "
                             "within its window", call, peer, offset, comm->nranks);
    }
    if (peer == comm->rank) {
        *out = (uint8_t *)window->base + offset;
        return ncclSuccess;
    }
    if (!window->refs[peer].pid || !fg_rt_comm_shared(comm->rt)) {
        return ncclSuccess;
    }
    int status = fg_rt_core(&core);
    pthread_mutex_lock(&comm->lock);
    fg_segment_t *segment = &window->segments[peer];
    if (!status && !segment->base) {
        status = core->segment_open(&window->refs[peer], segment, why, sizeof why);
    }
    pthread_mutex_unlock(&comm->lock);
    if (status) {
        return fg_nccl_error(status, "%s: mapping rank %d's window: %s", call, peer, why);
    }
    *out = segment->base + window->refs[peer].offset + offset;
    return ncclSuccess;
}

FG_EXPORT ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void **outPtr) {
    return peer_pointer("ncclGetPeerDevicePointer", window, offset, peer, outPtr);
}
FG_NCCL_ALSO(ncclGetPeerDevicePointer);

FG_EXPORT ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank, void **outPtr) {
    const char *call = "ncclGetLsaDevicePointer";
    ncclResult_t result = check_window(window, call);
    int first = result ? 0 : window->comm->rank - ncclTeamLsa(window->comm).rank;
    return result ? result : peer_pointer(call, window, offset, first + lsaRank, outPtr);
}
FG_NCCL_ALSO(ncclGetLsaDevicePointer);
