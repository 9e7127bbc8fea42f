/* A sparse memfd mapped shared and without reservation: as large as a device's memory at no cost until touched, and
 * mappable by a peer process through its descriptor. Best fit over free ranges, coalescing; freed pages are punched
 * out, so memory is returned at once and a fresh range always reads zero. Knows nothing about devices or limits.
 */
#include "arena.h"
#include "fork.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIT_TRIES 16

typedef struct free_range {
    fg_node_t offset_node; /* key: offset */
    fg_node_t size_node;   /* key: bytes, tie: offset */
} free_range_t;

static void add_range(fg_arena_t *arena, free_range_t *range, uint64_t offset, uint64_t bytes) {
    range->offset_node.key = range->size_node.tie = offset;
    range->offset_node.tie = 0;
    range->size_node.key = bytes;
    fg_tree_insert(&arena->by_offset, &range->offset_node);
    fg_tree_insert(&arena->by_size, &range->size_node);
}

static void drop_range(fg_arena_t *arena, free_range_t *range) {
    fg_tree_remove(&arena->by_offset, &range->offset_node);
    fg_tree_remove(&arena->by_size, &range->size_node);
}

int fg_arena_create(fg_arena_t *arena, const char *name, uint64_t bytes) {
    free_range_t *range = calloc(1, sizeof *range);
    int fd = range ? memfd_create(name, MFD_CLOEXEC) : -1;
    struct stat status;
    if (fd < 0 || ftruncate(fd, (off_t)bytes) || fstat(fd, &status))
        goto failed;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED)
        goto failed;
    madvise(base, bytes, MADV_DONTDUMP);
    *arena = (fg_arena_t){.base = base, .fd = fd, .inode = status.st_ino, .bytes = bytes};
    add_range(arena, range, 0, bytes);
    return FG_OK;
failed:
    fg_rt_set_error(FG_SYSTEM, "creating the %llu MiB sparse segment %s failed: %s; is the address space limited "
                    "(ulimit -v)?", (unsigned long long)(bytes >> 20), name, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(range);
    return FG_SYSTEM;
}

static uint64_t round_up(uint64_t value, uint64_t align) {
    return (value + align - 1) & ~(align - 1);
}

/* Smallest range that holds an aligned piece; after a few misses one that does so wherever it starts. */
static free_range_t *find_fit(fg_arena_t *arena, uint64_t bytes, uint64_t align) {
    fg_node_t *node = fg_tree_above(arena->by_size, bytes, 0);
    for (int i = 0; node && i < FIT_TRIES; i++) {
        uint64_t start = round_up(node->tie, align);
        if (start + bytes <= node->tie + node->key)
            return FG_ENTRY(node, free_range_t, size_node);
        node = fg_tree_above(arena->by_size, node->key, node->tie + 1);
    }
    node = fg_tree_above(arena->by_size, bytes + align, 0);
    return node ? FG_ENTRY(node, free_range_t, size_node) : NULL;
}

int fg_arena_take(fg_arena_t *arena, uint64_t bytes, uint64_t align, uint64_t *offset) {
    free_range_t *range = find_fit(arena, bytes, align), *rest;
    if (!range || !(rest = malloc(sizeof *rest)))
        return fg_rt_set_error(FG_OUT_OF_MEMORY, "no free range of %llu bytes", (unsigned long long)bytes);
    uint64_t begin = range->offset_node.key, end = begin + range->size_node.key;
    uint64_t start = round_up(begin, align);
    drop_range(arena, range);
    if (start > begin) {
        add_range(arena, range, begin, start - begin);
        range = NULL;
    }
    if (start + bytes < end) {
        add_range(arena, rest, start + bytes, end - start - bytes);
        rest = NULL;
    }
    free(range);
    free(rest);
    arena->used += bytes;
    *offset = start;
    return FG_OK;
}

static void punch(const fg_arena_t *arena, uint64_t offset, uint64_t bytes) {
    if (fg_rt_forked())
        return; /* the parent's data */
    while (fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes)) {
        if (errno == EINTR)
            continue;
        memset(arena->base + offset, 0, bytes); /* no holes here: keep the promise that fresh memory reads zero */
        return;
    }
}

void fg_arena_give(fg_arena_t *arena, uint64_t offset, uint64_t bytes) {
    free_range_t *range = calloc(1, sizeof *range);
    punch(arena, offset, bytes);
    arena->used -= bytes;
    if (!range)
        return; /* the range is lost, its pages are not */
    uint64_t begin = offset, end = offset + bytes;
    fg_node_t *low = fg_tree_floor(arena->by_offset, offset);
    if (low) {
        free_range_t *left = FG_ENTRY(low, free_range_t, offset_node);
        if (left->offset_node.key + left->size_node.key == begin) {
            begin = left->offset_node.key;
            drop_range(arena, left);
            free(left);
        }
    }
    fg_node_t *high = fg_tree_above(arena->by_offset, end, 0);
    if (high && high->key == end) {
        free_range_t *right = FG_ENTRY(high, free_range_t, offset_node);
        end += right->size_node.key;
        drop_range(arena, right);
        free(right);
    }
    add_range(arena, range, begin, end - begin);
}

uint64_t fg_arena_resident(const fg_arena_t *arena) {
    struct stat status;
    if (!arena->base || fstat(arena->fd, &status))
        return 0;
    return (uint64_t)status.st_blocks * 512u;
}
