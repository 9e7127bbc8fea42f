/* Windows: memory of every rank that the others may write to (ncclPutSignal) or look at.
 *
 * Registering is collective. Where ranks share memory their windows are mapped here, so that a peer's pointer is a
 * plain pointer; else only this rank's part is known.
 */
#include <stdlib.h>
#include "internal.h"

struct ncclWindow_vidmem {
    uint64_t magic;
    fg_window_t *next;
    ncclComm_t comm;
    void *base;
    size_t size;
    int flags;
};

#define WINDOW_MAGIC 0x574f444e49574346ull

static ncclResult_t check_window(ncclWindow_t win, const char *call) {
    if (!win || win->magic != WINDOW_MAGIC) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: win %p is no window of ncclCommWindowRegister", call, (void *)win);
    }
    return ncclSuccess;
}

void fg_window_free_all(ncclComm_t comm) {
    while (comm->windows) {
        fg_window_t *window = comm->windows;
        comm->windows = window->next;
        window->magic = 0;
        free(window);
    }
}

FG_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                              int winFlags) {
    const char *call = "ncclCommWindowRegister";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(win, call, "win")) ||
        (result = fg_nccl_check_pointer(buff, call, "buff"))) {
        return result;
    }
    *win = NULL;
    if (!size || winFlags & ~(NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING)) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: size %zu and winFlags 0x%x, expected 1 or more and 0 to 3", call,
                             size, winFlags);
    }
    fg_window_t *window = calloc(1, sizeof *window);
    if (!window) {
        return fg_nccl_error(FG_OUT_OF_MEMORY, "%s: no memory for a window", call);
    }
    *window = (fg_window_t){.magic = WINDOW_MAGIC, .comm = comm, .base = buff, .size = size, .flags = winFlags};
    pthread_mutex_lock(&comm->lock);
    window->next = comm->windows;
    comm->windows = window;
    pthread_mutex_unlock(&comm->lock);
    *win = window;
    return ncclSuccess;
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
        win->magic = 0;
        free(win);
    }
    pthread_mutex_unlock(&comm->lock);
    return found ? ncclSuccess : fg_nccl_error(FG_INVALID_ARGUMENT, "%s: win %p does not belong to this communicator",
                                               call, (void *)win);
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
