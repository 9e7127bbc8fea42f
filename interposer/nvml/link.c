/* How devices are connected, as far as the GPU profile tells: NVLink links, distance, PCIe. The routes of a cluster are
 * the coordinator's business.
 */
#include "nvml.h"

#include <time.h>

#define FIELD_NVLINK_SPEED_COMMON 90u
#define FIELD_NVLINK_LINK_COUNT 91u
#define TYPE_UNSIGNED_INT 1
#define TOPOLOGY_NODE 40 /* same host, over the CPU */

typedef struct field_value {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type;
    nvmlReturn_t result;
    union { unsigned number; unsigned long long wide; } value;
} field_value_t;

/* MB/s per link and direction, by NVLink generation */
static unsigned link_mbps(const fg_profile_t *profile) {
    static const unsigned by_version[] = {0, 20000, 25781, 25781, 26562, 53125};
    return profile->nvlink_version <= 5 ? by_version[profile->nvlink_version] : by_version[5];
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *value) {
    FG_DEVICE(device, value);
    if (!profile->nvlink_links)
        return NVML_ERROR_NOT_SUPPORTED;
    if (link >= (unsigned)profile->nvlink_links || capability < 0 || capability > 5)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = capability == 0 || capability == 2 || capability == 5; /* peer access, peer atomics, valid */
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer, int *level) {
    FG_DEVICE(device, level);
    (void)profile;
    if (!fg_nvml_profile(peer))
        return NVML_ERROR_INVALID_ARGUMENT;
    *level = device == peer ? 0 : TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t peer, int *same) {
    FG_DEVICE(device, same);
    (void)profile;
    if (!fg_nvml_profile(peer))
        return NVML_ERROR_INVALID_ARGUMENT;
    *same = device == peer;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *megatransfers) {
    static const unsigned by_generation[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    FG_DEVICE(device, megatransfers);
    *megatransfers = by_generation[profile->pcie_generation <= 6 ? profile->pcie_generation : 6];
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
    FG_DEVICE(device, generation);
    *generation = (unsigned)profile->pcie_generation;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_value_t *values) {
    FG_DEVICE(device, values && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
        values[i].latency_us = 0;
        values[i].type = TYPE_UNSIGNED_INT;
        values[i].value.wide = 0;
        values[i].result = NVML_SUCCESS;
        if (values[i].field == FIELD_NVLINK_LINK_COUNT)
            values[i].value.number = (unsigned)profile->nvlink_links;
        else if (values[i].field == FIELD_NVLINK_SPEED_COMMON && profile->nvlink_links)
            values[i].value.number = link_mbps(profile);
        else
            values[i].result = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
