/* Owns every allocation of the process: device blocks in one arena per device, pinned and managed blocks in two more,
 * registered host ranges, and the accounting against the device's limit. A pointer is found in O(log n). Memory of a
 * device is ordinary memory of this process, so kernels on host read it directly and a peer process can map it.
 */
#include "fault.h"
#include "memory.h"
#include "config.h"
#include "device.h"
#include "fork.h"
#include "ledger.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fg_node_t *blocks;
static fg_arena_t device_arenas[FG_MAX_DEVICES], host_arena, managed_arena;
static uint64_t used[FG_MAX_DEVICES];
static uint64_t next_id = 1;

void fg_memory_lock(void) {
    pthread_mutex_lock(&lock);
}

void fg_memory_unlock(void) {
    pthread_mutex_unlock(&lock);
}

fg_block_t *fg_block_find(const void *pointer) {
    fg_node_t *node = fg_tree_floor(blocks, (uintptr_t)pointer);
    fg_block_t *block = node ? FG_ENTRY(node, fg_block_t, node) : NULL;
    return block && (uintptr_t)pointer - block->node.key < block->bytes ? block : NULL;
}

fg_block_t *fg_block_above(const void *pointer) {
    fg_node_t *node = fg_tree_above(blocks, (uintptr_t)pointer, 0);
    return node ? FG_ENTRY(node, fg_block_t, node) : NULL;
}

int fg_block_add(const fg_block_t *block, void *address) {
    fg_block_t *made = malloc(sizeof *made);
    if (!made)
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "out of host memory for an allocation record");
    *made = *block;
    made->node.key = (uintptr_t)address;
    made->node.tie = 0;
    made->id = next_id++;
    fg_tree_insert(&blocks, &made->node);
    return FG_OK;
}

void fg_block_remove(fg_block_t *block) {
    fg_tree_remove(&blocks, &block->node);
    free(block);
}

/* Address space is free of charge: room for twice the device's memory keeps fragmentation from eating the limit. */
fg_arena_t *fg_device_arena(int device) {
    fg_arena_t *arena = &device_arenas[device];
    if (!arena->base && fg_arena_create(arena, "fakegpu-device", 2 * fg_rt_device_profile(device)->memory_bytes))
        return NULL;
    return arena;
}

static fg_arena_t *host_arena_of(fg_arena_t *arena, const char *name) {
    uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (!arena->base && fg_arena_create(arena, name, (ram + FG_LARGE_PAGE) & ~(FG_LARGE_PAGE - 1)))
        return NULL;
    return arena;
}

int fg_memory_charge(int device, int64_t bytes) {
    uint64_t limit = fg_rt_device_profile(device)->memory_bytes;
    if (bytes > 0 && fg_fault_allocation(device, (uint64_t)bytes))
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "device %d: %lld bytes wanted: injected fault", device, (long long)bytes);
    int status = fg_ledger_charge(fg_rt_device_physical(device), bytes, used[device], limit);
    if (!status)
        used[device] += (uint64_t)bytes;
    return status;
}

int fg_rt_memory_account(int device, int64_t bytes) {
    int status = fg_rt_device_check(device);
    if (status)
        return status;
    fg_memory_lock();
    status = fg_memory_charge(device, bytes);
    fg_memory_unlock();
    return status;
}

/* lock held */
static int take_block(fg_arena_t *arena, fg_block_t block, uint64_t bytes, void **out) {
    uint64_t offset;
    int status = fg_arena_take(arena, bytes, bytes >= FG_LARGE_PAGE ? FG_LARGE_PAGE : FG_PAGE, &offset);
    if (status)
        return status;
    block.arena = arena;
    block.bytes = bytes;
    block.fd = arena->fd;
    block.inode = arena->inode;
    block.offset = offset;
    status = fg_block_add(&block, arena->base + offset);
    if (status)
        fg_arena_give(arena, offset, bytes);
    else
        *out = arena->base + offset;
    return status;
}

static int page_round(uint64_t bytes, uint64_t *rounded) {
    if (bytes > UINT64_MAX - FG_PAGE)
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "%llu bytes wanted", (unsigned long long)bytes);
    *rounded = (bytes + FG_PAGE - 1) & ~(FG_PAGE - 1);
    return FG_OK;
}

