/* Devices by ordinal: names, sizes, attributes, PCI ids, peers. All numbers come from the GPU profile. */
#include "driver.h"

#include <stdio.h>
#include <string.h>

FG_EXPORT CUresult cuDeviceGetCount(int *count) {
    FG_ENTER();
    FG_REQUIRE(count, "cuDeviceGetCount: count is NULL");
    *count = fg_rt_device_count();
    return 0;
}

FG_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    FG_ENTER();
    FG_REQUIRE(device, "cuDeviceGet: device is NULL");
    int status = fg_rt_device_check(ordinal);
    if (!status)
        *device = ordinal;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(name && length > 0, "cuDeviceGetName: no place for the name");
    int status = fg_rt_device_check(device);
    if (!status)
        snprintf(name, (size_t)length, "%s", fg_rt_device_profile(device)->name);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(uuid, "cuDeviceGetUuid: uuid is NULL");
    int status = fg_rt_device_check(device);
    if (!status)
        fg_rt_device_uuid(device, (uint8_t *)uuid->bytes);
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}

FG_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(bytes, "cuDeviceTotalMem: bytes is NULL");
    int status = fg_rt_device_check(device);
    if (!status)
        *bytes = fg_rt_device_profile(device)->memory_bytes;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(value, "cuDeviceGetAttribute: pi is NULL");
    int status = fg_rt_device_check(device);
    return fg_driver_answer(status ? status : fg_rt_device_attribute(device, attribute, value));
}

int fg_driver_attribute(int number) {
    int value = 0;
    return fg_rt_device_attribute(fg_rt_device_get(), number, &value) ? 0 : value;
}

FG_EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(major && minor, "cuDeviceComputeCapability: a pointer is NULL");
    int status = fg_rt_device_check(device);
    if (status)
        return fg_driver_answer(status);
    *major = fg_rt_device_profile(device)->cc_major;
    *minor = fg_rt_device_profile(device)->cc_minor;
    return 0;
}

FG_EXPORT CUresult cuDeviceGetProperties(CUdevprop *out, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(out, "cuDeviceGetProperties: prop is NULL");
    static const int numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}; /* the fields in their order */
    int values[sizeof numbers / sizeof *numbers], status = fg_rt_device_check(device);
    for (size_t i = 0; !status && i < sizeof numbers / sizeof *numbers; i++)
        status = fg_rt_device_attribute(device, numbers[i], &values[i]);
    if (!status)
        memcpy(out, values, sizeof *out);
    return fg_driver_answer(status);
}

/* ---- PCI ids and peers ---- */

FG_EXPORT CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(id && length > 12, "cuDeviceGetPCIBusId: len %d: expected at least 13", length);
    int status = fg_rt_device_check(device);
    char text[16];
    if (status)
        return fg_driver_answer(status);
    fg_rt_device_pci(device, text);
    snprintf(id, (size_t)length, "%s", text);
    return 0;
}

FG_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    FG_ENTER();
    FG_REQUIRE(device && id, "cuDeviceGetByPCIBusId: a pointer is NULL");
    unsigned domain = 0, bus, slot, function = 0;
    bool full = sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) == 4;
    FG_REQUIRE(full || sscanf(id, "%x:%x.%x", &bus, &slot, &function) == 3,
               "cuDeviceGetByPCIBusId: \"%.32s\": expected domain:bus:device.function", id);
    for (int i = 0; i < fg_rt_device_count(); i++)
        if (!domain && !slot && !function && (unsigned)fg_rt_device_pci_bus(i) == bus) {
            *device = i;
            return 0;
        }
    return fg_driver_answer(fg_rt_set_error(FG_CUDA(101), "cuDeviceGetByPCIBusId: no device at %.32s", id));
}

FG_EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    FG_ENTER();
    FG_REQUIRE(can, "cuDeviceCanAccessPeer: canAccessPeer is NULL");
    int status = fg_rt_device_check(device);
    if (!status && !(status = fg_rt_device_check(peer)))
        *can = device != peer;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice source, CUdevice destination) {
    FG_ENTER();
    FG_REQUIRE(value && attribute >= 1 && attribute <= 5, "cuDeviceGetP2PAttribute: attrib %d: expected 1 to 5", attribute);
    int status = fg_rt_device_check(source);
    if (!status)
        status = fg_rt_device_check(destination);
    FG_REQUIRE(status || source != destination, "cuDeviceGetP2PAttribute: both devices are %d", source);
    if (!status)
        *value = attribute == 2 || attribute == 3; /* access and atomics; rank 0; no arrays */
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice device) {
    FG_ENTER();
    FG_REQUIRE(supported && !type, "cuDeviceGetExecAffinitySupport: type %d: expected 0", type);
    *supported = 0;
    return fg_driver_answer(fg_rt_device_check(device));
}
