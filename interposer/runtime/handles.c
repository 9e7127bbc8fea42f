/* Every opaque handle a program holds (stream, event, pool, graph, ...) is listed here while it is alive, so that a
 * stale or foreign pointer is answered with CUDA's invalid-handle error and never followed.
 */
#include "handles.h"
#include "tree.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct handle_entry { fg_node_t node; /* key: pointer, tie: kind */ } handle_entry_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fg_node_t *alive;

static fg_node_t *find(const void *handle, fg_handle_kind_t kind) {
    fg_node_t *node = fg_tree_above(alive, (uintptr_t)handle, kind);
    return node && node->key == (uintptr_t)handle && node->tie == kind ? node : NULL;
}

int fg_handle_add(const void *handle, fg_handle_kind_t kind) {
    handle_entry_t *entry = malloc(sizeof *entry);
    if (!entry)
        return fg_rt_set_error(FG_SYSTEM, "out of host memory for a handle");
    entry->node.key = (uintptr_t)handle;
    entry->node.tie = kind;
    pthread_mutex_lock(&lock);
    fg_tree_insert(&alive, &entry->node);
    pthread_mutex_unlock(&lock);
    return FG_OK;
}

bool fg_handle_drop(const void *handle, fg_handle_kind_t kind) {
    pthread_mutex_lock(&lock);
    fg_node_t *node = find(handle, kind);
    if (node)
        fg_tree_remove(&alive, node);
    pthread_mutex_unlock(&lock);
    free(node ? FG_ENTRY(node, handle_entry_t, node) : NULL);
    return node != NULL;
}

bool fg_handle_alive(const void *handle, fg_handle_kind_t kind) {
    pthread_mutex_lock(&lock);
    bool found = find(handle, kind) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}
