/* Owns memory that is apart from its addresses: a handle is one shared segment, a reservation a range without access,
 * a mapping puts a piece of the one into the other and makes it device memory for every look-up. A handle lives as
 * long as the program or a mapping holds it and is charged to its device once, where it was created. The segment's
 * name carries what an importing process has to know.
 */
#include "device.h"
#include "fork.h"
#include "handles.h"
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAME "fakegpu-vmm:%d:%u" /* physical device, handle types */
#define READ_ONLY 1
#define READ_WRITE 3

struct fg_vmm {
    int fd, device;
    uint64_t bytes, inode;
    uint32_t handle_types;
    int held;   /* by the program: creation, retains and imports not released yet */
    int mapped; /* by mappings */
    bool imported;
};

typedef struct reservation {
    fg_node_t node; /* key: address */
    uint64_t bytes;
} reservation_t;

static fg_node_t *reservations; /* memory lock */

/* memory lock held */
static void drop_if_unused(fg_vmm_t *handle) {
    if (handle->held || handle->mapped)
        return;
    close(handle->fd);
    if (!handle->imported)
        fg_memory_charge(handle->device, -(int64_t)handle->bytes);
    free(handle);
}

static int check(const fg_vmm_t *handle) {
    int status = fg_fork_check();
    if (status || fg_handle_alive(handle, FG_HANDLE_MEMORY))
        return status;
    return fg_rt_set_error(FG_INVALID_ARGUMENT, "memory handle %p: not alive", (const void *)handle);
}

static int check_range(const char *what, const void *address, uint64_t bytes) {
    if (address && bytes && !((uintptr_t)address % FG_VMM_GRANULARITY) && !(bytes % FG_VMM_GRANULARITY) &&
        (uintptr_t)address + bytes > (uintptr_t)address)
        return FG_OK;
    return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: [%p, +%llu): expected multiples of %llu bytes", what, address,
                           (unsigned long long)bytes, FG_VMM_GRANULARITY);
}

/* takes the descriptor */
static int make_handle(fg_vmm_t made, fg_vmm_t **out) {
    struct stat status;
    fg_vmm_t *handle = malloc(sizeof *handle);
    if (!handle || fstat(made.fd, &status)) {
        free(handle);
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a memory handle");
    }
    *handle = made;
    handle->inode = status.st_ino;
    handle->held = 1;
    int failed = fg_handle_add(handle, FG_HANDLE_MEMORY);
    if (failed)
        free(handle);
    else
        *out = handle;
    return failed;
}

int fg_rt_vmm_create(int device, uint64_t bytes, uint32_t handle_types, fg_vmm_t **out) {
    int status = fg_fork_check();
    if (status || (status = fg_rt_device_check(device)))
        return status;
    if (!bytes || bytes % FG_VMM_GRANULARITY)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cuMemCreate: size %llu: expected a multiple of %llu",
                               (unsigned long long)bytes, FG_VMM_GRANULARITY);
    fg_fork_arm();
    fg_rt_device_activate(device);
    fg_memory_lock();
    status = fg_memory_charge(device, (int64_t)bytes);
    if (!status && (status = fg_rt_memory_host_guard(bytes)))
        fg_memory_charge(device, -(int64_t)bytes);
    fg_memory_unlock();
    if (status)
        return status;
    char name[64];
    snprintf(name, sizeof name, NAME, fg_rt_device_physical(device), handle_types);
    fg_vmm_t made = {.fd = memfd_create(name, MFD_CLOEXEC), .device = device, .bytes = bytes, .handle_types = handle_types};
    if (made.fd < 0 || ftruncate(made.fd, (off_t)bytes))
        status = fg_rt_set_error(FG_OUT_OF_MEMORY, "a segment of %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
    else
        status = make_handle(made, out);
    if (status) {
        if (made.fd >= 0)
            close(made.fd);
        fg_rt_memory_account(device, -(int64_t)bytes);
    }
    return status;
}

int fg_rt_vmm_release(fg_vmm_t *handle) {
    int status = check(handle);
    if (status)
        return status;
    fg_memory_lock();
    if (!--handle->held)
        fg_handle_drop(handle, FG_HANDLE_MEMORY);
    drop_if_unused(handle);
    fg_memory_unlock();
    return FG_OK;
}