int fg_rt_memory_alloc(int device, uint64_t bytes, void **out) {
    *out = NULL;
    int status = fg_fork_check();
    if (status || (status = fg_rt_device_check(device)) || !bytes || (status = page_round(bytes, &bytes)))
        return status;
    fg_fork_arm();
    fg_rt_device_activate(device);
    fg_memory_lock();
    fg_arena_t *arena = fg_device_arena(device);
    status = arena ? fg_memory_charge(device, (int64_t)bytes) : FG_SYSTEM;
    if (!status) {
        status = fg_rt_memory_host_guard(bytes);
        if (!status)
            status = take_block(arena, (fg_block_t){.kind = FG_MEMORY_DEVICE, .device = device}, bytes, out);
        if (status)
            fg_memory_charge(device, -(int64_t)bytes);
    }
    fg_memory_unlock();
    return status;
}

static int alloc_hosted(fg_arena_t *arena, const char *name, fg_block_t block, uint64_t bytes, void **out) {
    *out = NULL;
    int status = fg_fork_check();
    if (status || (status = page_round(bytes ? bytes : 1, &bytes)))
        return status;
    fg_fork_arm();
    fg_memory_lock();
    status = fg_rt_memory_host_guard(bytes);
    if (!status)
        status = host_arena_of(arena, name) ? take_block(arena, block, bytes, out) : FG_OUT_OF_MEMORY;
    fg_memory_unlock();
    return status;
}

int fg_rt_host_alloc(uint64_t bytes, uint32_t flags, void **out) {
    fg_block_t block = {.kind = FG_MEMORY_HOST, .device = fg_rt_device_get(), .flags = flags};
    return alloc_hosted(&host_arena, "fakegpu-host", block, bytes, out);
}

int fg_rt_managed_alloc(int device, uint64_t bytes, uint32_t flags, void **out) {
    fg_block_t block = {.kind = FG_MEMORY_MANAGED, .device = device, .flags = flags};
    return alloc_hosted(&managed_arena, "fakegpu-managed", block, bytes, out);
}

int fg_rt_host_register(void *pointer, uint64_t bytes, uint32_t flags) {
    int status = fg_fork_check();
    if (status)
        return status;
    if (!pointer || !bytes || (uintptr_t)pointer + bytes < (uintptr_t)pointer)
        return fg_rt_set_error(FG_INVALID_ARGUMENT, "cudaHostRegister: pointer %p, size %llu: expected a range", pointer,
                               (unsigned long long)bytes);
    fg_memory_lock();
    fg_node_t *next = fg_tree_above(blocks, (uintptr_t)pointer, 0);
    if (fg_block_find(pointer) || (next && next->key < (uintptr_t)pointer + bytes))
        status = fg_rt_set_error(FG_CUDA(712), "cudaHostRegister: part of [%p, +%llu) is registered or allocated already",
                                 pointer, (unsigned long long)bytes);
    else
        status = fg_block_add(&(fg_block_t){.kind = FG_MEMORY_REGISTERED, .device = fg_rt_device_get(), .bytes = bytes,
                                            .flags = flags, .fd = -1}, pointer);
    fg_memory_unlock();
    return status;
}

/* lock held */
static void release(fg_block_t *block) {
    if (block->arena)
        fg_arena_give(block->arena, block->offset, block->bytes);
    if (block->kind == FG_MEMORY_DEVICE)
        fg_memory_charge(block->device, -(int64_t)block->bytes);
    fg_block_remove(block);
}

int fg_rt_memory_release(void *pointer, fg_memory_kind_t kind) {
    int status = fg_fork_check();
    if (status || !pointer)
        return status;
    fg_memory_lock();
    fg_block_t *block = fg_block_find(pointer);
    if (!block || block->node.key != (uintptr_t)pointer || block->mapped_handle || block->imported ||
        (kind != FG_MEMORY_UNKNOWN && block->kind != kind))
        status = fg_rt_set_error(FG_INVALID_ARGUMENT, "free: %p is not the start of an allocation of that kind", pointer);
    else
        release(block);
    fg_memory_unlock();
    return status;
}

int fg_rt_memory_free(void *pointer) {
    return fg_rt_memory_release(pointer, FG_MEMORY_DEVICE);
}

