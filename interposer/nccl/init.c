/* Making communicators: configuration, handle, and the init calls. group.c sends and waits; derive.c makes them from
 * others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

/* A configuration is ours to read up to the size its header says; newer headers only append. */
static ncclResult_t read_config(const char *call, const ncclConfig_t *given, ncclConfig_t *out) {
    *out = (ncclConfig_t){.blocking = NCCL_CONFIG_UNDEF_INT};
    if (!given) {
        return ncclSuccess;
    }
    if (given->magic != NCCL_API_MAGIC) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: config.magic 0x%x, expected 0x%x; initialise it with "
                             "NCCL_CONFIG_INITIALIZER", call, given->magic, NCCL_API_MAGIC);
    }
    size_t size = given->size < sizeof *out ? given->size : sizeof *out;
    if (size < offsetof(ncclConfig_t, cgaClusterSize)) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: config.size %zu, expected at least %zu", call, given->size,
                             offsetof(ncclConfig_t, cgaClusterSize));
    }
    memcpy(out, given, size);
    if (out->blocking != NCCL_CONFIG_UNDEF_INT && out->blocking != 0 && out->blocking != 1) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: config.blocking %d, expected 0 or 1", call, out->blocking);
    }
    return ncclSuccess;
}

ncclResult_t fg_nccl_new(const char *call, const ncclConfig_t *given, ncclComm_t parent, fg_pending_t *pending) {
    ncclConfig_t config;
    ncclResult_t result = read_config(call, given, &config);
    if (result) {
        return result;
    }
    int device = parent ? parent->device : fg_rt_device_get();
    const fg_profile_t *profile = fg_rt_device_profile(device);
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (!comm || !profile) {
        free(comm);
        return profile ? fg_nccl_error(FG_OUT_OF_MEMORY, "%s: no memory for a communicator", call)
                       : fg_nccl_error(FG_UNHANDLED_CUDA, "%s: no CUDA device %d, %d are visible (FAKEGPU_DEVICE_COUNT, "
                                       "CUDA_VISIBLE_DEVICES)", call, device, fg_rt_device_count());
    }
    comm->magic = FG_COMM_MAGIC_BEGIN;
    comm->magic_end = FG_COMM_MAGIC_END;
    comm->device = device;
    comm->compute_capability = 10 * profile->cc_major + profile->cc_minor;
    bool inherited = config.blocking == NCCL_CONFIG_UNDEF_INT && parent;
    comm->blocking = inherited ? parent->blocking : config.blocking != 0;
    comm->rank = pending->args.rank;
    comm->nranks = pending->args.nranks;
    pthread_mutex_init(&comm->lock, NULL);
    pending->comm = comm;
    pending->parent = parent;
    pending->args.device = fg_rt_device_physical(device);
    pending->args.compute_capability = comm->compute_capability;
    pending->args.nonblocking = !comm->blocking;
    snprintf(pending->name, sizeof pending->name, "%s", config.commName ? config.commName : "");
    *pending->out = comm;
    return ncclSuccess;
}

/* Handles rest here for a while before their memory is used again, so that a late use is told and not followed. */
static void retire(ncclComm_t comm) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ncclComm_t resting[256];
    static size_t next;
    pthread_mutex_lock(&lock);
    ncclComm_t oldest = resting[next % 256];
    resting[next++ % 256] = comm;
    pthread_mutex_unlock(&lock);
    free(oldest);
}

void fg_nccl_free(ncclComm_t comm) {
    if (comm->rt) {
        fg_rt_comm_destroy(comm->rt);
    }
    fg_window_free_all(comm);
    comm->magic = comm->magic_end = 0;
    pthread_mutex_destroy(&comm->lock);
    free(comm->redops);
    free(comm->registered);
    retire(comm);
}

/* Two ranks on one device are fine here; NCCL refuses them, and so does FAKEGPU_DUPLICATE_GPU=error. */
static ncclResult_t check_duplicates(const fg_comm_info_t *info) {
    if (!fg_rt_config()->duplicate_gpu_error) {
        return ncclSuccess;
    }
    const fg_member_t *own = &info->members[info->rank];
    for (int r = 0; r < info->nranks; r++) {
        const fg_member_t *other = &info->members[r];
        if (r != info->rank && other->node == own->node && other->device == own->device) {
            return fg_nccl_error(FG_INVALID_USAGE, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x",
                                 info->rank, r, (unsigned)own->device);
        }
    }
    return ncclSuccess;
}

