/* Owns the name of the operator each thread runs on host memory, and which of them blocks on a stream: when a
 * collective times out, its text says what the host was waiting in.
 */
#include "stream.h"

#include <stdio.h>
#include <string.h>

#define DEPTH 32
#define NAME_BYTES 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread const char *names[DEPTH];
static __thread int depth;
static char blocked[NAME_BYTES];
static int blocked_threads;

void fg_rt_host_operator(const char *name) {
    if (!name) {
        depth -= depth > 0;
        return;
    }
    if (depth < DEPTH)
        names[depth] = name;
    depth++;
}

void fg_operator_blocks(bool blocks) {
    if (!depth)
        return;
    pthread_mutex_lock(&lock);
    blocked_threads += blocks ? 1 : -1;
    if (blocks)
        snprintf(blocked, sizeof blocked, "%s", names[depth <= DEPTH ? depth - 1 : DEPTH - 1]);
    else if (!blocked_threads)
        blocked[0] = 0;
    pthread_mutex_unlock(&lock);
}

const char *fg_rt_host_operator_current(void) {
    static __thread char copy[NAME_BYTES];
    pthread_mutex_lock(&lock);
    memcpy(copy, blocked, sizeof copy);
    pthread_mutex_unlock(&lock);
    return copy;
}
