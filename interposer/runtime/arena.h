/* One sparse shared segment and the ranges handed out of it. Private to libfakegpu_rt; the caller holds the lock. */
#ifndef FG_ARENA_H
#define FG_ARENA_H
#include "fg_runtime.h"
#include "tree.h"

#define FG_PAGE 4096ull
#define FG_LARGE_PAGE (2ull << 20)

typedef struct fg_arena {
    char *base; /* NULL = not created yet */
    int fd;
    uint64_t inode, bytes;
    uint64_t used; /* bytes handed out */
    fg_node_t *by_offset, *by_size; /* free ranges */
} fg_arena_t;

int fg_arena_create(fg_arena_t *arena, const char *name, uint64_t bytes);
/* align: a power of two, at least FG_PAGE; bytes: a multiple of FG_PAGE */
int fg_arena_take(fg_arena_t *arena, uint64_t bytes, uint64_t align, uint64_t *offset);
/* gives the range's pages back to the system: it reads zero when handed out again */
void fg_arena_give(fg_arena_t *arena, uint64_t offset, uint64_t bytes);
uint64_t fg_arena_resident(const fg_arena_t *arena); /* bytes of memory behind it */
#endif