ncclResult_t fg_nccl_made(ncclComm_t comm) {
    fg_comm_info_t info;
    fg_rt_comm_info(comm->rt, &info);
    comm->announced = true;
    comm->rank = info.rank;
    comm->nranks = info.nranks;
    if (info.nranks == 0) {
        return ncclSuccess;
    }
    fg_nccl_print(FG_DEBUG_INFO, comm->device, "comm %p rank %d nranks %d cudaDev %d name %s commId 0x%llx - Init COMPLETE",
                  (void *)comm, info.rank, info.nranks, comm->device, info.name, (unsigned long long)info.comm);
    return check_duplicates(&info);
}

static ncclResult_t begin_init(fg_pending_t *p) {
    fg_comm_t *made = NULL;
    p->args.name = p->name;
    int status = fg_rt_comm_init(&p->args, &made);
    p->comm->rt = made;
    return fg_nccl_result(status);
}

/* All of init's calls. */
static ncclResult_t init_rank(const char *call, ncclComm_t *out, int nranks, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config) {
    fg_pending_t pending = {.out = out, .begin = begin_init, .args = {.nranks = nranks, .rank = rank}};
    ncclResult_t result = fg_nccl_check_pointer(out, call, "comm");
    if (!result) {
        *out = NULL;
    }
    if (!result && nranks < 1) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: nranks %d, expected 1 or more", call, nranks);
    }
    if (!result && (rank < 0 || rank >= nranks)) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: rank %d, expected 0 to %d", call, rank, nranks - 1);
    }
    if (result || (result = fg_nccl_new(call, config, NULL, &pending))) {
        return fg_group_error(result);
    }
    memcpy(pending.args.unique_id, id, sizeof pending.args.unique_id);
    return fg_nccl_make(&pending);
}

FG_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId) {
    ncclResult_t result = fg_nccl_check_pointer(uniqueId, "ncclGetUniqueId", "uniqueId");
    if (result) {
        return result;
    }
    void *gil = fg_rt_gil_unlock();
    int status = fg_rt_comm_unique_id((uint8_t *)uniqueId->internal);
    fg_rt_gil_relock(gil);
    return fg_nccl_result(status);
}
FG_NCCL_ALSO(ncclGetUniqueId);

FG_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank) {
    return init_rank("ncclCommInitRank", comm, nranks, &commId, rank, NULL);
}
FG_NCCL_ALSO(ncclCommInitRank);

FG_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                              ncclConfig_t *config) {
    return init_rank("ncclCommInitRankConfig", comm, nranks, &commId, rank, config);
}
FG_NCCL_ALSO(ncclCommInitRankConfig);

FG_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                                ncclUniqueId *commIds, ncclConfig_t *config) {
    const char *call = "ncclCommInitRankScalable";
    ncclResult_t result = fg_nccl_check_pointer(commIds, call, "commIds");
    if (!result && (nId < 1 || nId > nranks)) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: nId %d, expected 1 to nranks %d", call, nId, nranks);
    }
    /* one rendezvous is enough here: all ranks use the first id */
    return result ? fg_group_error(result) : init_rank(call, newcomm, nranks, &commIds[0], myrank, config);
}
FG_NCCL_ALSO(ncclCommInitRankScalable);

/* All of a process's ranks, one per device of devlist, made in one group. */
FG_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist) {
    const char *call = "ncclCommInitAll";
    int devices = fg_rt_device_count(), before = fg_rt_device_get();
    ncclUniqueId id;
    ncclResult_t result = fg_nccl_check_pointer(comm, call, "comm");
    if (!result && (ndev < 1 || (!devlist && ndev > devices))) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: ndev %d, expected 1 to %d", call, ndev, devices);
    }
    for (int i = 0; !result && devlist && i < ndev; i++) {
        if (devlist[i] < 0 || devlist[i] >= devices) {
            result = fg_nccl_error(FG_UNHANDLED_CUDA, "%s: devlist[%d] %d, expected 0 to %d", call, i, devlist[i],
                                   devices - 1);
        }
        for (int j = 0; !result && j < i; j++) {
            if (devlist[j] == devlist[i]) {
                result = fg_nccl_error(FG_INVALID_USAGE, "%s: device %d is twice in devlist", call, devlist[i]);
            }
        }
    }
    if (result || (result = ncclGetUniqueId(&id))) {
        return fg_group_error(result);
    }
    ncclGroupStart();
    for (int i = 0; i < ndev && !result; i++) {
        fg_rt_device_set(devlist ? devlist[i] : i);
        result = init_rank(call, &comm[i], ndev, &id, i, NULL);
    }
    fg_rt_device_set(before);
    ncclResult_t ended = ncclGroupEnd();
    return result ? result : ended;
}
FG_NCCL_ALSO(ncclCommInitAll);
