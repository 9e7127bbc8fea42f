/* Memory of one process used by another: a handle names the exporter's segment by process, descriptor and inode; opening
 * it maps the same pages here. The exporter must stay alive until it is opened. Opening twice gives the same address,
 * as CUDA does; an import is device memory to every look-up and is never charged to a device again.
 */
#include "device.h"
#include "fork.h"
#include "memory.h"
#include "segment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4d435046u /* "FPCM" */

typedef struct wire_handle { /* what travels: 64 bytes */
    uint32_t magic, pid;
    int32_t fd, physical;
    uint64_t inode, offset, bytes, reserved[3];
} wire_handle_t;
_Static_assert(sizeof(wire_handle_t) == 64, "size of an IPC handle");

typedef struct import {
    struct import *next;
    wire_handle_t handle;
    void *address;
    int references, fd;
} import_t;

static import_t *imports; /* memory lock */

int fg_rt_ipc_export(const void *pointer, void *out) {
    fg_block_info_t info;
    int status = fg_fork_check();
    if (status || (status = fg_rt_block_info(pointer, &info)))
        return status;
    if (info.memory.kind != FG_MEMORY_DEVICE || info.memory.fd < 0 || info.mapped_handle || info.imported)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC handle: %p: expected memory of cudaMalloc in this process", pointer);
    wire_handle_t handle = {.magic = MAGIC, .pid = (uint32_t)getpid(), .fd = info.memory.fd,
                            .physical = fg_rt_device_physical(info.memory.device), .inode = info.memory.inode,
                            .offset = info.memory.offset, .bytes = info.memory.bytes};
    memcpy(out, &handle, sizeof handle);
    return FG_OK;
}

static int map_import(const wire_handle_t *handle, import_t *made) {
    int status = fg_segment_reopen(handle->pid, handle->fd, handle->inode, &made->fd);
    if (status)
        return status;
    made->address = mmap(NULL, handle->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, made->fd,
                         (off_t)handle->offset);
    if (made->address == MAP_FAILED)
        status = fg_rt_set_error(FG_CUDA(205), "IPC handle: mapping %llu bytes of process %u: %s",
                                 (unsigned long long)handle->bytes, handle->pid, strerror(errno));
    int device = fg_rt_physical_visible(handle->physical);
    fg_block_t block = {.bytes = handle->bytes, .kind = FG_MEMORY_DEVICE, .device = device < 0 ? fg_rt_device_get() : device,
                        .fd = made->fd, .inode = handle->inode, .offset = handle->offset, .owner = made, .imported = true};
    if (!status && (status = fg_block_add(&block, made->address)))
        munmap(made->address, handle->bytes);
    if (status)
        close(made->fd);
    return status;
}

int fg_rt_ipc_open(const void *wire, void **out) {
    wire_handle_t handle;
    memcpy(&handle, wire, sizeof handle);
    int status = fg_fork_check();
    if (status)
        return status;
    if (handle.magic != MAGIC)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC handle: not one of fakegpu's");
    if (handle.pid == (uint32_t)getpid())
        return fg_rt_set_error(FG_CUDA(201), "IPC handle: opened by the process that made it");
    fg_fork_arm();
    fg_memory_lock();
    import_t *found = imports;
    while (found && memcmp(&found->handle, &handle, sizeof handle))
        found = found->next;
    if (!found && (found = calloc(1, sizeof *found))) {
        found->handle = handle;
        status = map_import(&handle, found);
        if (status) {
            free(found);
        } else {
            found->next = imports;
            imports = found;
        }
    }
    if (!status && !found)
        status = fg_rt_set_error(FG_SYSTEM, "out of host memory for an import");
    if (!status) {
        found->references++;
        *out = found->address;
    }
    fg_memory_unlock();
    return status;
}

int fg_rt_ipc_close(void *pointer) {
    int status = fg_fork_check();
    if (status)
        return status;
    fg_memory_lock();
    import_t **slot = &imports;
    while (*slot && (*slot)->address != pointer)
        slot = &(*slot)->next;
    import_t *found = *slot;
    if (!found) {
        status = fg_rt_set_error(FG_INVALID_ARGUMENT, "IPC close: %p was not opened from a handle", pointer);
    } else if (!--found->references) {
        *slot = found->next;
        fg_block_remove(fg_block_find(pointer));
        munmap(pointer, found->handle.bytes);
        close(found->fd);
        free(found);
    }
    fg_memory_unlock();
    return status;
}
