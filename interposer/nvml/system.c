/* NVML's life cycle, versions, error texts and the ways to a device handle. NVML sees every device of the host and does
 * not count as using CUDA: a program may ask here and fork afterwards.
 */
#include "nvml.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DRIVER_VERSION "580.65.06"
#define CUDA_VERSION 13000

static int initialised; /* nvmlInit calls minus nvmlShutdown calls */
static char handles[FG_NVML_DEVICES]; /* a handle is the address of its element */

nvmlReturn_t fg_nvml_ready(void) {
    return __atomic_load_n(&initialised, __ATOMIC_ACQUIRE) > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

int fg_nvml_index(nvmlDevice_t device) {
    uintptr_t offset = (uintptr_t)device - (uintptr_t)handles;
    return offset < FG_NVML_DEVICES ? (int)offset : -1;
}

nvmlDevice_t fg_nvml_handle(int index) {
    return &handles[index];
}

unsigned long long fg_nvml_used(int index) {
    uint64_t used = 0, total;
    int device = fg_rt_physical_visible(index);
    if (device >= 0 && !fg_rt_forked())
        fg_rt_memory_usage(device, &used, &total);
    return used;
}

FG_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (fg_rt_config_check())
        return NVML_ERROR_DRIVER_NOT_LOADED;
    __atomic_fetch_add(&initialised, 1, __ATOMIC_ACQ_REL);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

FG_EXPORT nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

FG_EXPORT nvmlReturn_t nvmlShutdown(void) {
    FG_NVML_ENTER(true);
    __atomic_fetch_sub(&initialised, 1, __ATOMIC_ACQ_REL);
    return NVML_SUCCESS;
}

FG_EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires restart", "The operating system has blocked the request.", "RM has detected an NVML/RM version mismatch.",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported", "Insufficient Resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated function", "System is not ready", "No GPUs found",
        "Invalid state", "Reset type not supported",
    };
    if (result >= 0 && (size_t)result < sizeof texts / sizeof *texts)
        return texts[result];
    return "Unknown Error";
}

/* Copies text; insufficient size is NVML's own answer. */
static nvmlReturn_t give_text(char *out, unsigned length, const char *text) {
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    FG_NVML_ENTER(version);
    return give_text(version, length, DRIVER_VERSION);
}

FG_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    FG_NVML_ENTER(version);
    return give_text(version, length, "13." DRIVER_VERSION);
}

FG_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = CUDA_VERSION;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

FG_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    FG_NVML_ENTER(name && length);
    char path[64], target[4096];
    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    ssize_t got = readlink(path, target, sizeof target - 1);
    if (got < 0)
        return NVML_ERROR_NOT_FOUND;
    target[got] = 0;
    return give_text(name, length, target);
}

/* ---- handles ---- */

FG_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    FG_NVML_ENTER(count);
    *count = (unsigned)fg_rt_physical_count();
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) {
    return nvmlDeviceGetCount_v2(count);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    FG_NVML_ENTER(device && index < (unsigned)fg_rt_physical_count());
    *device = fg_nvml_handle((int)index);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    FG_NVML_ENTER(uuid && device);
    for (int i = 0; i < fg_rt_physical_count(); i++) {
        char own[48];
        fg_rt_physical_uuid(i, own);
        if (!strcasecmp(own, uuid)) {
            *device = fg_nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    FG_NVML_ENTER(id && device);
    unsigned domain = 0, bus, slot, function = 0;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4 && sscanf(id, "%x:%x.%x", &bus, &slot, &function) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (domain || slot || function || bus < 1 || bus > (unsigned)fg_rt_physical_count())
        return NVML_ERROR_NOT_FOUND;
    *device = fg_nvml_handle((int)bus - 1);
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out) {
    FG_NVML_DEVICE(device, out);
    *out = (unsigned)index;
    return NVML_SUCCESS;
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out) {
    return nvmlDeviceGetIndex(device, out);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    FG_NVML_DEVICE(device, name);
    return give_text(name, length, profile->name);
}

FG_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    FG_NVML_DEVICE(device, uuid);
    char own[48];
    fg_rt_physical_uuid(index, own);
    return give_text(uuid, length, own);
}
