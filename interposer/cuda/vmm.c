/* Virtual memory management: handles, reserved addresses, mappings and access. Thin over libfakegpu_rt's vmm.c; only
 * memory of devices, shared by POSIX descriptors. Access is the same for every device: they share one address space.
 */
#include "driver.h"

#include <string.h>

#define PINNED 1

static void *address(CUdeviceptr pointer) {
    return (void *)(uintptr_t)pointer;
}

static fg_vmm_t *handle_of(CUmemGenericAllocationHandle handle) {
    return (fg_vmm_t *)(uintptr_t)handle;
}

static int check_properties(const char *api, const CUmemAllocationProp *p) {
    if (!p || p->type != PINNED)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: type %d: expected 1 (pinned)", api, p ? p->type : 0);
    if (p->location.type != CU_LOCATION_DEVICE)
        return fg_rt_unsupported(api, "only memory of a device, not of the host");
    if (p->requestedHandleTypes & ~CU_HANDLE_POSIX_FD)
        return fg_rt_unsupported(api, "only POSIX descriptors as shareable handles");
    return fg_rt_device_check(p->location.id);
}

FG_EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option) {
    FG_ENTER();
    FG_REQUIRE(granularity && (option == 0 || option == 1), "cuMemGetAllocationGranularity: option %d: expected 0 or 1",
               option);
    int status = check_properties("cuMemGetAllocationGranularity", properties);
    if (!status)
        *granularity = FG_VMM_GRANULARITY;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties,
                               unsigned long long flags) {
    FG_ENTER();
    FG_REQUIRE(handle && !flags, "cuMemCreate: no place for the handle, or flags %llu: expected 0", flags);
    fg_vmm_t *made = NULL;
    int status = check_properties("cuMemCreate", properties);
    if (!status)
        status = fg_rt_vmm_create(properties->location.id, bytes, (uint32_t)properties->requestedHandleTypes, &made);
    if (!status)
        *handle = (uintptr_t)made;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_vmm_release(handle_of(handle)));
}

/* A wish for an address (`wanted`) is one that CUDA may ignore, and so do we. */
FG_EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                       unsigned long long flags) {
    (void)wanted;
    FG_ENTER();
    FG_REQUIRE(pointer && !flags, "cuMemAddressReserve: no place for the address, or flags %llu: expected 0", flags);
    void *made = NULL;
    int status = fg_rt_vmm_reserve(bytes, alignment, &made);
    if (!status)
        *pointer = (uintptr_t)made;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_vmm_unreserve(address(pointer), bytes));
}

FG_EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                            unsigned long long flags) {
    FG_ENTER();
    FG_REQUIRE(!flags, "cuMemMap: flags %llu: expected 0", flags);
    return fg_driver_answer(fg_rt_vmm_map(address(pointer), bytes, offset, handle_of(handle)));
}

FG_EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
    FG_ENTER();
    return fg_driver_answer(fg_rt_vmm_unmap(address(pointer), bytes));
}

FG_EXPORT CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *descriptions, size_t count) {
    FG_ENTER();
    FG_REQUIRE(descriptions && count, "cuMemSetAccess: no description of the access");
    int most = 0;
    for (size_t i = 0; i < count; i++) {
        const CUmemAccessDesc *d = &descriptions[i];
        FG_REQUIRE(d->flags == 0 || d->flags == 1 || d->flags == 3, "cuMemSetAccess: flags %d: expected 0, 1 or 3", d->flags);
        int status = d->location.type == CU_LOCATION_DEVICE ? fg_rt_device_check(d->location.id) : FG_OK;
        if (status)
            return fg_driver_answer(status);
        most = d->flags > most ? d->flags : most;
    }
    return fg_driver_answer(fg_rt_vmm_protect(address(pointer), bytes, most));
}

FG_EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    FG_ENTER();
    FG_REQUIRE(flags && location, "cuMemGetAccess: a pointer is NULL");
    int found = 0, status = fg_rt_vmm_protection(address(pointer), &found);
    if (!status)
        *flags = (unsigned long long)found;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                                unsigned long long flags) {
    FG_ENTER();
    FG_REQUIRE(out && !flags, "cuMemExportToShareableHandle: no place for the handle, or flags %llu: expected 0", flags);
    if (type != CU_HANDLE_POSIX_FD)
        return fg_driver_answer(fg_rt_unsupported("cuMemExportToShareableHandle", "only POSIX descriptors"));
    int device;
    uint64_t bytes;
    uint32_t types;
    int status = fg_rt_vmm_info(handle_of(handle), &device, &bytes, &types);
    FG_REQUIRE(status || (types & CU_HANDLE_POSIX_FD), "cuMemExportToShareableHandle: the memory was created without "
               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    return fg_driver_answer(status ? status : fg_rt_vmm_export(handle_of(handle), out));
}

FG_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    FG_ENTER();
    FG_REQUIRE(handle, "cuMemImportFromShareableHandle: no place for the handle");
    if (type != CU_HANDLE_POSIX_FD)
        return fg_driver_answer(fg_rt_unsupported("cuMemImportFromShareableHandle", "only POSIX descriptors"));
    fg_vmm_t *made = NULL;
    int status = fg_rt_vmm_import((int)(intptr_t)shareable, &made);
    if (!status)
        *handle = (uintptr_t)made;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *pointer) {
    FG_ENTER();
    FG_REQUIRE(handle, "cuMemRetainAllocationHandle: no place for the handle");
    fg_vmm_t *found = NULL;
    int status = fg_rt_vmm_retain(pointer, &found);
    if (!status)
        *handle = (uintptr_t)found;
    return fg_driver_answer(status);
}

FG_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, CUmemGenericAllocationHandle handle) {
    FG_ENTER();
    FG_REQUIRE(out, "cuMemGetAllocationPropertiesFromHandle: no place for the answer");
    int device;
    uint64_t bytes;
    uint32_t types;
    int status = fg_rt_vmm_info(handle_of(handle), &device, &bytes, &types);
    if (status)
        return fg_driver_answer(status);
    memset(out, 0, sizeof *out);
    out->type = PINNED;
    out->requestedHandleTypes = (int)types;
    out->location = (CUmemLocation){CU_LOCATION_DEVICE, device};
    return 0;
}
