/* Communicators made from others: split, shrink and grow. */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

static ncclResult_t begin_split(fg_pending_t *p) {
    fg_comm_t *made = NULL;
    int status = fg_rt_comm_split(p->parent->rt, p->color, p->key, p->args.nonblocking, p->name, &made);
    p->comm->rt = made;
    return fg_nccl_result(status);
}

static ncclResult_t begin_shrink(fg_pending_t *p) {
    fg_comm_t *made = NULL;
    uint32_t flags = p->flags & NCCL_SHRINK_ABORT ? FG_COMM_SHRINK_ABORT : 0;
    if (flags) {
        fg_rt_comm_stop(p->parent->rt, "shrink without some of its ranks");
    }
    int status = fg_rt_comm_shrink(p->parent->rt, p->exclude, p->nexclude, flags, p->name, &made);
    p->comm->rt = made;
    free(p->exclude);
    p->exclude = NULL;
    return fg_nccl_result(status);
}

static ncclResult_t begin_grow(fg_pending_t *p) {
    fg_comm_t *made = NULL;
    p->args.name = p->name;
    int status = fg_rt_comm_grow(p->parent ? p->parent->rt : NULL, &p->args, p->with_id, &made);
    p->comm->rt = made;
    if (p->parent && p->with_id && !status) {
        p->parent->grow_id_open = false;
    }
    return fg_nccl_result(status);
}

FG_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config) {
    const char *call = "ncclCommSplit";
    fg_pending_t pending = {.out = newcomm, .begin = begin_split, .color = color, .key = key};
    ncclResult_t result = fg_nccl_check_parent(comm, call);
    if (result || (result = fg_nccl_check_pointer(newcomm, call, "newcomm"))) {
        return fg_group_error(result);
    }
    *newcomm = NULL;
    if (color < NCCL_SPLIT_NOCOLOR) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: color %d, expected NCCL_SPLIT_NOCOLOR (-1) or 0 and more", call,
                               color);
    }
    if (result || (result = fg_nccl_new(call, config, comm, &pending))) {
        return fg_group_error(result);
    }
    return fg_nccl_make(&pending);
}
FG_NCCL_ALSO(ncclCommSplit);

FG_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                                      ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags) {
    const char *call = "ncclCommShrink";
    fg_pending_t pending = {.out = newcomm, .begin = begin_shrink, .nexclude = excludeRanksCount, .flags = shrinkFlags};
    ncclResult_t result = shrinkFlags & NCCL_SHRINK_ABORT ? fg_nccl_check_comm(comm, call)
                                                          : fg_nccl_check_parent(comm, call);
    if (result || (result = fg_nccl_check_pointer(newcomm, call, "newcomm")) ||
        (result = fg_nccl_check_pointer(excludeRanksList, call, "excludeRanksList"))) {
        return fg_group_error(result);
    }
    *newcomm = NULL;
    if (shrinkFlags & ~NCCL_SHRINK_ABORT) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: shrinkFlags 0x%x, expected 0 or 1", call, shrinkFlags);
    } else if (excludeRanksCount < 1 || excludeRanksCount >= comm->nranks) {
        result = fg_nccl_error(FG_INVALID_ARGUMENT, "%s: excludeRanksCount %d, expected 1 to %d", call,
                               excludeRanksCount, comm->nranks - 1);
    }
    if (result || (result = fg_nccl_new(call, config, comm, &pending))) {
        return fg_group_error(result);
    }
    size_t bytes = (size_t)excludeRanksCount * sizeof *excludeRanksList;
    if (!(pending.exclude = malloc(bytes))) {
        *newcomm = NULL;
        fg_nccl_free(pending.comm);
        return fg_group_error(fg_nccl_error(FG_OUT_OF_MEMORY, "%s: no memory for the excluded ranks", call));
    }
    memcpy(pending.exclude, excludeRanksList, bytes);
    return fg_nccl_make(&pending);
}
FG_NCCL_ALSO(ncclCommShrink);

FG_EXPORT ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                                    ncclComm_t *newcomm, ncclConfig_t *config) {
    const char *call = "ncclCommGrow";
    fg_pending_t pending = {.out = newcomm, .begin = begin_grow, .with_id = uniqueId != NULL,
                            .args = {.nranks = nRanks, .rank = rank}};
    ncclResult_t result = fg_nccl_check_pointer(newcomm, call, "newcomm");
    if (!result && comm) {
        result = fg_nccl_check_parent(comm, call);
    }
    if (result) {
        return fg_group_error(result);
    }
    *newcomm = NULL;
    if (comm ? rank != -1 || nRanks <= comm->nranks : !uniqueId || rank < 0 || rank >= nRanks) {
        result = comm ? fg_nccl_error(FG_INVALID_ARGUMENT, "%s: rank %d and nRanks %d of a member, expected rank -1 and "
                                      "more than %d ranks", call, rank, nRanks, comm->nranks)
                      : fg_nccl_error(FG_INVALID_ARGUMENT, "%s: a new rank needs uniqueId and rank 0 to %d, found %p "
                                      "and %d", call, nRanks - 1, (const void *)uniqueId, rank);
    }
    if (result || (result = fg_nccl_new(call, config, comm, &pending))) {
        return fg_group_error(result);
    }
    if (uniqueId) {
        memcpy(pending.args.unique_id, uniqueId, sizeof pending.args.unique_id);
    }
    return fg_nccl_make(&pending);
}
FG_NCCL_ALSO(ncclCommGrow);