int fg_rt_vmm_info(const fg_vmm_t *handle, int *device, uint64_t *bytes, uint32_t *handle_types) {
    int status = check(handle);
    if (status)
        return status;
    *device = handle->device;
    *bytes = handle->bytes;
    *handle_types = handle->handle_types;
    return FG_OK;
}

/* ---- addresses ---- */

int fg_rt_vmm_reserve(uint64_t bytes, uint64_t align, void **out) {
    int status = fg_fork_check();
    if (align < FG_VMM_GRANULARITY)
        align = FG_VMM_GRANULARITY;
    if (status || (status = check_range("cuMemAddressReserve", (void *)FG_VMM_GRANULARITY, bytes)))
        return status;
    if (align & (align - 1))
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cuMemAddressReserve: alignment %llu: expected a power of two",
                               (unsigned long long)align);
    reservation_t *made = calloc(1, sizeof *made);
    char *base = made ? mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (base == MAP_FAILED) {
        free(made);
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "cuMemAddressReserve: %llu bytes of addresses: %s",
                               (unsigned long long)bytes, strerror(errno));
    }
    char *start = (char *)(((uintptr_t)base + align - 1) & ~(uintptr_t)(align - 1));
    if (start > base)
        munmap(base, (size_t)(start - base));
    munmap(start + bytes, (size_t)(base + align - start));
    made->node.key = (uintptr_t)start;
    made->bytes = bytes;
    fg_memory_lock();
    fg_tree_insert(&reservations, &made->node);
    fg_memory_unlock();
    *out = start;
    return FG_OK;
}

/* memory lock held; the reservation that holds all of the range */
static reservation_t *reserved(const void *address, uint64_t bytes) {
    fg_node_t *node = fg_tree_floor(reservations, (uintptr_t)address);
    reservation_t *found = node ? FG_ENTRY(node, reservation_t, node) : NULL;
    return found && (uintptr_t)address + bytes <= found->node.key + found->bytes ? found : NULL;
}

/* memory lock held */
static bool holds_mapping(const void *address, uint64_t bytes) {
    const fg_block_t *next = fg_block_above(address);
    return fg_block_find(address) || (next && next->node.key < (uintptr_t)address + bytes);
}

int fg_rt_vmm_unreserve(void *address, uint64_t bytes) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_memory_lock();
    reservation_t *found = reserved(address, bytes);
    if (!found || found->node.key != (uintptr_t)address || found->bytes != bytes || holds_mapping(address, bytes))
        status = fg_rt_set_error(FG_INVALID_ARGUMENT, "cuMemAddressFree: [%p, +%llu): not a reserved range, or memory is "
                                 "mapped there", address, (unsigned long long)bytes);
    else
        fg_tree_remove(&reservations, &found->node);
    fg_memory_unlock();
    if (!status) {
        munmap(address, bytes);
        free(found);
    }
    return status;
}

/* ---- mappings ---- */

/* memory lock held */
static int map_piece(char *address, uint64_t bytes, uint64_t offset, fg_vmm_t *handle) {
    if (!reserved(address, bytes) || holds_mapping(address, bytes))
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cuMemMap: [%p, +%llu): not in a reserved range, or mapped already",
                               (void *)address, (unsigned long long)bytes);
    if (mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, handle->fd, (off_t)offset) == MAP_FAILED)
        return fg_rt_set_error(FG_SYSTEM, "cuMemMap: %s", strerror(errno));
    fg_block_t block = {.bytes = bytes, .kind = FG_MEMORY_DEVICE, .device = handle->device, .fd = handle->fd,
                        .inode = handle->inode, .offset = offset, .owner = handle, .mapped_handle = true,
                        .imported = handle->imported};
    int status = fg_block_add(&block, address);
    handle->mapped += !status;
    return status;
}

int fg_rt_vmm_map(void *address, uint64_t bytes, uint64_t offset, fg_vmm_t *handle) {
    int status = check(handle);
    if (status || (status = check_range("cuMemMap", address, bytes)))
        return status;
    if (offset % FG_VMM_GRANULARITY || offset > handle->bytes || bytes > handle->bytes - offset)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cuMemMap: offset %llu + %llu bytes of a handle of %llu",
                               (unsigned long long)offset, (unsigned long long)bytes, (unsigned long long)handle->bytes);
    fg_memory_lock();
    status = map_piece(address, bytes, offset, handle);
    fg_memory_unlock();
    return status;
}

