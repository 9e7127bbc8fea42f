/* A communicator's facts, its asynchronous error, and its end. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

/* Rank and size are final when the coordinator has answered, which a non-blocking caller learns by polling. */
static ncclResult_t read_int(ncclComm_t comm, const char *call, const char *name, int *out, const int *value) {
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || (result = fg_nccl_check_pointer(out, call, name))) {
        return result;
    }
    if (!comm->rt || fg_rt_comm_state(comm->rt) == FG_IN_PROGRESS) {
        if (comm->phase == FG_PHASE_LIVE && comm->nranks == 0) {
            return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: the communicator is not ready yet", call);
        }
    }
    *out = *value;
    return ncclSuccess;
}

FG_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
    return read_int(comm, "ncclCommCount", "count", count, comm ? &comm->nranks : NULL);
}
FG_NCCL_ALSO(ncclCommCount);

FG_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
    return read_int(comm, "ncclCommUserRank", "rank", rank, comm ? &comm->rank : NULL);
}
FG_NCCL_ALSO(ncclCommUserRank);

FG_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
    return read_int(comm, "ncclCommCuDevice", "device", device, comm ? &comm->device : NULL);
}
FG_NCCL_ALSO(ncclCommCuDevice);

FG_EXPORT ncclResult_t ncclGetVersion(int *version) {
    ncclResult_t result = fg_nccl_check_pointer(version, "ncclGetVersion", "version");
    if (!result) {
        *version = fg_rt_config()->nccl_version;
    }
    return result;
}
FG_NCCL_ALSO(ncclGetVersion);

/* A peer aborted, but nothing of this rank was cut short. As between real GPUs this rank is not told before it asks for
 * something: a program whose ranks drop a communicator one after the other ends in order. */
static bool left_behind(ncclComm_t comm) {
    bool live = comm->phase == FG_PHASE_LIVE || comm->phase == FG_PHASE_FINALIZED;
    return comm->magic == FG_COMM_MAGIC_BEGIN && comm->rt && live && fg_rt_comm_state(comm->rt) == FG_ABORTED &&
           !fg_rt_comm_cut(comm->rt);
}

FG_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
    const char *call = "ncclCommGetAsyncError";
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || (result = fg_nccl_check_pointer(asyncError, call, "asyncError"))) {
        return result;
    }
    int status = comm->refusal ? comm->refusal : comm->rt ? fg_rt_comm_state(comm->rt) : FG_IN_PROGRESS;
    if (status == FG_OK && !comm->announced) {
        comm->announced = true;
        ncclResult_t made = fg_nccl_made(comm);
        comm->refusal = made ? FG_INVALID_USAGE : FG_OK;
        status = comm->refusal;
    }
    if (left_behind(comm)) {
        status = FG_OK;
    }
    if (status == FG_ABORTED && comm->phase == FG_PHASE_REVOKED) {
        status = FG_OK; /* what the caller asked for: quiescent, ready for shrink, split or destroy */
    }
    if (status != FG_OK && status != FG_IN_PROGRESS && comm->rt) {
        fg_nccl_remember(comm);
        fg_rt_comm_unheard(comm->rt);
    }
    *asyncError = fg_nccl_code(status);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommGetAsyncError);

FG_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (comm && left_behind(comm)) {
        comm->phase = FG_PHASE_FINALIZED; /* nothing to flush */
        return ncclSuccess;
    }
    ncclResult_t result = fg_nccl_check_ready(comm, "ncclCommFinalize");
    if (result) {
        return result;
    }
    void *gil = fg_rt_gil_unlock();
    int status = comm->blocking ? fg_rt_comm_finalize(comm->rt) : fg_rt_comm_finalize_begin(comm->rt);
    fg_rt_gil_relock(gil);
    comm->phase = FG_PHASE_FINALIZED;
    if (status == FG_ABORTED && !fg_rt_comm_cut(comm->rt)) {
        status = FG_OK; /* a peer aborted before the news of it came: left behind, too */
    }
    return status ? fg_nccl_result(status) : comm->blocking ? ncclSuccess : ncclInProgress;
}
FG_NCCL_ALSO(ncclCommFinalize);

/* The error that cut an operation of this rank short, if the caller was never told of it; waits for the operations. */
static int unheard_failure(ncclComm_t comm) {
    if (!comm->rt || comm->phase == FG_PHASE_REVOKED || fg_rt_comm_state(comm->rt) == FG_IN_PROGRESS) {
        return FG_OK;
    }
    fg_rt_comm_drain(comm->rt, 0);
    if (!fg_rt_comm_unheard(comm->rt)) {
        return FG_OK;
    }
    fg_nccl_remember(comm);
    return fg_rt_comm_state(comm->rt);
}

