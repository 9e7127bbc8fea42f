/* Minimal declarations of NVML (driver 580 series): what libnvidia-ml.so.1 of fakegpu needs of its foreign API. */
#ifndef FG_NVML_ABI_H
#define FG_NVML_ABI_H
#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6, NVML_ERROR_INSUFFICIENT_SIZE = 7, NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
};
typedef struct nvmlDevice_st *nvmlDevice_t;

typedef struct nvmlMemory_st { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct nvmlMemory_v2_st { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
#define NVML_MEMORY_V2 0x02000028u
typedef struct nvmlUtilization_st { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct nvmlPciInfo_st {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} nvmlPciInfo_t;
typedef struct nvmlProcessInfo_st {
    unsigned pid;
    unsigned long long used_gpu_memory;
    unsigned gpu_instance_id, compute_instance_id;
} nvmlProcessInfo_t;

#define NVML_TEMPERATURE_GPU 0u
#define NVML_CLOCK_MEM 2u
#define NVML_CLOCK_COUNT 4u
#define NVML_PSTATE_0 0
#define NVML_P2P_STATUS_OK 0
#endif
