/* What NVML tells of one device. Constants come from the GPU profile; a fake GPU computes nothing by itself, so it is
 * idle, cool and draws no more than an idle part: utilisation 0, 30 degrees, a tenth of the board's power.
 */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

#define IDLE_CELSIUS 30u
#define IDLE_POWER_DIVISOR 10u

static void usage(nvmlDevice_t device, unsigned long long *used, unsigned long long *total) {
    *used = fg_rt_physical_usage(fg_nvml_index(device));
    *total = fg_nvml_profile(device)->memory_bytes;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    FG_DEVICE(device, name);
    return fg_nvml_text(profile->name, name, length);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    FG_DEVICE(device, uuid);
    char own[48];
    fg_rt_physical_uuid(fg_nvml_index(device), own);
    return fg_nvml_text(own, uuid, length);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    FG_DEVICE(device, index);
    *index = (unsigned)fg_nvml_index(device);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    FG_DEVICE(device, info);
    memset(info, 0, sizeof *info);
    info->bus = (unsigned)fg_nvml_index(device) + 1;
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", info->bus & 0xffu);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus & 0xffu);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v3(device, info);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *info) {
    return nvmlDeviceGetPciInfo_v3(device, info);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    FG_DEVICE(device, memory);
    usage(device, &memory->used, &memory->total);
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    FG_DEVICE(device, memory);
    if (memory->version != NVML_MEMORY_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    usage(device, &memory->used, &memory->total);
    memory->reserved = 0;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    FG_DEVICE(device, rates);
    *rates = (nvmlUtilization_t){0, 0};
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    FG_DEVICE(device, celsius);
    if (sensor != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = IDLE_CELSIUS;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    FG_DEVICE(device, milliwatts);
    *milliwatts = (unsigned)profile->power_watts * 1000u / IDLE_POWER_DIVISOR;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts) {
    FG_DEVICE(device, milliwatts);
    *milliwatts = (unsigned)profile->power_watts * 1000u;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts) {
    return nvmlDeviceGetPowerManagementLimit(device, milliwatts);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    FG_DEVICE(device, mhz);
    if (type >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = (unsigned)(type == NVML_CLOCK_MEM ? profile->memory_clock_khz : profile->core_clock_khz) / 1000u;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state) {
    FG_DEVICE(device, state);
    *state = NVML_PSTATE_0;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, int *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    FG_DEVICE(device, major && minor);
    *major = profile->cc_major;
    *minor = profile->cc_minor;
    return NVML_SUCCESS;
}

/* NVML_DEVICE_ARCH_*: Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9, Blackwell 10 */
FG_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    FG_DEVICE(device, architecture);
    int capability = profile->cc_major * 10 + profile->cc_minor;
    *architecture = capability >= 100 ? 10 : capability >= 90 ? 9 : capability == 89 ? 8 : capability >= 80 ? 7
                    : capability == 75 ? 6 : 5;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits) {
    FG_DEVICE(device, bits);
    *bits = (unsigned)profile->memory_bus_bits;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
    FG_DEVICE(device, generation);
    *generation = (unsigned)profile->pcie_generation;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation) {
    return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *lanes) {
    FG_DEVICE(device, lanes);
    *lanes = (unsigned)profile->pcie_lanes;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *lanes) {
    return nvmlDeviceGetMaxPcieLinkWidth(device, lanes);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active) {
    FG_DEVICE(device, active);
    if (!profile->nvlink_links)
        return NVML_ERROR_NOT_SUPPORTED;
    if (link >= (unsigned)profile->nvlink_links)
        return NVML_ERROR_INVALID_ARGUMENT;
    *active = 1;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version) {
    nvmlReturn_t state = nvmlDeviceGetNvLinkState(device, link, version);
    if (!state)
        *version = (unsigned)fg_nvml_profile(device)->nvlink_version;
    return state;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned capability, int *status) {
    (void)capability;
    FG_DEVICE(device, status);
    (void)profile;
    if (!fg_nvml_profile(other))
        return NVML_ERROR_INVALID_ARGUMENT;
    *status = NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode) {
    FG_DEVICE(device, mode);
    *mode = 1;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode) {
    FG_DEVICE(device, mode);
    *mode = 0;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    FG_DEVICE(device, current && pending);
    if (profile->cc_major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = 0;
    return NVML_SUCCESS;
}

/* The calling process, once it holds memory of the device; other processes are not known here. */
FG_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    FG_DEVICE(device, count);
    (void)profile;
    fg_process_t held[MOST_PROCESSES];
    int found = fg_rt_memory_processes(fg_nvml_index(device), held, MOST_PROCESSES);
    unsigned room = *count, given = found > MOST_PROCESSES ? MOST_PROCESSES : (unsigned)found;
    *count = given;
    if (given > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (given && !infos)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < given; i++)
        infos[i] = (nvmlProcessInfo_t){held[i].pid, held[i].used, ~0u, ~0u};
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

/* There is no graphics on a fake GPU. */
FG_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    (void)infos;
    FG_DEVICE(device, count);
    *count = 0;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) {
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, infos);
}
