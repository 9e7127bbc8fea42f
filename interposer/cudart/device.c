/* Devices: count, current device, properties, attributes, limits, peers, PCI ids. All numbers come from the GPU profile
 * through fg_rt_device_attribute; settings that only steer hardware caches are kept and have no effect.
 */
#include "cudart.h"

#include <stdio.h>
#include <string.h>

#define LIMITS 7
#define MAX_PEERS 64

static size_t limits[LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};
static bool peer_enabled[MAX_PEERS][MAX_PEERS];
static unsigned device_flags[MAX_PEERS];

FG_EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    if (count)
        *count = 0;
    FG_ENTER();
    FG_REQUIRE(count, "cudaGetDeviceCount: count is NULL");
    *count = fg_rt_device_count();
    return 0;
}

FG_EXPORT cudaError_t cudaGetDevice(int *device) {
    FG_ENTER();
    FG_REQUIRE(device, "cudaGetDevice: device is NULL");
    *device = fg_rt_device_get();
    return 0;
}

FG_EXPORT cudaError_t cudaSetDevice(int device) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_device_set(device));
}

FG_EXPORT cudaError_t cudaInitDevice(int device, unsigned deviceFlags, unsigned flags) {
    (void)flags;
    FG_ENTER();
    int status = fg_rt_device_check(device);
    if (!status)
        device_flags[device] = deviceFlags;
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaSetValidDevices(int *devices, int length) {
    FG_ENTER();
    FG_REQUIRE(length == 0 || devices, "cudaSetValidDevices: devices is NULL");
    for (int i = 0; i < length; i++)
        if (fg_rt_device_check(devices[i]))
            return fg_cudart_answer(FG_CUDA(101));
    return length && !fg_rt_device_current_set() ? fg_cudart_answer(fg_rt_device_set(devices[0])) : 0;
}

FG_EXPORT cudaError_t cudaSetDeviceFlags(unsigned flags) {
    FG_ENTER();
    device_flags[fg_rt_device_get()] = flags;
    return 0;
}

FG_EXPORT cudaError_t cudaGetDeviceFlags(unsigned *flags) {
    FG_ENTER();
    FG_REQUIRE(flags, "cudaGetDeviceFlags: flags is NULL");
    *flags = device_flags[fg_rt_device_get()];
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceSynchronize(void) {
    FG_ENTER();
    return fg_cudart_answer(fg_rt_device_sync(fg_rt_device_get()));
}

FG_EXPORT cudaError_t cudaDeviceReset(void) {
    FG_ENTER();
    int device = fg_rt_device_get(), status = fg_rt_device_sync(device);
    if (!status)
        fg_rt_memory_free_device(device);
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    FG_ENTER();
    FG_REQUIRE(value, "cudaDeviceGetAttribute: value is NULL");
    return fg_cudart_answer(fg_rt_device_attribute(device, attribute, value));
}

/* ---- properties: fields by the number of the attribute that holds the same value ---- */

typedef struct property {
    size_t offset;
    int attribute;
    bool wide; /* size_t */
} property_t;

#define INT(field, attribute) {offsetof(struct cudaDeviceProp, field), attribute, false}
#define SIZE(field, attribute) {offsetof(struct cudaDeviceProp, field), attribute, true}
static const property_t properties[] = {
    SIZE(sharedMemPerBlock, 8), INT(regsPerBlock, 12), INT(warpSize, 10), SIZE(memPitch, 11), INT(maxThreadsPerBlock, 1),
    INT(maxThreadsDim[0], 2), INT(maxThreadsDim[1], 3), INT(maxThreadsDim[2], 4), INT(maxGridSize[0], 5),
    INT(maxGridSize[1], 6), INT(maxGridSize[2], 7), SIZE(totalConstMem, 9), INT(major, 75), INT(minor, 76),
    SIZE(textureAlignment, 14), SIZE(texturePitchAlignment, 51), INT(multiProcessorCount, 16), INT(integrated, 18),
    INT(canMapHostMemory, 19), INT(maxTexture1D, 21), INT(maxTexture1DMipmap, 77), INT(maxTexture2D[0], 22),
    INT(maxTexture2D[1], 23), INT(maxTexture2DMipmap[0], 73), INT(maxTexture2DMipmap[1], 74),
    INT(maxTexture2DLinear[0], 70), INT(maxTexture2DLinear[1], 71), INT(maxTexture2DLinear[2], 72),
    INT(maxTexture2DGather[0], 45), INT(maxTexture2DGather[1], 46), INT(maxTexture3D[0], 24), INT(maxTexture3D[1], 25),
    INT(maxTexture3D[2], 26), INT(maxTexture3DAlt[0], 47), INT(maxTexture3DAlt[1], 48), INT(maxTexture3DAlt[2], 49),
    INT(maxTextureCubemap, 52), INT(maxTexture1DLayered[0], 42), INT(maxTexture1DLayered[1], 43),
    INT(maxTexture2DLayered[0], 27), INT(maxTexture2DLayered[1], 28), INT(maxTexture2DLayered[2], 29),
    INT(maxTextureCubemapLayered[0], 53), INT(maxTextureCubemapLayered[1], 54), INT(maxSurface1D, 55),
    INT(maxSurface2D[0], 56), INT(maxSurface2D[1], 57), INT(maxSurface3D[0], 58), INT(maxSurface3D[1], 59),
    INT(maxSurface3D[2], 60), INT(maxSurface1DLayered[0], 61), INT(maxSurface1DLayered[1], 62),
    INT(maxSurface2DLayered[0], 63), INT(maxSurface2DLayered[1], 64), INT(maxSurface2DLayered[2], 65),
    INT(maxSurfaceCubemap, 66), INT(maxSurfaceCubemapLayered[0], 67), INT(maxSurfaceCubemapLayered[1], 68),
    SIZE(surfaceAlignment, 30), INT(concurrentKernels, 31), INT(ECCEnabled, 32), INT(pciBusID, 33), INT(pciDeviceID, 34),
    INT(pciDomainID, 50), INT(tccDriver, 35), INT(asyncEngineCount, 40), INT(unifiedAddressing, 41),
    INT(memoryBusWidth, 37), INT(l2CacheSize, 38), INT(persistingL2CacheMaxSize, 108),
    INT(maxThreadsPerMultiProcessor, 39), INT(streamPrioritiesSupported, 78), INT(globalL1CacheSupported, 79),
    INT(localL1CacheSupported, 80), SIZE(sharedMemPerMultiprocessor, 81), INT(regsPerMultiprocessor, 82),
    INT(managedMemory, 83), INT(isMultiGpuBoard, 84), INT(multiGpuBoardGroupID, 85), INT(hostNativeAtomicSupported, 86),
    INT(pageableMemoryAccess, 88), INT(concurrentManagedAccess, 89), INT(computePreemptionSupported, 90),
    INT(canUseHostPointerForRegisteredMem, 91), INT(cooperativeLaunch, 95), SIZE(sharedMemPerBlockOptin, 97),
    INT(pageableMemoryAccessUsesHostPageTables, 100), INT(directManagedMemAccessFromHost, 101),
    INT(maxBlocksPerMultiProcessor, 106), INT(accessPolicyMaxWindowSize, 109), SIZE(reservedSharedMemPerBlock, 111),
    INT(hostRegisterSupported, 99), INT(sparseCudaArraySupported, 112), INT(hostRegisterReadOnlySupported, 113),
    INT(timelineSemaphoreInteropSupported, 114), INT(memoryPoolsSupported, 115), INT(gpuDirectRDMASupported, 116),
    INT(gpuDirectRDMAFlushWritesOptions, 117), INT(gpuDirectRDMAWritesOrdering, 118),
    INT(memoryPoolSupportedHandleTypes, 119), INT(deferredMappingCudaArraySupported, 121), INT(ipcEventSupported, 125),
    INT(clusterLaunch, 120), INT(unifiedFunctionPointers, 129), INT(deviceNumaConfig, 130), INT(deviceNumaId, 131),
    INT(mpsEnabled, 133), INT(hostNumaId, 134), INT(gpuPciDeviceID, 139), INT(gpuPciSubsystemID, 140),
    INT(hostNumaMultinodeIpcSupported, 143),
};
#undef INT
#undef SIZE

FG_EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties_out, int device) {
    FG_ENTER();
    FG_REQUIRE(properties_out, "cudaGetDeviceProperties: prop is NULL");
    const fg_profile_t *profile = fg_rt_device_profile(device);
    if (!profile)
        return fg_cudart_answer(FG_CUDA(101));
    memset(properties_out, 0, sizeof *properties_out);
    snprintf(properties_out->name, sizeof properties_out->name, "%s", profile->name);
    fg_rt_device_uuid(device, (uint8_t *)properties_out->uuid.bytes);
    properties_out->totalGlobalMem = profile->memory_bytes;
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++) {
        int value = 0;
        int status = fg_rt_device_attribute(device, properties[i].attribute, &value);
        if (status)
            return fg_cudart_answer(status);
        size_t wide = (size_t)value;
        memcpy((char *)properties_out + properties[i].offset, properties[i].wide ? (void *)&wide : (void *)&value,
               properties[i].wide ? sizeof wide : sizeof value);
    }
    return 0;
}