void fg_rt_memory_free_device(int device) {
    fg_memory_lock();
    for (fg_node_t *node = fg_tree_above(blocks, 0, 0); node;) {
        fg_block_t *block = FG_ENTRY(node, fg_block_t, node);
        uint64_t next = node->key + 1;
        if (block->device == device && block->arena && !block->mapped_handle)
            release(block);
        node = fg_tree_above(blocks, next, 0);
    }
    fg_memory_unlock();
}

int fg_rt_block_info(const void *pointer, fg_block_info_t *out) {
    memset(out, 0, sizeof *out);
    out->memory.fd = -1;
    fg_memory_lock();
    const fg_block_t *block = fg_block_find(pointer);
    if (block) {
        out->memory = (fg_memory_info_t){.kind = block->kind, .device = block->device, .base = (void *)block->node.key,
                                         .bytes = block->bytes, .fd = block->fd, .inode = block->inode,
                                         .offset = block->offset};
        out->id = block->id;
        out->flags = block->flags;
        out->mapped_handle = block->mapped_handle;
        out->imported = block->imported;
        out->pool = block->mapped_handle || block->imported ? NULL : block->owner;
    }
    fg_memory_unlock();
    return block ? FG_OK : fg_rt_set_error(FG_INVALID_ARGUMENT, "%p: not memory of a fake device", pointer);
}

int fg_rt_memory_lookup(const void *pointer, fg_memory_info_t *out) {
    fg_block_info_t info;
    int status = fg_rt_block_info(pointer, &info);
    *out = info.memory;
    return status;
}

int fg_rt_memory_kind(const void *pointer) {
    fg_memory_lock();
    const fg_block_t *block = fg_block_find(pointer);
    int kind = block ? (int)block->kind : FG_MEMORY_UNKNOWN;
    fg_memory_unlock();
    return kind;
}

int fg_rt_memory_set_pool(void *pointer, void *pool) {
    fg_memory_lock();
    fg_block_t *block = fg_block_find(pointer);
    if (block)
        block->owner = pool;
    fg_memory_unlock();
    return block ? FG_OK : fg_rt_set_error(FG_INVALID_ARGUMENT, "%p: not memory of a fake device", pointer);
}

/* A buffer may span several mapped handles (expandable segments): they count as one piece while their places in the
 * segment follow each other too. */
void fg_rt_memory_ref(const void *pointer, uint64_t bytes, fg_buffer_ref_t *out) {
    *out = (fg_buffer_ref_t){.fd = -1, .bytes = bytes};
    fg_memory_lock();
    const fg_block_t *block = fg_block_find(pointer);
    bool whole = block && block->fd >= 0;
    const fg_block_t *last = block;
    while (whole && (uintptr_t)pointer + bytes > last->node.key + last->bytes) {
        const fg_block_t *next = fg_block_find((const void *)(last->node.key + last->bytes));
        whole = next && next->inode == block->inode && next->offset == last->offset + last->bytes;
        last = next;
    }
    if (whole) {
        out->pid = (uint32_t)getpid();
        out->fd = block->fd;
        out->inode = block->inode;
        out->offset = block->offset + ((uintptr_t)pointer - block->node.key);
    }
    fg_memory_unlock();
}

int fg_rt_memory_usage(int device, uint64_t *in_use, uint64_t *total) {
    const fg_profile_t *profile = fg_rt_device_profile(device);
    if (!profile)
        return fg_rt_device_check(device);
    int status = fg_fork_check();
    if (status)
        return status;
    fg_memory_lock();
    *in_use = used[device] + fg_ledger_others(fg_rt_device_physical(device));
    if (*in_use > profile->memory_bytes) /* the others moved memory between two looks */
        *in_use = profile->memory_bytes;
    fg_memory_unlock();
    *total = profile->memory_bytes;
    return FG_OK;
}

uint64_t fg_memory_untouched(void) {
    uint64_t held = 0, resident = 0;
    for (int i = 0; i < FG_MAX_DEVICES + 2; i++) {
        const fg_arena_t *arena = i < FG_MAX_DEVICES ? &device_arenas[i] : i == FG_MAX_DEVICES ? &host_arena : &managed_arena;
        held += arena->used;
        resident += fg_arena_resident(arena);
    }
    return held > resident ? held - resident : 0;
}
