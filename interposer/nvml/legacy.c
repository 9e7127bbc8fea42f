/* Older names that tools still look up, and settings of a card that are fixed here. Each answers through its newer name
 * or from the GPU profile.
 */
#include "nvml.h"

#include <string.h>

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos);

typedef struct process_v1 { unsigned pid; unsigned long long used; } process_v1_t;

FG_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, process_v1_t *infos) {
    nvmlProcessInfo_t held[MOST_PROCESSES];
    unsigned found = MOST_PROCESSES, room = count ? *count : 0;
    nvmlReturn_t result = nvmlDeviceGetComputeRunningProcesses_v3(device, count ? &found : NULL, held);
    if (result)
        return result;
    *count = found;
    if (found > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found && !infos)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < found; i++)
        infos[i] = (process_v1_t){held[i].pid, held[i].used_gpu_memory};
    return NVML_SUCCESS;
}

static nvmlReturn_t none(nvmlDevice_t device, unsigned *count) {
    FG_DEVICE(device, count);
    (void)profile;
    *count = 0;
    return NVML_SUCCESS;
}

#define NO_PROCESSES(name)                                                           \
    FG_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *infos) { \
        (void)infos;                                                                 \
        return none(device, count);                                                  \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

FG_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, int id, unsigned *mhz) {
    return id >= 0 && id <= 3 ? nvmlDeviceGetClockInfo(device, type, mhz) : NVML_ERROR_INVALID_ARGUMENT;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

/* Calls of the form (device, unsigned *) with a value from the profile. */
#define NUMBER(name, expression)                                      \
    FG_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *out) { \
        FG_DEVICE(device, out);                                       \
        *out = (unsigned)(expression);                                \
        (void)profile;                                                \
        return NVML_SUCCESS;                                          \
    }
NUMBER(nvmlDeviceGetDisplayMode, 0)
NUMBER(nvmlDeviceGetDisplayActive, 0)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceIsMigDeviceHandle, 0)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)
NUMBER(nvmlDeviceGetBoardId, (fg_nvml_index(device) + 1) * 256)
NUMBER(nvmlDeviceGetBrand, strstr(profile->name, "GeForce") ? 5 : strstr(profile->name, "RTX") ? 13 : 14)

FG_EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *value) {
    return counter >= 0 && counter <= 1 ? none(device, value) : NVML_ERROR_INVALID_ARGUMENT;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high) {
    FG_DEVICE(device, low && high);
    *low = *high = (unsigned)profile->power_watts * 1000u;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending) {
    FG_DEVICE(device, current && pending);
    *current = *pending = profile->memory_bus_bits >= 1024; /* on where the memory is HBM */
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    FG_DEVICE(device, memory);
    *memory = (nvmlMemory_t){.total = profile->memory_bytes, .free = profile->memory_bytes, .used = 0};
    return NVML_SUCCESS;
}

static nvmlReturn_t no_reasons(nvmlDevice_t device, unsigned long long *reasons) {
    FG_DEVICE(device, reasons);
    (void)profile;
    *reasons = 0;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return no_reasons(device, reasons);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return no_reasons(device, reasons);
}
