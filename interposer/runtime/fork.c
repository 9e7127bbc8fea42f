/* Owns the answer to "is this process a forked child of one that used the runtime?". As on hardware such a child
 * cannot use CUDA or NCCL again: every call is refused. A process that forks before its first use leaves a fresh
 * runtime to its child. Nothing here may take a lock in the child.
 */
#include "fork.h"
#include "log.h"

#include <pthread.h>

static volatile bool armed, dead;
static void (*handlers[FG_FORK_HANDLERS])(void);
static volatile int handler_count;
static pthread_mutex_t handlers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t registered = PTHREAD_ONCE_INIT;

static void in_child(void) {
    fg_log_after_fork();
    if (!armed)
        return;
    dead = true;
    for (int i = 0; i < handler_count; i++)
        handlers[i]();
}

static void install(void) {
    if (pthread_atfork(NULL, NULL, in_child))
        fg_rt_log(FG_LOG_ERROR, "pthread_atfork failed: forked children will not be told apart");
    armed = true;
}

void fg_fork_arm(void) {
    pthread_once(&registered, install);
}

int fg_fork_on_child(void (*fn)(void)) {
    fg_fork_arm();
    pthread_mutex_lock(&handlers_lock);
    bool room = handler_count < FG_FORK_HANDLERS;
    if (room) {
        handlers[handler_count] = fn;
        handler_count = handler_count + 1;
    }
    pthread_mutex_unlock(&handlers_lock);
    return room ? FG_OK : fg_rt_set_error(FG_INTERNAL, "fork handlers: more than %d", FG_FORK_HANDLERS);
}

bool fg_rt_forked(void) {
    return dead;
}

int fg_fork_check(void) {
    if (!dead)
        return FG_OK;
    return fg_rt_set_error(FG_FORKED, "the parent process used the fake GPUs before it forked; use the spawn or "
                                      "forkserver start method, or fork before the first use");
}
