/* What a communicator tells about itself to the device-side API: teams of ranks and capabilities. Kernels that would use
 * the device API cannot run here, so that part says no.
 */
#include <string.h>
#include "internal.h"

/* Ranks of this rank's node form the team that shares memory; they are neighbours when the launcher numbers them so. */
static ncclTeam_t lsa_team(ncclComm_t comm) {
    ncclTeam_t team = {1, 0, 1};
    fg_comm_info_t info;
    fg_rt_comm_info(comm->rt, &info);
    const fg_member_t *own = &info.members[info.rank];
    int first = info.rank, last = info.rank;
    while (first > 0 && info.members[first - 1].node == own->node) {
        first--;
    }
    while (last + 1 < info.nranks && info.members[last + 1].node == own->node) {
        last++;
    }
    team.nRanks = last - first + 1;
    team.rank = info.rank - first;
    return team;
}

static bool usable(ncclComm_t comm, const char *call) {
    return fg_nccl_check_ready(comm, call) == ncclSuccess;
}

FG_EXPORT ncclTeam_t ncclTeamWorld(ncclComm_t comm) {
    return usable(comm, "ncclTeamWorld") ? (ncclTeam_t){comm->nranks, comm->rank, 1} : (ncclTeam_t){0, 0, 0};
}
FG_NCCL_ALSO(ncclTeamWorld);

FG_EXPORT ncclTeam_t ncclTeamLsa(ncclComm_t comm) {
    return usable(comm, "ncclTeamLsa") ? lsa_team(comm) : (ncclTeam_t){0, 0, 0};
}
FG_NCCL_ALSO(ncclTeamLsa);

/* Ranks with the same place in their node: as many as there are nodes of this size. */
FG_EXPORT ncclTeam_t ncclTeamRail(ncclComm_t comm) {
    if (!usable(comm, "ncclTeamRail")) {
        return (ncclTeam_t){0, 0, 0};
    }
    ncclTeam_t inner = lsa_team(comm);
    return (ncclTeam_t){comm->nranks / inner.nRanks, comm->rank / inner.nRanks, inner.nRanks};
}
FG_NCCL_ALSO(ncclTeamRail);

FG_EXPORT int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
    return usable(comm, "ncclTeamRankToWorld") ? comm->rank + (rank - team.rank) * team.stride : -1;
}
FG_NCCL_ALSO(ncclTeamRankToWorld);

FG_EXPORT int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
    return usable(comm, "ncclTeamRankToLsa") ? lsa_team(comm).rank + (rank - team.rank) * team.stride : -1;
}
FG_NCCL_ALSO(ncclTeamRankToLsa);

FG_EXPORT ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t *props) {
    const char *call = "ncclCommQueryProperties";
    ncclResult_t result = fg_nccl_check_ready(comm, call);
    if (result || (result = fg_nccl_check_pointer(props, call, "props"))) {
        return result;
    }
    if (props->magic != NCCL_API_MAGIC || props->size < offsetof(ncclCommProperties_t, deviceApiSupport)) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: props.magic 0x%x and size %zu; initialise it with "
                             "NCCL_COMM_PROPERTIES_INITIALIZER", call, props->magic, props->size);
    }
    ncclTeam_t team = lsa_team(comm);
    ncclCommProperties_t found = {
        .size = props->size, .magic = props->magic, .version = props->version, .rank = comm->rank,
        .nRanks = comm->nranks, .cudaDev = comm->device, .nvmlDev = fg_rt_device_physical(comm->device),
        .nLsaTeams = comm->nranks / team.nRanks, .hostRmaSupport = true,
    };
    memcpy(props, &found, props->size < sizeof found ? props->size : sizeof found);
    return ncclSuccess;
}
FG_NCCL_ALSO(ncclCommQueryProperties);

/* Answers a number of slots on hardware; there is no valid one here. */
FG_EXPORT int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
    fg_nccl_error(FG_NOT_SUPPORTED, "ncclLLA2ACalcSlots is not supported by fakegpu: the device-side API needs kernels, "
                  "which cannot run on a host (maxElts %d, maxEltSize %d)", maxElts, maxEltSize);
    return -1;
}
FG_NCCL_ALSO(ncclLLA2ACalcSlots);
