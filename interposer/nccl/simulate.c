/* ncclGroupSimulateEnd: ends the group without running it and tells how long it would take on the described cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "internal.h"

/* The coordinator's model answers {"time_us": x} for a list of operations. */
static ncclResult_t ask_model(const fg_queued_t *queued, size_t count, float *time_us) {
    fg_comm_info_t info;
    char answer[1024];
    size_t room = 256 + count * 160, at = 0;
    char *json = malloc(room);
    if (!json) {
        return fg_nccl_error(FG_OUT_OF_MEMORY, "ncclGroupSimulateEnd: no memory for %zu operations", count);
    }
    at += (size_t)snprintf(json, room, "{\"query\": \"simulate\", \"operations\": [");
    for (size_t i = 0; i < count; i++) {
        const fg_call_t *call = &queued[i].call;
        fg_rt_comm_info(queued[i].comm->rt, &info);
        at += (size_t)snprintf(json + at, room - at,
                               "%s{\"comm\": %llu, \"rank\": %d, \"kind\": %d, \"dtype\": %d, \"redop\": %d, "
                               "\"root\": %d, \"count\": %llu}", i ? ", " : "", (unsigned long long)info.comm,
                               info.rank, call->kind, call->dtype, call->redop, call->root,
                               (unsigned long long)call->count);
    }
    snprintf(json + at, room - at, "]}");
    void *gil = fg_rt_gil_unlock();
    int status = fg_rt_comm_query(json, answer, sizeof answer);
    fg_rt_gil_relock(gil);
    free(json);
    if (status) {
        return fg_nccl_result(status);
    }
    const char *value = strstr(answer, "\"time_us\":");
    if (!value) {
        return fg_nccl_error(FG_NOT_SUPPORTED, "ncclGroupSimulateEnd: the coordinator gave no time: %s", answer);
    }
    *time_us = strtof(value + 10, NULL);
    return ncclSuccess;
}

FG_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo) {
    const char *call = "ncclGroupSimulateEnd";
    fg_queued_t *queued = NULL;
    size_t count = 0;
    float time_us = 0.0f;
    if (simInfo && simInfo->magic != NCCL_SIM_INFO_MAGIC) {
        return fg_nccl_error(FG_INVALID_ARGUMENT, "%s: simInfo.magic 0x%x, expected 0x%x; initialise it with "
                             "NCCL_SIM_INFO_INITIALIZER", call, simInfo->magic, NCCL_SIM_INFO_MAGIC);
    }
    ncclResult_t result = fg_group_take(call, &queued, &count);
    if (!result && count && simInfo) {
        result = ask_model(queued, count, &time_us);
    }
    if (!result && simInfo && simInfo->size >= offsetof(ncclSimInfo_t, estimatedTime) + sizeof time_us) {
        simInfo->estimatedTime = time_us;
    }
    free(queued);
    return result;
}
FG_NCCL_ALSO(ncclGroupSimulateEnd);