/* memory lock held; true when mappings cover the range from end to end */
static bool covered(const char *address, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes;) {
        const fg_block_t *block = fg_block_find(address + done);
        if (!block || !block->mapped_handle || block->node.key != (uintptr_t)address + done || block->bytes > bytes - done)
            return false;
        done += block->bytes;
    }
    return bytes > 0;
}

static int not_covered(const char *api, const void *address, uint64_t bytes) {
    return fg_rt_set_error(FG_INVALID_ARGUMENT, "%s: [%p, +%llu): expected whole mapped ranges", api, address,
                           (unsigned long long)bytes);
}

int fg_rt_vmm_unmap(void *address, uint64_t bytes) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_memory_lock();
    if (!covered(address, bytes))
        status = not_covered("cuMemUnmap", address, bytes);
    else if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        status = fg_rt_set_error(FG_SYSTEM, "cuMemUnmap: %s", strerror(errno));
    for (uint64_t done = 0; !status && done < bytes;) {
        fg_block_t *block = fg_block_find((char *)address + done);
        fg_vmm_t *handle = block->owner;
        done += block->bytes;
        fg_block_remove(block);
        handle->mapped--;
        drop_if_unused(handle);
    }
    fg_memory_unlock();
    return status;
}

int fg_rt_vmm_protect(void *address, uint64_t bytes, int flags) {
    int status = fg_fork_check();
    if (status)
        return status;
    int protection = flags == READ_WRITE ? PROT_READ | PROT_WRITE : flags == READ_ONLY ? PROT_READ : PROT_NONE;
    fg_memory_lock();
    if (!covered(address, bytes))
        status = not_covered("cuMemSetAccess", address, bytes);
    else if (mprotect(address, bytes, protection))
        status = fg_rt_set_error(FG_SYSTEM, "cuMemSetAccess: %s", strerror(errno));
    for (uint64_t done = 0; !status && done < bytes;) {
        fg_block_t *block = fg_block_find((char *)address + done);
        block->access = flags;
        done += block->bytes;
    }
    fg_memory_unlock();
    return status;
}

int fg_rt_vmm_protection(const void *address, int *flags) {
    fg_memory_lock();
    const fg_block_t *block = fg_block_find(address);
    bool mapped = block && block->mapped_handle;
    if (mapped)
        *flags = block->access;
    fg_memory_unlock();
    return mapped ? FG_OK : fg_rt_set_error(FG_INVALID_ARGUMENT, "%p: no memory handle is mapped there", address);
}

/* ---- between processes ---- */

int fg_rt_vmm_export(fg_vmm_t *handle, int *fd) {
    int status = check(handle);
    if (status)
        return status;
    *fd = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? FG_OK : fg_rt_set_error(FG_SYSTEM, "exporting a memory handle: %s", strerror(errno));
}

int fg_rt_vmm_import(int fd, fg_vmm_t **out) {
    int status = fg_fork_check(), physical;
    unsigned types;
    char path[64], target[128];
    struct stat segment;
    if (status)
        return status;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    target[length > 0 ? length : 0] = 0;
    if (sscanf(target, "/memfd:" NAME, &physical, &types) != 2 || fstat(fd, &segment))
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "descriptor %d (%s): not an exported memory handle", fd, target);
    fg_vmm_t made = {.device = fg_rt_device_get(), .bytes = (uint64_t)segment.st_size, .handle_types = types, .imported = true};
    for (int i = 0; i < fg_rt_device_count(); i++)
        if (fg_rt_device_physical(i) == physical)
            made.device = i;
    made.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (made.fd < 0)
        return fg_rt_set_error(FG_SYSTEM, "importing a memory handle: %s", strerror(errno));
    fg_fork_arm();
    status = make_handle(made, out);
    if (status)
        close(made.fd);
    return status;
}

int fg_rt_vmm_retain(const void *address, fg_vmm_t **out) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_memory_lock();
    fg_block_t *block = fg_block_find(address);
    fg_vmm_t *handle = block && block->mapped_handle ? block->owner : NULL;
    if (!handle)
        status = fg_rt_set_error(FG_INVALID_ARGUMENT, "%p: no memory handle is mapped there", address);
    else if (!handle->held++ && (status = fg_handle_add(handle, FG_HANDLE_MEMORY)))
        handle->held--;
    fg_memory_unlock();
    if (!status)
        *out = handle;
    return status;
}
