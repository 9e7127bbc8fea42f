/* An intrusive treap ordered by (key, tie). Private to libfakegpu_rt; the caller holds the lock. */
#ifndef FG_TREE_H
#define FG_TREE_H
#include <stddef.h>
#include <stdint.h>

typedef struct fg_node {
    struct fg_node *left, *right;
    uint64_t key, tie;
    uint32_t priority;
} fg_node_t;

#define FG_ENTRY(node, type, member) ((type *)(void *)((char *)(node) - offsetof(type, member)))

void fg_tree_insert(fg_node_t **root, fg_node_t *node); /* key and tie are set by the caller and unique as a pair */
void fg_tree_remove(fg_node_t **root, fg_node_t *node);
fg_node_t *fg_tree_floor(fg_node_t *root, uint64_t key);                /* greatest (k, t) with k <= key, or NULL */
fg_node_t *fg_tree_above(fg_node_t *root, uint64_t key, uint64_t tie); /* least (k, t) >= (key, tie), or NULL */
#endif