FG_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    if (!comm) {
        return ncclSuccess;
    }
    ncclResult_t result = fg_nccl_check_comm(comm, "ncclCommDestroy");
    if (result) {
        return result;
    }
    fg_nccl_print(FG_DEBUG_INFO, comm->device, "comm %p rank %d nranks %d cudaDev %d - Destroy COMPLETE", (void *)comm,
                  comm->rank, comm->nranks, comm->device);
    void *gil = fg_rt_gil_unlock();
    int status = unheard_failure(comm);
    fg_nccl_free(comm);
    fg_rt_gil_relock(gil);
    return fg_nccl_code(status);
}
FG_NCCL_ALSO(ncclCommDestroy);

FG_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
    if (!comm) {
        return ncclSuccess;
    }
    ncclResult_t result = fg_nccl_check_comm(comm, "ncclCommAbort");
    if (result) {
        return result;
    }
    fg_nccl_print(FG_DEBUG_INFO, comm->device, "comm %p rank %d nranks %d cudaDev %d - Abort COMPLETE", (void *)comm,
                  comm->rank, comm->nranks, comm->device);
    void *gil = fg_rt_gil_unlock();
    fg_comm_t *rt = comm->rt;
    comm->rt = NULL;
    if (rt) {
        fg_rt_comm_abort(rt, "ncclCommAbort");
    }
    fg_nccl_free(comm);
    fg_rt_gil_relock(gil);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommAbort);

FG_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
    const char *call = "ncclCommRevoke";
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (!result && revokeFlags) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: revokeFlags 0x%x, expected 0", call, revokeFlags);
    }
    if (!result && (!comm->rt || comm->phase == FG_PHASE_FINALIZED)) {
        result = fg_nccl_error(FG_INVALID_USAGE, "%s: the communicator is %s", call,
                               comm->rt ? "finalized" : "not ready yet");
    }
    if (result) {
        return result;
    }
    comm->phase = FG_PHASE_REVOKED;
    void *gil = fg_rt_gil_unlock();
    int status = fg_rt_comm_revoke(comm->rt);
    fg_rt_gil_relock(gil);
    return fg_nccl_result(status);
}
FG_NCCL_ALSO(ncclCommRevoke);

/* Device memory that NCCL would give back: here a communicator's staging lives on the host, so the state is all. */
FG_EXPORT ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
    ncclResult_t result = fg_nccl_check_ready(comm, "ncclCommSuspend");
    if (!result && flags != NCCL_SUSPEND_MEM) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "ncclCommSuspend: flags 0x%x, expected NCCL_SUSPEND_MEM (1)", flags);
    }
    if (!result) {
        void *gil = fg_rt_gil_unlock();
        fg_rt_comm_drain(comm->rt, 0);
        fg_rt_gil_relock(gil);
        comm->phase = FG_PHASE_SUSPENDED;
    }
    return result;
}
FG_NCCL_ALSO(ncclCommSuspend);

FG_EXPORT ncclResult_t ncclCommResume(ncclComm_t comm) {
    ncclResult_t result = fg_nccl_check_comm(comm, "ncclCommResume");
    if (!result && comm->phase != FG_PHASE_SUSPENDED) {
        result = fg_nccl_error(FG_INVALID_USAGE, "ncclCommResume: the communicator is not suspended");
    }
    if (!result) {
        comm->phase = FG_PHASE_LIVE;
    }
    return result;
}
FG_NCCL_ALSO(ncclCommResume);

FG_EXPORT ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value) {
    const char *call = "ncclCommMemStats";
    fg_comm_info_t info;
    ncclResult_t result = fg_nccl_check_comm(comm, call);
    if (result || (result = fg_nccl_check_pointer(value, call, "value"))) {
        return result;
    }
    if (!comm->rt || comm->refusal || fg_rt_comm_state(comm->rt) == FG_IN_PROGRESS) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: the communicator is not ready yet", call);
    }
    fg_rt_comm_info(comm->rt, &info);
    switch (stat) { /* staging stands for NCCL's buffers; none of it is device memory that could be suspended */
    case ncclStatGpuMemSuspend: *value = 0; break;
    case ncclStatGpuMemSuspended: *value = comm->phase == FG_PHASE_SUSPENDED; break;
    case ncclStatGpuMemPersist:
    case ncclStatGpuMemTotal: *value = info.stage_bytes; break;
    default: return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: stat %d, expected 0 to 3", call, (int)stat);
    }
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommMemStats);

/* The id that new ranks join with in ncclCommGrow: one at a time, consumed by the grow. */
FG_EXPORT ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId) {
    const char *call = "ncclCommGetUniqueId";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(uniqueId, call, "uniqueId"))) {
        return result;
    }
    if (comm->grow_id_open) {
        return fg_nccl_error(FG_INVALID_USAGE, "%s: the id made before was not used by an ncclCommGrow yet", call);
    }
    void *gil = fg_rt_gil_unlock();
    int status = fg_rt_comm_unique_id((uint8_t *)uniqueId->internal);
    fg_rt_gil_relock(gil);
    comm->grow_id_open = status == FG_OK;
    return fg_nccl_result(status);
}
FG_NCCL_ALSO(ncclCommGetUniqueId);
