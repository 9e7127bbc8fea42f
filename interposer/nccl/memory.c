/* ncclMemAlloc and buffer registration. All device memory of this process is shareable, so registering costs nothing
 * and only keeps count of handles; a deregistration of something else is told.
 */
#include <stdlib.h>
#include "internal.h"

FG_EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size) {
    ncclResult_t result = fg_nccl_check_pointer(ptr, "ncclMemAlloc", "ptr");
    if (result) {
        return result;
    }
    *ptr = NULL;
    return size ? fg_nccl_result(fg_rt_memory_alloc(fg_rt_device_get(), size, ptr)) : ncclSuccess;
}
FG_NCCL_ALSO(ncclMemAlloc);

FG_EXPORT ncclResult_t ncclMemFree(void *ptr) {
    return ptr ? fg_nccl_result(fg_rt_memory_free(ptr)) : ncclSuccess;
}
FG_NCCL_ALSO(ncclMemFree);

FG_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
    const char *call = "ncclCommRegister";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(buff, call, "buff")) ||
        (result = fg_nccl_check_pointer(handle, call, "handle"))) {
        return result;
    }
    if (!size) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: size 0, expected 1 or more", call);
    }
    pthread_mutex_lock(&comm->lock);
    void **grown = realloc(comm->registered, (comm->nregistered + 1) * sizeof *grown);
    if (grown) {
        comm->registered = grown;
        grown[comm->nregistered++] = *handle = malloc(1); /* its address is the handle: unique while registered */
    }
    pthread_mutex_unlock(&comm->lock);
    return grown && *handle ? ncclSuccess : fg_nccl_error(FG_OUT_OF_MEMORY, "%s: no memory for a handle", call);
}
FG_NCCL_ALSO(ncclCommRegister);

FG_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    const char *call = "ncclCommDeregister";
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || !handle) {
        return result;
    }
    pthread_mutex_lock(&comm->lock);
    size_t at = 0;
    while (at < comm->nregistered && comm->registered[at] != handle) {
        at++;
    }
    bool found = at < comm->nregistered;
    if (found) {
        comm->registered[at] = comm->registered[--comm->nregistered];
    }
    pthread_mutex_unlock(&comm->lock);
    if (!found) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: handle %p was not registered on this communicator", call, handle);
    }
    free(handle);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommDeregister);