FG_EXPORT cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) {
    FG_ENTER();
    FG_REQUIRE(device && wanted, "cudaChooseDevice: a pointer is NULL");
    *device = 0;
    for (int i = 0; i < fg_rt_device_count(); i++) {
        const fg_profile_t *p = fg_rt_device_profile(i);
        if (p->cc_major >= wanted->major && p->memory_bytes >= wanted->totalGlobalMem) {
            *device = i;
            break;
        }
    }
    return 0;
}

/* ---- limits and cache settings ---- */

FG_EXPORT cudaError_t cudaDeviceSetLimit(int limit, size_t value) {
    FG_ENTER();
    if (limit < 0 || limit >= LIMITS)
        return fg_cudart_answer(FG_CUDA(215));
    limits[limit] = value;
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetLimit(size_t *value, int limit) {
    FG_ENTER();
    FG_REQUIRE(value, "cudaDeviceGetLimit: value is NULL");
    if (limit < 0 || limit >= LIMITS)
        return fg_cudart_answer(FG_CUDA(215));
    *value = limits[limit];
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetCacheConfig(int *config) {
    FG_ENTER();
    FG_REQUIRE(config, "cudaDeviceGetCacheConfig: config is NULL");
    *config = 0;
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceSetCacheConfig(int config) {
    (void)config; /* a hint to hardware */
    FG_ENTER();
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetSharedMemConfig(int *config) {
    FG_ENTER();
    FG_REQUIRE(config, "cudaDeviceGetSharedMemConfig: config is NULL");
    *config = 1;
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceSetSharedMemConfig(int config) {
    (void)config; /* a hint to hardware */
    FG_ENTER();
    return 0;
}

FG_EXPORT cudaError_t cudaCtxResetPersistingL2Cache(void) {
    FG_ENTER();
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    FG_ENTER();
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

/* ---- PCI ids and peers ---- */

FG_EXPORT cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    FG_ENTER();
    FG_REQUIRE(id && length > 12, "cudaDeviceGetPCIBusId: len %d: expected at least 13", length);
    int status = fg_rt_device_check(device);
    char text[16];
    if (status)
        return fg_cudart_answer(status);
    fg_rt_device_pci(device, text);
    snprintf(id, (size_t)length, "%s", text);
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id) {
    FG_ENTER();
    FG_REQUIRE(device && id, "cudaDeviceGetByPCIBusId: a pointer is NULL");
    unsigned domain = 0, bus, slot, function = 0;
    bool full = sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4;
    FG_REQUIRE(full || sscanf(id, "%x:%x.%x", &bus, &slot, &function) == 3,
               "cudaDeviceGetByPCIBusId: \"%.32s\": expected domain:bus:device.function", id);
    for (int i = 0; i < fg_rt_device_count(); i++)
        if (!domain && !slot && !function && (unsigned)fg_rt_device_pci_bus(i) == bus) {
            *device = i;
            return 0;
        }
    return fg_cudart_answer(fg_rt_set_error(FG_CUDA(101), "cudaDeviceGetByPCIBusId: no device at %.32s", id));
}

static int check_pair(int a, int b) {
    int status = fg_rt_device_check(a);
    return status ? status : fg_rt_device_check(b);
}

FG_EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    FG_ENTER();
    FG_REQUIRE(can, "cudaDeviceCanAccessPeer: canAccessPeer is NULL");
    int status = check_pair(device, peer);
    if (!status)
        *can = device != peer;
    return fg_cudart_answer(status);
}

FG_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    FG_ENTER();
    int device = fg_rt_device_get(), status = check_pair(device, peer);
    if (status || device == peer)
        return fg_cudart_answer(FG_CUDA(101));
    FG_REQUIRE(!flags, "cudaDeviceEnablePeerAccess: flags %u: expected 0", flags);
    if (peer_enabled[device][peer])
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(704), "peer access %d -> %d is enabled already", device, peer));
    peer_enabled[device][peer] = true;
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    FG_ENTER();
    int device = fg_rt_device_get(), status = check_pair(device, peer);
    if (status)
        return fg_cudart_answer(status);
    if (!peer_enabled[device][peer])
        return fg_cudart_answer(fg_rt_set_error(FG_CUDA(705), "peer access %d -> %d is not enabled", device, peer));
    peer_enabled[device][peer] = false;
    return 0;
}

FG_EXPORT cudaError_t cudaDeviceGetP2PAttribute(int *value, int attribute, int source, int destination) {
    FG_ENTER();
    FG_REQUIRE(value && attribute >= 1 && attribute <= 5, "cudaDeviceGetP2PAttribute: attr %d: expected 1 to 5", attribute);
    int status = check_pair(source, destination);
    FG_REQUIRE(status || source != destination, "cudaDeviceGetP2PAttribute: both devices are %d", source);
    if (!status)
        *value = attribute == 2 || attribute == 3; /* access and atomics; rank 0; no arrays */
    return fg_cudart_answer(status);
}
