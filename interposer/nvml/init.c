/* NVML's life cycle, system queries and device handles. NVML sees every device of the machine: it ignores
 * CUDA_VISIBLE_DEVICES, needs no CUDA context and works in a forked child.
 */
#include "nvml.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define DRIVER_VERSION "580.95.05"
#define NVML_VERSION "13." DRIVER_VERSION
#define CUDA_VERSION 13000
#define MAX_DEVICES 64

struct nvmlDevice_st {
    int index;
};

static atomic_int users;
static struct nvmlDevice_st handles[MAX_DEVICES];

nvmlReturn_t fg_nvml_ready(void) {
    return atomic_load(&users) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

int fg_nvml_index(nvmlDevice_t device) {
    ptrdiff_t index = device ? device - handles : -1;
    return index >= 0 && index < fg_rt_physical_count() && device == &handles[index] ? (int)index : -1;
}

const fg_profile_t *fg_nvml_profile(nvmlDevice_t device) {
    return fg_rt_physical_profile(fg_nvml_index(device));
}

nvmlReturn_t fg_nvml_text(const char *text, char *out, unsigned length) {
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

static nvmlReturn_t handle_at(int index, nvmlDevice_t *out) {
    handles[index].index = index;
    *out = &handles[index];
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* NVML_INIT_FLAG_NO_GPUS, NO_ATTACH: both hold here anyway */
    atomic_fetch_add(&users, 1);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

FG_EXPORT nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

FG_EXPORT nvmlReturn_t nvmlShutdown(void) {
    int now = atomic_load(&users);
    while (now > 0)
        if (atomic_compare_exchange_weak(&users, &now, now - 1))
            return NVML_SUCCESS;
    return NVML_ERROR_UNINITIALIZED;
}

FG_EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires restart", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "GPU is in use", "Insufficient Memory", "No data",
        "vGPU ECC Not Supported", "Insufficient Resources", "Frequency Not Supported", "Argument Version Mismatch",
        "Deprecated", "System Not Ready", "GPU Not Found", "Invalid State", "Reset Type Not Supported"};
    if (result >= 0 && (size_t)result < sizeof names / sizeof *names)
        return names[result];
    return "Unknown Error";
}

FG_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    nvmlReturn_t ready = fg_nvml_ready();
    return ready ? ready : fg_nvml_text(DRIVER_VERSION, version, length);
}

FG_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    nvmlReturn_t ready = fg_nvml_ready();
    return ready ? ready : fg_nvml_text(NVML_VERSION, version, length);
}

FG_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    nvmlReturn_t ready = fg_nvml_ready();
    if (ready)
        return ready;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned)fg_rt_physical_count();
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) {
    return nvmlDeviceGetCount_v2(count);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    nvmlReturn_t ready = fg_nvml_ready();
    if (ready)
        return ready;
    if (!device || index >= (unsigned)fg_rt_physical_count())
        return NVML_ERROR_INVALID_ARGUMENT;
    return handle_at((int)index, device);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    nvmlReturn_t ready = fg_nvml_ready();
    if (ready)
        return ready;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < fg_rt_physical_count(); i++) {
        char own[48];
        fg_rt_physical_uuid(i, own);
        if (!strcasecmp(uuid, own))
            return handle_at(i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Accepts 4- and 8-digit domains, as NVML does: "0000:01:00.0", "00000000:01:00.0". */
FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    nvmlReturn_t ready = fg_nvml_ready();
    if (ready)
        return ready;
    unsigned domain, bus, slot, function = 0;
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (domain || slot || function || bus < 1 || bus > (unsigned)fg_rt_physical_count())
        return NVML_ERROR_NOT_FOUND;
    return handle_at((int)bus - 1, device);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}
