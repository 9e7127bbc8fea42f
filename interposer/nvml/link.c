/* How devices are connected, as far as the GPU profile tells: NVLink links, peer access, distance. The routes of a
 * cluster are the coordinator's business.
 */
#include "nvml.h"

#include <time.h>

#define FIELD_NVLINK_SPEED_COMMON 90u
#define FIELD_NVLINK_LINK_COUNT 91u
#define TYPE_UNSIGNED_INT 1
#define P2P_OK 0
#define P2P_NOT_SUPPORTED 5
#define TOPOLOGY_NODE 40 /* same host, over the CPU */

static unsigned link_mbps(const fg_profile_t *profile) {
    static const unsigned by_version[] = {0, 20000, 25781, 25781, 26562, 53125}; /* MB/s per link and direction */
    return profile->nvlink_version <= 5 ? by_version[profile->nvlink_version] : by_version[5];
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *active) {
    FG_NVML_DEVICE(device, active);
    if (link >= (unsigned)profile->nvlink_links)
        return profile->nvlink_links ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *active = 1;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version) {
    FG_NVML_DEVICE(device, version);
    if (link >= (unsigned)profile->nvlink_links)
        return profile->nvlink_links ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *version = (unsigned)profile->nvlink_version;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *value) {
    FG_NVML_DEVICE(device, value && capability >= 0 && capability <= 5);
    if (link >= (unsigned)profile->nvlink_links)
        return profile->nvlink_links ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_NOT_SUPPORTED;
    *value = capability == 0 || capability == 2 || capability == 5; /* peer access, peer atomics, valid */
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, int capability, int *status) {
    FG_NVML_DEVICE(device, status && capability >= 0 && capability <= 4);
    const fg_profile_t *other = fg_rt_physical_profile(fg_nvml_index(peer));
    if (!other || device == peer)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool nvlink = profile->nvlink_links && other->nvlink_links;
    *status = capability != 2 || nvlink ? P2P_OK : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t peer, int *level) {
    FG_NVML_DEVICE(device, level && fg_rt_physical_profile(fg_nvml_index(peer)));
    (void)profile;
    *level = device == peer ? 0 : TOPOLOGY_NODE;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t peer, int *same) {
    FG_NVML_DEVICE(device, same && fg_rt_physical_profile(fg_nvml_index(peer)));
    (void)profile;
    *same = device == peer;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    FG_NVML_DEVICE(device, values && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        unsigned field = values[i].fieldId;
        values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = TYPE_UNSIGNED_INT;
        values[i].value.wide = 0;
        values[i].nvmlReturn = NVML_SUCCESS;
        if (field == FIELD_NVLINK_LINK_COUNT)
            values[i].value.number = (unsigned)profile->nvlink_links;
        else if (field == FIELD_NVLINK_SPEED_COMMON && profile->nvlink_links)
            values[i].value.number = link_mbps(profile);
        else
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}
