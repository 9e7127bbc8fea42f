/* Private to libfakegpu_rt: the table of allocations, shared by memory.c, vmm.c and ipc.c. */
#ifndef FG_MEMORY_H
#define FG_MEMORY_H
#include "arena.h"
#include "fg_cuda.h"

typedef struct fg_block {
    fg_node_t node; /* key: address */
    uint64_t bytes;      /* what the program asked for, rounded up to pages */
    fg_memory_kind_t kind;
    int device;
    uint32_t flags;
    uint64_t id;
    fg_arena_t *arena;   /* the range goes back there when freed; NULL: nothing to give back */
    int fd;              /* segment behind it, -1 = none */
    uint64_t inode, offset;
    void *owner;         /* vmm handle, import record or pool */
    bool mapped_handle, imported;
    int access;          /* of a mapped handle: CUmemAccess_flags */
} fg_block_t;

void fg_memory_lock(void);
void fg_memory_unlock(void);
fg_block_t *fg_block_find(const void *pointer); /* lock held; NULL = not ours */
fg_block_t *fg_block_above(const void *pointer); /* lock held; the first that starts there or later, or NULL */
int fg_block_add(const fg_block_t *block, void *address); /* lock held; copies */
void fg_block_remove(fg_block_t *block); /* lock held; forgets and frees the record, not the memory */
fg_arena_t *fg_device_arena(int device); /* lock held; created on first use; NULL with the error set */
int fg_memory_charge(int device, int64_t bytes); /* lock held */
#endif
