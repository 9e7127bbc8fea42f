/* The ordered map behind "which allocation holds this pointer" and "which free range fits": O(log n), no memory of
 * its own, no knowledge of what it orders. Used by arena.c, memory.c and handles.c.
 */
#include "tree.h"

static int before(const fg_node_t *node, uint64_t key, uint64_t tie) {
    return node->key < key || (node->key == key && node->tie < tie);
}

static uint32_t next_priority(void) {
    static uint32_t state = 2463534242u; /* xorshift32; shape only, no secrecy */
    uint32_t x = __atomic_load_n(&state, __ATOMIC_RELAXED);
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    __atomic_store_n(&state, x, __ATOMIC_RELAXED);
    return x;
}

/* Splits into nodes before (key, tie) and the rest. */
static void split(fg_node_t *root, uint64_t key, uint64_t tie, fg_node_t **low, fg_node_t **high) {
    while (root) {
        if (before(root, key, tie)) {
            *low = root;
            low = &root->right;
            root = root->right;
        } else {
            *high = root;
            high = &root->left;
            root = root->left;
        }
    }
    *low = *high = NULL;
}

static fg_node_t *merge(fg_node_t *low, fg_node_t *high) {
    fg_node_t *root, **slot = &root;
    while (low && high) {
        if (low->priority > high->priority) {
            *slot = low;
            slot = &low->right;
            low = low->right;
        } else {
            *slot = high;
            slot = &high->left;
            high = high->left;
        }
    }
    *slot = low ? low : high;
    return root;
}

void fg_tree_insert(fg_node_t **root, fg_node_t *node) {
    node->priority = next_priority();
    while (*root && (*root)->priority >= node->priority)
        root = before(*root, node->key, node->tie) ? &(*root)->right : &(*root)->left;
    fg_node_t *rest = *root;
    *root = node;
    split(rest, node->key, node->tie, &node->left, &node->right);
}

void fg_tree_remove(fg_node_t **root, fg_node_t *node) {
    while (*root && *root != node)
        root = before(*root, node->key, node->tie) ? &(*root)->right : &(*root)->left;
    if (*root)
        *root = merge(node->left, node->right);
}

fg_node_t *fg_tree_floor(fg_node_t *root, uint64_t key) {
    fg_node_t *best = NULL;
    while (root) {
        if (root->key <= key) {
            best = root;
            root = root->right;
        } else {
            root = root->left;
        }
    }
    return best;
}

fg_node_t *fg_tree_above(fg_node_t *root, uint64_t key, uint64_t tie) {
    fg_node_t *best = NULL;
    while (root) {
        if (before(root, key, tie)) {
            root = root->right;
        } else {
            best = root;
            root = root->left;
        }
    }
    return best;
}
